#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/partial_file.h"
#include "quant/quant_format.h"
#include "tensor/shape.h"

namespace braid {

// The key-value section of a GGUF file to be written. Each key once.
class GgufMetadataWriter {
 public:
  void add_integer(std::string_view key, int64_t value);  // as uint32
  void add_number(std::string_view key, double value);    // as float32
  void add_boolean(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  void add_integers(std::string_view key, std::span<const int32_t> values);
  void add_numbers(std::string_view key, std::span<const float> values);
  void add_booleans(std::string_view key, const std::vector<bool>& values);
  void add_strings(std::string_view key, const std::vector<std::string>& values);
  // An entry as it stands in another file.
  void add_entry(std::string_view key, std::span<const std::byte> entry);

  size_t size() const { return keys_.size(); }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  void put(T value);
  void put_string(std::string_view text);
  void begin(std::string_view key, uint32_t type);
  void begin_list(std::string_view key, uint32_t type, size_t count);

  std::set<std::string, std::less<>> keys_;
  std::string bytes_;
};

// An entry of a file's key-value section (GgufFile::metadata_bytes), key included.
struct GgufEntry {
  std::string key;
  std::span<const std::byte> bytes;
};
// Takes a section that has been parsed apart; `origin` is for messages.
std::vector<GgufEntry> split_gguf_metadata(std::span<const std::byte> section,
                                           const std::string& origin);

// Writes one GGUF file (version 3). It appears in finish(), or not at all. Not thread-safe.
class GgufWriter {
 public:
  struct Declaration {
    std::string name;
    const QuantFormat* format;  // one that GGUF has, see gguf_type_id()
    Shape shape;                // [.., rows, cols]
    int64_t bytes() const { return shape.num_elements() / shape.dim(-1) * row_bytes(); }
    int64_t row_bytes() const { return format->row_bytes(shape.dim(-1)); }
  };

  // Throws Error naming the path if it cannot be created.
  GgufWriter(std::filesystem::path path, const GgufMetadataWriter& metadata,
             std::vector<Declaration> tensors);

  // The next bytes of the data: tensors in the order of their declaration, each in one or more
  // pieces that end with it. Throws Error if the disk is full and the like.
  void write(std::span<const std::byte> bytes);
  // Puts the file in place; all data must be there.
  void finish();

 private:
  void put(std::span<const std::byte> bytes);

  PartialFile file_;
  int64_t offset_ = 0;  // of what comes next
  std::vector<Declaration> tensors_;
  size_t tensor_ = 0;       // that comes next
  int64_t left_bytes_ = 0;  // of it
};

// GGUF's number of a format. Throws Error for formats that it lacks.
uint32_t gguf_type_id(const QuantFormat& format);
bool is_gguf_format(const QuantFormat& format);

}  // namespace braid
