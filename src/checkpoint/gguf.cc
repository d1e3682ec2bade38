#include "checkpoint/gguf.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/gguf_cursor.h"
#include "checkpoint/gguf_types.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

// Layout: docs/gguf.md of ggml-org/ggml.
constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMinAlignment = 8;

// Value types of metadata.
enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

int64_t integer_of(GgufCursor& cursor, uint32_t type, std::string_view field) {
  switch (type) {
    case kU8:
      return cursor.read<uint8_t>(field);
    case kI8:
      return cursor.read<int8_t>(field);
    case kU16:
      return cursor.read<uint16_t>(field);
    case kI16:
      return cursor.read<int16_t>(field);
    case kU32:
      return cursor.read<uint32_t>(field);
    case kI32:
      return cursor.read<int32_t>(field);
    case kI64:
      return cursor.read<int64_t>(field);
    default: {
      const size_t start = cursor.offset();
      const auto value = cursor.read<uint64_t>(field);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        cursor.fail(start, field, fmt::format("{} is too large", value));
      }
      return static_cast<int64_t>(value);
    }
  }
}

bool boolean_of(GgufCursor& cursor, std::string_view field) {
  const size_t start = cursor.offset();
  const auto value = cursor.read<uint8_t>(field);
  if (value > 1) cursor.fail(start, field, fmt::format("a boolean of value {}", value));
  return value == 1;
}

bool is_integer(uint32_t type) { return type <= kI32 || type == kU64 || type == kI64; }

// Smallest size of an item in an array.
uint64_t item_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    default:
      return 8;
  }
}

template <typename T, typename Read>
std::vector<T> read_items(uint64_t count, const Read& read) {
  std::vector<T> items;
  items.reserve(count);
  for (uint64_t i = 0; i < count; ++i) items.push_back(read());
  return items;
}

GgufMetadata::Array read_array(GgufCursor& cursor, std::string_view key) {
  const size_t start = cursor.offset();
  const auto type = cursor.read<uint32_t>(key);
  if (type > kF64) cursor.fail(start, key, fmt::format("unknown type {} of list items", type));
  if (type == kArray) cursor.fail(start, key, "a list of lists, which no known file needs");
  const uint64_t count = cursor.read_count(key, item_bytes(type));
  if (is_integer(type)) {
    return read_items<int64_t>(count, [&] { return integer_of(cursor, type, key); });
  }
  switch (type) {
    case kF32:
      return read_items<double>(count, [&] { return double{cursor.read<float>(key)}; });
    case kF64:
      return read_items<double>(count, [&] { return cursor.read<double>(key); });
    case kBool:
      return read_items<bool>(count, [&] { return boolean_of(cursor, key); });
    default:
      return read_items<std::string>(count, [&] { return std::string(cursor.read_string(key)); });
  }
}

GgufMetadata::Value read_value(GgufCursor& cursor, std::string_view key) {
  const size_t start = cursor.offset();
  const auto type = cursor.read<uint32_t>(key);
  if (is_integer(type)) return integer_of(cursor, type, key);
  switch (type) {
    case kF32:
      return double{cursor.read<float>(key)};
    case kF64:
      return cursor.read<double>(key);
    case kBool:
      return boolean_of(cursor, key);
    case kString:
      return std::string(cursor.read_string(key));
    case kArray:
      return read_array(cursor, key);
    default:
      cursor.fail(start, key, fmt::format("unknown value type {}", type));
  }
}

void read_metadata(GgufCursor& cursor, uint64_t count, GgufMetadata& metadata) {
  for (uint64_t i = 0; i < count; ++i) {
    const size_t start = cursor.offset();
    std::string key(cursor.read_string(fmt::format("key of metadata entry {}", i)));
    if (metadata.has(key)) cursor.fail(start, key, "metadata key occurs twice");
    GgufMetadata::Value value = read_value(cursor, key);
    metadata.values.emplace(std::move(key), std::move(value));
  }
}

int64_t alignment_of(const GgufMetadata& metadata) {
  const int64_t alignment = metadata.find_integer("general.alignment").value_or(kDefaultAlignment);
  if (alignment < kMinAlignment || (alignment & (alignment - 1)) != 0) {
    metadata.fail("general.alignment",
                  fmt::format("{} is not a power of two of at least {}", alignment, kMinAlignment));
  }
  return alignment;
}

struct TensorInfo {
  StoredTensor tensor;
  const GgufType* type;
  uint64_t offset;      // within the data
  size_t offset_field;  // byte at which the file says so
};

