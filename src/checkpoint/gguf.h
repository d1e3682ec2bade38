#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/weight_map.h"

namespace braid {

// The key-value section of a GGUF file. Getters throw Error naming file and key when a key has
// another type than asked for; integers of any width and sign convert if the value fits.
class GgufMetadata {
 public:
  using Array = std::variant<std::vector<int64_t>, std::vector<double>, std::vector<bool>,
                             std::vector<std::string>>;
  using Value = std::variant<int64_t, double, bool, std::string, Array>;

  bool has(std::string_view key) const;
  bool is_list(std::string_view key) const;  // for keys that files write in more than one form
  int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  std::string string(std::string_view key) const;
  std::optional<int64_t> find_integer(std::string_view key) const;
  std::optional<double> find_number(std::string_view key) const;
  std::optional<bool> find_boolean(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<std::vector<std::string>> find_strings(std::string_view key) const;
  std::optional<std::vector<double>> find_numbers(std::string_view key) const;
  // A list, or a single value repeated `count` times; a list of another length is an Error.
  std::optional<std::vector<int64_t>> find_integers_per_layer(std::string_view key,
                                                              int64_t count) const;
  std::optional<std::vector<bool>> find_booleans_per_layer(std::string_view key,
                                                           int64_t count) const;
  // An integer or a list of integers.
  std::optional<std::vector<int64_t>> find_integers(std::string_view key) const;

  [[noreturn]] void fail(std::string_view key, std::string_view message) const;

  std::string origin;  // path of the file
  std::map<std::string, Value, std::less<>> values;
};

// A parsed GGUF file (v2 or v3; a split set opens as one, from any of its parts). Shapes are in
// [rows, cols] order, the reverse of the file's. Tensors of types that no kernel reads get no
// format.
struct GgufFile {
  GgufMetadata metadata;  // of a split set: of its first part
  std::vector<StoredTensor> tensors;
  uint32_t version = 0;
  std::span<const std::byte> metadata_bytes;  // the key-value section as it stands in the file
  std::shared_ptr<const void> owner;          // keeps them alive

  // Every byte string ends in success or one Error that names file, field and byte offset. Memory
  // stays below a small multiple of the file's size.
  static std::shared_ptr<const GgufFile> open(const std::filesystem::path& path);

  // One file from bytes in memory that `owner` keeps alive, as it stands (of a split set: that
  // part); `path` is for messages.
  static GgufFile parse(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner,
                        const std::string& path);
};

}  // namespace braid
