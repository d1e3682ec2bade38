#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace braid {

// A whole file mapped read-only. Immutable; shared by whoever points into it.
class MappedFile {
 public:
  // Throws Error naming the path if it cannot be opened, is not a regular file, or cannot be
  // mapped.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::filesystem::path path_;
  const std::byte* data_;
  size_t size_;
};

// Has the kernel fetch what is not in memory yet of a mapping and map all its pages at once, rather
// than one page fault at a time. Waits for that, unless the mapping is larger than the memory.
void read_ahead(std::span<const std::byte> mapped);

// Reads a whole (small) file. Throws Error naming the path; refuses files above max_bytes.
std::string read_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);

}  // namespace braid
