#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/json_error.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

using Json = nlohmann::json;

// Format: 8 bytes of header size (little-endian), the header (JSON), the data. Described in the
// documentation of huggingface/safetensors, whose reader sets the same limit on the header.
constexpr size_t kPrefixBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr int kMaxDepth = 32;

struct ElementType {
  std::string_view name;
  int bits;
  const QuantFormat* format;  // null: no kernel reads it
};

const ElementType* find_element_type(std::string_view name) {
  static const std::array<ElementType, 20> kTypes = {{
      {"F32", 32, &quant_format(FormatId::kF32)},
      {"F16", 16, &quant_format(FormatId::kF16)},
      {"BF16", 16, &quant_format(FormatId::kBF16)},
      {"F64", 64, nullptr},
      {"I64", 64, nullptr},
      {"I32", 32, nullptr},
      {"I16", 16, nullptr},
      {"I8", 8, nullptr},
      {"U64", 64, nullptr},
      {"U32", 32, nullptr},
      {"U16", 16, nullptr},
      {"U8", 8, nullptr},
      {"BOOL", 8, nullptr},
      {"C64", 64, nullptr},
      {"F8_E4M3", 8, nullptr},
      {"F8_E5M2", 8, nullptr},
      {"F8_E8M0", 8, nullptr},
      {"F6_E2M3", 6, nullptr},
      {"F6_E3M2", 6, nullptr},
      {"F4", 4, nullptr},
  }};
  for (const ElementType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> offsets;  // [begin, end) within the data
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// Builds the entries while the header is parsed, so that nothing else is kept of it.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderHandler(const std::string& path) : path_(path) {}

  std::vector<Entry>& entries() { return entries_; }

  bool start_object(size_t) override {
    if (depth_ == 1 && !in_metadata_) {
      entries_.push_back({.name = key_});
    } else if (depth_ >= 2 && field_ != Field::kUnknown) {
      fail_field("found an object");
    }
    return enter();
  }
  bool end_object() override { return leave(); }
  bool start_array(size_t) override {
    if (depth_ == 0) throw Error("{}: header: expected a JSON object, found a list", path_);
    if (depth_ == 1) fail_key("expected an object, found a list");
    if (depth_ == 2 && !in_metadata_) {
      if (field_ == Field::kDtype) fail_field("found a list");
    } else if (field_ != Field::kUnknown) {
      fail_field("found a list in it");
    }
    return enter();
  }
  bool end_array() override { return leave(); }

  bool key(std::string& key) override {
    if (depth_ == 1) {
      key_ = key;
      in_metadata_ = key_ == "__metadata__";
      // Metadata is text of any kind that braid has no use for; it is read over.
      field_ = Field::kUnknown;
      if (!names_.insert(key_).second) {
        throw Error("{}: header: tensor {} occurs twice", path_, printable(key_));
      }
    } else if (depth_ == 2 && !in_metadata_) {
      begin_field(key);
    }
    return true;
  }

  bool string(std::string& value) override {
    if (scalar("a string") == Field::kDtype) entries_.back().dtype = value;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    const Field field = scalar("a number");
    if (field != Field::kShape && field != Field::kOffsets) return true;
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail_field(fmt::format("{} is too large", value));
    }
    (field == Field::kShape ? entries_.back().shape : entries_.back().offsets)
        .push_back(static_cast<int64_t>(value));
    return true;
  }
  bool number_integer(int64_t value) override {
    if (scalar("a number") != Field::kUnknown) fail_field(fmt::format("found {}", value));
    return true;
  }
  bool number_float(double, const std::string& text) override {
    if (scalar("a number") != Field::kUnknown) fail_field("found " + printable(text, 40));
    return true;
  }
  bool null() override { return other_scalar("null"); }
  bool boolean(bool value) override { return other_scalar(value ? "true" : "false"); }
  bool binary(Json::binary_t&) override { return other_scalar("bytes"); }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    throw Error("{}: header: not valid JSON: {}", path_, json_reason(error));
  }

 private:
  enum class Field { kUnknown, kDtype, kShape, kOffsets };

  bool enter() {
    if (++depth_ > kMaxDepth) {
      throw Error("{}: header: nested more than {} levels", path_, kMaxDepth);
    }
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  void begin_field(const std::string& key) {
    Entry& entry = entries_.back();
    bool Entry::*seen = nullptr;
    if (key == "dtype") {
      field_ = Field::kDtype;
      seen = &Entry::has_dtype;
    } else if (key == "shape") {
      field_ = Field::kShape;
      seen = &Entry::has_shape;
    } else if (key == "data_offsets") {
      field_ = Field::kOffsets;
      seen = &Entry::has_offsets;
    } else {
      field_ = Field::kUnknown;
      return;
    }
    if (entry.*seen) fail_field("occurs twice");
    entry.*seen = true;
  }

  // Checks that a plain value may stand here and says which field it belongs to.
  Field scalar(std::string_view found) {
    if (depth_ == 0) throw Error("{}: header: expected a JSON object, found {}", path_, found);
    if (depth_ == 1) fail_key(fmt::format("expected an object, found {}", found));
    if (field_ == Field::kUnknown) return field_;
    const bool is_string = found == "a string";
    if (is_string != (field_ == Field::kDtype) || (depth_ == 2) != (field_ == Field::kDtype)) {
      fail_field(fmt::format("found {}", found));
    }
    return field_;
  }
  bool other_scalar(std::string_view found) {
    if (scalar(found) != Field::kUnknown) fail_field(fmt::format("found {}", found));
    return true;
  }

  [[noreturn]] void fail_key(std::string_view message) const {
    throw Error("{}: header: {}: {}", path_, printable(key_), message);
  }
  [[noreturn]] void fail_field(std::string_view found) const {
    const std::string_view expected =
        field_ == Field::kDtype   ? "dtype: expected a string"
        : field_ == Field::kShape ? "shape: expected one list of non-negative integers"
                                  : "data_offsets: expected one list of two non-negative integers";
    throw Error("{}: tensor {}: {}, {}", path_, printable(key_), expected, found);
  }

  const std::string& path_;
  std::vector<Entry> entries_;
  std::unordered_set<std::string> names_;
  std::string key_;
  bool in_metadata_ = false;
  Field field_ = Field::kUnknown;
  int depth_ = 0;
};

