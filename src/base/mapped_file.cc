#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace braid {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::filesystem::path& path)
      // Without O_NONBLOCK a named pipe would hold us until someone writes to it.
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) throw Error("{}: cannot open: {}", path.string(), std::strerror(errno));
  }
  ~FileDescriptor() { ::close(fd_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

size_t regular_file_size(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw Error("{}: cannot read its size: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) throw Error("{}: not a regular file", path.string());
  return static_cast<size_t>(status.st_size);
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  FileDescriptor file(path);
  const size_t size = regular_file_size(file, path);
  const std::byte* data = nullptr;
  if (size > 0) {
    void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapping == MAP_FAILED) {
      throw Error("{}: cannot map {} bytes: {}", path.string(), size, std::strerror(errno));
    }
    data = static_cast<const std::byte*>(mapping);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, data, size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void read_ahead(std::span<const std::byte> mapped) {
  if (mapped.empty()) return;
#ifndef MADV_POPULATE_READ
  constexpr int MADV_POPULATE_READ = 22;  // Linux 5.14; others refuse it, which does no harm
#endif
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto memory = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * page;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped.data()) / page * page;
  const size_t size = reinterpret_cast<uintptr_t>(mapped.data()) + mapped.size() - begin;
  ::madvise(reinterpret_cast<void*>(begin), size, MADV_WILLNEED);
  if (size < memory) ::madvise(reinterpret_cast<void*>(begin), size, MADV_POPULATE_READ);
}

std::string read_file(const std::filesystem::path& path, size_t max_bytes) {
  FileDescriptor file(path);
  const size_t size = regular_file_size(file, path);
  if (size > max_bytes) {
    throw Error("{}: {} bytes, more than the {} allowed here", path.string(), size, max_bytes);
  }
  std::string content(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(file.get(), content.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error("{}: cannot read: {}", path.string(), std::strerror(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  content.resize(done);
  return content;
}

}  // namespace braid
