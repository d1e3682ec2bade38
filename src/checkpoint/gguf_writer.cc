#include "checkpoint/gguf_writer.h"

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/gguf_cursor.h"
#include "checkpoint/gguf_types.h"

namespace braid {
namespace {

// Layout and value types: docs/gguf.md of ggml-org/ggml.
constexpr uint32_t kVersion = 3;
constexpr int64_t kAlignment = 32;
enum ValueType : uint32_t {
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kF64 = 12,
};
constexpr std::array<uint8_t, 13> kValueBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint32_t kMaxTypeId = 64;

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_string(std::string& out, std::string_view text) {
  append(out, uint64_t{text.size()});
  out += text;
}

int64_t padding_after(int64_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

std::optional<uint32_t> find_type_id(const QuantFormat& format) {
  for (uint32_t id = 0; id < kMaxTypeId; ++id) {
    const GgufType* type = find_gguf_type(id);
    if (type != nullptr && type->format == &format) return id;
  }
  return std::nullopt;
}

void skip_value(GgufCursor& cursor, uint32_t type, const std::string& key) {
  if (type == kString) {
    cursor.read_string(key);
    return;
  }
  for (int i = 0; i < kValueBytes[type]; ++i) cursor.read<uint8_t>(key);
}

}  // namespace

template <typename T>
void GgufMetadataWriter::put(T value) {
  append(bytes_, value);
}

void GgufMetadataWriter::put_string(std::string_view text) { append_string(bytes_, text); }

void GgufMetadataWriter::begin(std::string_view key, uint32_t type) {
  BRAID_CHECK(keys_.emplace(key).second, "{} twice", key);
  put_string(key);
  put(type);
}

void GgufMetadataWriter::begin_list(std::string_view key, uint32_t type, size_t count) {
  begin(key, kArray);
  put(type);
  put(uint64_t{count});
}

void GgufMetadataWriter::add_integer(std::string_view key, int64_t value) {
  if (value < 0 || value > int64_t{UINT32_MAX}) throw Error("GGUF: {} is {}", key, value);
  begin(key, kU32);
  put(static_cast<uint32_t>(value));
}

void GgufMetadataWriter::add_number(std::string_view key, double value) {
  begin(key, kF32);
  put(static_cast<float>(value));
}

void GgufMetadataWriter::add_boolean(std::string_view key, bool value) {
  begin(key, kBool);
  put(static_cast<uint8_t>(value));
}

void GgufMetadataWriter::add_string(std::string_view key, std::string_view value) {
  begin(key, kString);
  put_string(value);
}

void GgufMetadataWriter::add_integers(std::string_view key, std::span<const int32_t> values) {
  begin_list(key, kI32, values.size());
  for (const int32_t value : values) put(value);
}

void GgufMetadataWriter::add_numbers(std::string_view key, std::span<const float> values) {
  begin_list(key, kF32, values.size());
  for (const float value : values) put(value);
}

void GgufMetadataWriter::add_booleans(std::string_view key, const std::vector<bool>& values) {
  begin_list(key, kBool, values.size());
  for (const bool value : values) put(static_cast<uint8_t>(value));
}

void GgufMetadataWriter::add_strings(std::string_view key, const std::vector<std::string>& values) {
  begin_list(key, kString, values.size());
  for (const std::string& value : values) put_string(value);
}

void GgufMetadataWriter::add_entry(std::string_view key, std::span<const std::byte> entry) {
  BRAID_CHECK(keys_.emplace(key).second, "{} twice", key);
  bytes_.append(reinterpret_cast<const char*>(entry.data()), entry.size());
}

std::vector<GgufEntry> split_gguf_metadata(std::span<const std::byte> section,
                                           const std::string& origin) {
  std::vector<GgufEntry> entries;
  GgufCursor cursor(section, origin);
  while (cursor.remaining() > 0) {
    const size_t begin = cursor.offset();
    const std::string key(cursor.read_string("key"));
    const auto type = cursor.read<uint32_t>(key);
    if (type > kF64) cursor.fail(begin, key, "unknown type");
    if (type == kArray) {
      const auto item = cursor.read<uint32_t>(key);
      if (item > kF64 || item == kArray) cursor.fail(begin, key, "unknown type of list items");
      const auto count = cursor.read<uint64_t>(key);
      for (uint64_t i = 0; i < count; ++i) skip_value(cursor, item, key);
    } else {
      skip_value(cursor, type, key);
    }
    entries.push_back({key, section.subspan(begin, cursor.offset() - begin)});
  }
  return entries;
}

uint32_t gguf_type_id(const QuantFormat& format) {
  const auto id = find_type_id(format);
  if (!id) throw Error("format {}: GGUF files cannot hold it", format.name);
  return *id;
}

bool is_gguf_format(const QuantFormat& format) { return find_type_id(format).has_value(); }

GgufWriter::GgufWriter(std::filesystem::path path, const GgufMetadataWriter& metadata,
                       std::vector<Declaration> tensors)
    : file_(std::move(path)), tensors_(std::move(tensors)) {
  std::string header = "GGUF";
  append(header, kVersion);
  append(header, uint64_t{tensors_.size()});
  append(header, uint64_t{metadata.size()});
  header += metadata.bytes();
  int64_t offset = 0;
  for (const Declaration& tensor : tensors_) {
    append_string(header, tensor.name);
    append(header, static_cast<uint32_t>(tensor.shape.rank()));
    for (int i = tensor.shape.rank() - 1; i >= 0; --i) {
      append(header, static_cast<uint64_t>(tensor.shape.dim(i)));
    }
    append(header, gguf_type_id(*tensor.format));
    append(header, static_cast<uint64_t>(offset));
    offset += tensor.bytes() + padding_after(tensor.bytes());
  }
  header.append(static_cast<size_t>(padding_after(static_cast<int64_t>(header.size()))), '\0');

  if (!tensors_.empty()) left_bytes_ = tensors_.front().bytes();
  put(std::as_bytes(std::span(header)));
}

void GgufWriter::put(std::span<const std::byte> bytes) {
  file_.write_at(offset_, bytes);
  offset_ += static_cast<int64_t>(bytes.size());
}

void GgufWriter::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  BRAID_CHECK(tensor_ < tensors_.size(), "{} bytes after the last tensor", bytes.size());
  BRAID_CHECK(static_cast<int64_t>(bytes.size()) <= left_bytes_, "tensor {}: {} bytes too many",
              tensors_[tensor_].name, static_cast<int64_t>(bytes.size()) - left_bytes_);
  put(bytes);
  left_bytes_ -= static_cast<int64_t>(bytes.size());
  if (left_bytes_ > 0) return;
  constexpr std::array<std::byte, kAlignment> kZeros{};
  put(std::span(kZeros).first(static_cast<size_t>(padding_after(tensors_[tensor_].bytes()))));
  if (++tensor_ < tensors_.size()) left_bytes_ = tensors_[tensor_].bytes();
}

void GgufWriter::finish() {
  BRAID_CHECK(tensor_ == tensors_.size(), "tensor {} never written", tensors_[tensor_].name);
  file_.finish();
}

}  // namespace braid