// Bytes of the data that lie between tensors or twice in one, as [begin, end).
void check_coverage(std::vector<const Entry*> entries, int64_t data_bytes,
                    const std::string& path) {
  std::sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->offsets[0], a->offsets[1]) < std::pair(b->offsets[0], b->offsets[1]);
  });
  int64_t covered = 0;
  const Entry* previous = nullptr;
  for (const Entry* entry : entries) {
    const int64_t begin = entry->offsets[0];
    if (begin < covered) {
      throw Error("{}: tensors {} and {} overlap at byte {} of the data", path,
                  printable(previous->name), printable(entry->name), begin);
    }
    if (begin > covered) {
      throw Error("{}: bytes {} to {} of the data, before tensor {}, belong to no tensor", path,
                  covered, begin, printable(entry->name));
    }
    covered = entry->offsets[1];
    if (entry->offsets[1] > begin) previous = entry;
  }
  if (covered != data_bytes) {
    throw Error("{}: {} bytes after the last tensor belong to no tensor", path,
                data_bytes - covered);
  }
}

// The number of elements; nullopt if it overflows.
std::optional<int64_t> num_elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(n, size, &n)) return std::nullopt;
  }
  return n;
}

StoredTensor make_tensor(Entry entry, std::span<const std::byte> data,
                         const std::shared_ptr<const void>& owner, const std::string& path) {
  const auto fail = [&](const std::string& message) {
    throw Error("{}: tensor {}: {}", path, printable(entry.name), message);
  };
  if (!entry.has_dtype) fail("no dtype");
  if (!entry.has_shape) fail("no shape");
  if (entry.offsets.size() != 2) fail("data_offsets: expected a list of two integers");
  const ElementType* type = find_element_type(entry.dtype);
  if (type == nullptr) fail(fmt::format("unknown dtype \"{}\"", printable(entry.dtype, 40)));

  const std::optional<int64_t> elements = num_elements(entry.shape);
  int64_t bits = 0;
  if (!elements || __builtin_mul_overflow(*elements, type->bits, &bits)) {
    fail(fmt::format("shape [{}] is too large", fmt::join(entry.shape, ", ")));
  }
  const int64_t begin = entry.offsets[0], end = entry.offsets[1];
  const auto data_bytes = static_cast<int64_t>(data.size());
  if (begin > end) fail(fmt::format("data_offsets [{}, {}] are reversed", begin, end));
  if (bits % 8 != 0 || end - begin != bits / 8) {
    fail(fmt::format("{} of shape [{}] takes {} bytes, but data_offsets [{}, {}] cover {}",
                     entry.dtype, fmt::join(entry.shape, ", "), (bits + 7) / 8, begin, end,
                     end - begin));
  }
  if (end > data_bytes) {
    fail(fmt::format("ends at byte {} of the data, but the file holds only {}; is it cut short?",
                     end, data_bytes));
  }

  StoredTensor tensor;
  tensor.name = std::move(entry.name);
  tensor.file = path;
  tensor.dtype_name = entry.dtype;
  tensor.stored_bytes = end - begin;
  if (entry.shape.empty()) {
    tensor.weight.shape = Shape{1};
  } else if (entry.shape.size() > Shape::kMaxRank) {
    tensor.weight.shape = Shape{*elements};
    tensor.dtype_name += fmt::format(" of {} dimensions", entry.shape.size());
    return tensor;
  } else {
    tensor.weight.shape = Shape(entry.shape);
  }
  if (*elements > 0) {
    tensor.weight.format = type->format;
    tensor.weight.data = data.data() + begin;
    tensor.weight.owner = owner;
  }
  return tensor;
}

}  // namespace

std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes,
                                            const std::shared_ptr<const void>& owner,
                                            const std::string& path) {
  if (bytes.size() < kPrefixBytes) {
    throw Error("{}: only {} bytes; not a safetensors file", path, bytes.size());
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    throw Error(
        "{}: header size (byte 0): {} bytes, more than the {} allowed; not a safetensors "
        "file?",
        path, header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > bytes.size() - kPrefixBytes) {
    throw Error("{}: header size (byte 0): {} bytes, but only {} follow; is the file cut short?",
                path, header_bytes, bytes.size() - kPrefixBytes);
  }
  const auto* header = reinterpret_cast<const char*>(bytes.data() + kPrefixBytes);
  if (header_bytes == 0 || header[0] != '{') {
    throw Error("{}: header (byte 8): does not start with '{{'; not a safetensors file", path);
  }
  HeaderHandler handler(path);
  Json::sax_parse(header, header + header_bytes, &handler);

  const std::span<const std::byte> data = bytes.subspan(kPrefixBytes + header_bytes);
  std::vector<const Entry*> entries;
  std::vector<StoredTensor> tensors;
  for (Entry& entry : handler.entries()) {
    tensors.push_back(make_tensor(entry, data, owner, path));
    entries.push_back(&entry);
  }
  check_coverage(std::move(entries), static_cast<int64_t>(data.size()), path);
  return tensors;
}

std::vector<StoredTensor> read_safetensors(const std::filesystem::path& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  return parse_safetensors(file->bytes(), file, path.string());
}

}  // namespace braid
