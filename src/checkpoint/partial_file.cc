#include "checkpoint/partial_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace braid {

PartialFile::PartialFile(std::filesystem::path path)
    : path_(std::move(path)), partial_path_(path_) {
  partial_path_ += fmt::format(".{}.partial", ::getpid());
  fd_ = ::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) throw Error("{}: cannot create: {}", path_.string(), std::strerror(errno));
}

PartialFile::~PartialFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_path_.c_str());
}

void PartialFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error("{}: cannot write: {}", path_.string(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void PartialFile::finish() {
  const int fd = std::exchange(fd_, -1);
  const bool closed = ::close(fd) == 0;
  if (!closed || std::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(partial_path_.c_str());
    throw Error("{}: cannot write: {}", path_.string(), std::strerror(reason));
  }
}

}  // namespace braid
