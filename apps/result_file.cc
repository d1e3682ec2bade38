#include "apps/result_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/mapped_file.h"

namespace braid {
namespace {

bool is_regular(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

ResultFile::ResultFile(const std::string& path) : path_(path), fd_(STDOUT_FILENO) {
  if (path.empty() || path == "-") {
    path_ = "standard output";
    return;
  }
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot write");
}

ResultFile::~ResultFile() {
  if (fd_ > STDERR_FILENO) ::close(fd_);
}

std::vector<std::string> ResultFile::read_lines() const {
  std::vector<std::string> lines;
  if (fd_ == STDOUT_FILENO || !is_regular(fd_)) return lines;
  const std::string content = read_file(path_);
  for (size_t begin = 0, end; (end = content.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    lines.push_back(content.substr(begin, end - begin));
  }
  return lines;
}

void ResultFile::begin(int64_t num_lines) {
  if (fd_ == STDOUT_FILENO || !is_regular(fd_)) return;
  const std::vector<std::string> lines = read_lines();
  off_t kept_bytes = 0;
  for (int64_t i = 0; i < num_lines; ++i) kept_bytes += static_cast<off_t>(lines[i].size()) + 1;
  if (::ftruncate(fd_, kept_bytes) != 0) fail("cannot truncate");
}

void ResultFile::write(std::string_view line) {
  std::string text(line);
  text += '\n';
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(fd_, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("cannot write");
    done += static_cast<size_t>(count);
  }
}

void ResultFile::fail(const char* what) const {
  throw Error("{}: {}: {}", path_, what, std::strerror(errno));
}

}  // namespace braid
