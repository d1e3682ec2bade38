#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// The JSONL results of a batch, on a file or standard output; each line is flushed when written.
class ResultFile {
 public:
  // Empty or "-": standard output. Creates the file if need be but keeps what it holds until
  // begin(). Throws Error if it cannot be written.
  explicit ResultFile(const std::string& path);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  // The complete lines the file holds, without their line breaks.
  std::vector<std::string> read_lines() const;
  // Keeps the first `num_lines` lines and nothing else; what is written follows them.
  void begin(int64_t num_lines);
  void write(std::string_view line);

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  int fd_;
};

}  // namespace braid
