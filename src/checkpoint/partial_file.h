#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace braid {

// A file under a temporary name beside its target, which it takes in finish(): a reader never sees
// half a file. Not thread-safe.
class PartialFile {
 public:
  // Throws Error naming the path if it cannot be created.
  explicit PartialFile(std::filesystem::path path);
  // Without finish(): removes the temporary file.
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Throws Error if the disk is full and the like.
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void finish();

 private:
  std::filesystem::path path_, partial_path_;
  int fd_;
};

}  // namespace braid
