#include "quantize/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace braid {

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path partial = path;
  partial += ".partial";
  const auto fail = [&](int reason) {
    ::unlink(partial.c_str());
    throw Error("{}: cannot write: {}", path.string(), std::strerror(reason));
  };
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail(errno);
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int reason = errno;
      ::close(fd);
      fail(reason);
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  if (::close(fd) != 0) fail(errno);
  if (std::rename(partial.c_str(), path.c_str()) != 0) fail(errno);
}

}  // namespace braid