TensorInfo read_tensor_info(GgufCursor& cursor, uint64_t index, const std::string& path) {
  TensorInfo info;
  const std::string name(cursor.read_string(fmt::format("name of tensor {}", index)));
  const std::string label = "tensor " + printable(name);
  const size_t rank_field = cursor.offset();
  const auto rank = cursor.read<uint32_t>(label + ": number of dimensions");
  if (rank > Shape::kMaxRank) {
    cursor.fail(rank_field, label,
                fmt::format("{} dimensions; at most {} are allowed", rank, Shape::kMaxRank));
  }
  std::vector<int64_t> sizes;
  int64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const std::string field = fmt::format("{}: dimension {}", label, i);
    const size_t start = cursor.offset();
    const auto size = cursor.read<uint64_t>(field);
    if (size == 0) cursor.fail(start, field, "is 0");
    // A quarter of the range leaves room for the number of bytes.
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
        __builtin_mul_overflow(elements, static_cast<int64_t>(size), &elements) ||
        elements > std::numeric_limits<int64_t>::max() / 64) {
      cursor.fail(start, field, fmt::format("{} makes the tensor impossibly large", size));
    }
    sizes.push_back(static_cast<int64_t>(size));
  }
  if (sizes.empty()) sizes.push_back(1);
  std::reverse(sizes.begin(), sizes.end());

  const size_t type_field = cursor.offset();
  const auto type_id = cursor.read<uint32_t>(label + ": type");
  info.type = find_gguf_type(type_id);
  info.offset_field = cursor.offset();
  info.offset = cursor.read<uint64_t>(label + ": offset");
  info.tensor.name = name;
  info.tensor.file = path;
  info.tensor.weight.shape = Shape(sizes);
  if (info.type == nullptr) {
    info.tensor.dtype_name = fmt::format("ggml type {}", type_id);
    return info;
  }
  info.tensor.dtype_name = info.type->name;
  info.tensor.weight.format = info.type->format;
  if (sizes.back() % info.type->block_elements != 0) {
    cursor.fail(type_field, label,
                fmt::format("rows of {} elements are no whole number of {} blocks of {}",
                            sizes.back(), info.type->name, info.type->block_elements));
  }
  info.tensor.stored_bytes = elements / info.type->block_elements * info.type->block_bytes;
  return info;
}

// Places the tensors within the data section, which starts at `data_begin`.
void place_tensors(const GgufCursor& cursor, std::span<const std::byte> bytes, size_t data_begin,
                   int64_t alignment, const std::shared_ptr<const void>& owner,
                   std::vector<TensorInfo>& infos) {
  const uint64_t data_bytes = data_begin < bytes.size() ? bytes.size() - data_begin : 0;
  for (TensorInfo& info : infos) {
    const std::string field = "tensor " + printable(info.tensor.name) + ": offset";
    if (info.offset % static_cast<uint64_t>(alignment) != 0) {
      cursor.fail(info.offset_field, field,
                  fmt::format("{} is no multiple of the alignment {}", info.offset, alignment));
    }
    const auto size = static_cast<uint64_t>(info.tensor.stored_bytes);
    if (info.offset > data_bytes || size > data_bytes - info.offset) {
      cursor.fail(info.offset_field, field,
                  fmt::format("{} bytes at {} end beyond the {} bytes of data; is the file cut "
                              "short?",
                              size, info.offset, data_bytes));
    }
    if (info.tensor.weight.format != nullptr) {
      info.tensor.weight.data = bytes.data() + data_begin + info.offset;
      info.tensor.weight.owner = owner;
    }
  }
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& info : infos) {
    if (info.tensor.stored_bytes > 0) order.push_back(&info);
  }
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = *order[i - 1];
    if (order[i]->offset < before.offset + static_cast<uint64_t>(before.tensor.stored_bytes)) {
      cursor.fail(order[i]->offset_field, "tensor " + printable(order[i]->tensor.name),
                  fmt::format("overlaps tensor {}", printable(before.tensor.name)));
    }
  }
}

void check_version(const GgufCursor& cursor, uint32_t version) {
  if (version == 2 || version == 3) return;
  if ((version & 0xffff) == 0 && version != 0) {
    cursor.fail(4, "version",
                "the file is big-endian, which is not supported; convert it with "
                "gguf_convert_endian.py of llama.cpp");
  }
  if (version == 1) cursor.fail(4, "version", "1 is not supported; convert the model again");
  cursor.fail(4, "version", fmt::format("{} is not supported (2 and 3 are)", version));
}

}  // namespace

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner,
                         const std::string& path) {
  GgufCursor cursor(bytes, path);
  if (cursor.remaining() < 4 || cursor.read<uint32_t>("magic") != kMagic) {
    throw Error("{}: byte 0: not a GGUF file", path);
  }
  GgufFile file;
  file.metadata.origin = path;
  file.version = cursor.read<uint32_t>("version");
  check_version(cursor, file.version);
  // The least a tensor takes: lengths and counts with an empty name; a metadata entry likewise.
  const uint64_t num_tensors = cursor.read_count("number of tensors", 8 + 4 + 4 + 8);
  const uint64_t num_entries = cursor.read_count("number of metadata entries", 8 + 4 + 1);
  const size_t metadata_begin = cursor.offset();
  read_metadata(cursor, num_entries, file.metadata);
  file.metadata_bytes = bytes.subspan(metadata_begin, cursor.offset() - metadata_begin);
  file.owner = owner;
  const int64_t alignment = alignment_of(file.metadata);

  std::vector<TensorInfo> infos;
  std::map<std::string_view, size_t> seen;
  infos.reserve(std::min(num_tensors, cursor.remaining() / 24));
  for (uint64_t i = 0; i < num_tensors; ++i) {
    infos.push_back(read_tensor_info(cursor, i, path));
  }
  for (const TensorInfo& info : infos) {
    if (!seen.emplace(info.tensor.name, info.offset_field).second) {
      cursor.fail(info.offset_field, "tensor " + printable(info.tensor.name), "name occurs twice");
    }
  }
  const size_t data_begin =
      (cursor.offset() + static_cast<size_t>(alignment) - 1) / alignment * alignment;
  place_tensors(cursor, bytes, data_begin, alignment, owner, infos);
  for (TensorInfo& info : infos) file.tensors.push_back(std::move(info.tensor));
  return file;
}

}  // namespace braid
