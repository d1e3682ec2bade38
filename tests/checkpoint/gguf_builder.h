#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace braid::testing {

// Builds GGUF files by hand, good and bad ones. Dimensions are in the file's order, the contiguous
// one first.
class GgufBuilder {
 public:
  template <typename T>
  static constexpr uint32_t type_of() {
    if constexpr (std::is_same_v<T, uint8_t>) return 0;
    if constexpr (std::is_same_v<T, int8_t>) return 1;
    if constexpr (std::is_same_v<T, uint16_t>) return 2;
    if constexpr (std::is_same_v<T, int16_t>) return 3;
    if constexpr (std::is_same_v<T, uint32_t>) return 4;
    if constexpr (std::is_same_v<T, int32_t>) return 5;
    if constexpr (std::is_same_v<T, float>) return 6;
    if constexpr (std::is_same_v<T, bool>) return 7;
    if constexpr (std::is_same_v<T, std::string>) return 8;
    if constexpr (std::is_same_v<T, uint64_t>) return 10;
    if constexpr (std::is_same_v<T, int64_t>) return 11;
    if constexpr (std::is_same_v<T, double>) return 12;
  }

  GgufBuilder& version(uint32_t version) {
    version_ = version;
    return *this;
  }
  // Pads to `alignment` without saying so in the metadata.
  GgufBuilder& pad_to(uint64_t alignment) {
    alignment_ = alignment;
    return *this;
  }
  GgufBuilder& claim_counts(uint64_t tensors, uint64_t entries) {
    claimed_tensors_ = tensors;
    claimed_entries_ = entries;
    return *this;
  }

  template <typename T>
  GgufBuilder& add(std::string_view key, const T& value) {
    begin_entry(key, type_of<T>());
    put_value(metadata_, value);
    return *this;
  }
  GgufBuilder& add(std::string_view key, const char* value) { return add(key, std::string(value)); }
  template <typename T>
  GgufBuilder& add(std::string_view key, const std::vector<T>& values) {
    begin_entry(key, 9);
    put(metadata_, type_of<T>());
    put(metadata_, uint64_t{values.size()});
    for (size_t i = 0; i < values.size(); ++i) put_value<T>(metadata_, values[i]);
    return *this;
  }
  // An entry whose value is given as bytes.
  GgufBuilder& add_raw(std::string_view key, uint32_t type, std::string_view bytes) {
    begin_entry(key, type);
    metadata_ += bytes;
    return *this;
  }

  // `offset`: where the file claims the data to be; by default where it is.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      std::string_view bytes, std::optional<uint64_t> offset = std::nullopt) {
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_, '\0');
    put_value(infos_, std::string(name));
    put(infos_, static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) put(infos_, dim);
    put(infos_, type);
    put(infos_, offset.value_or(data_.size()));
    data_ += bytes;
    ++num_tensors_;
    return *this;
  }
  GgufBuilder& tensor_f32(std::string_view name, const std::vector<uint64_t>& dims,
                          const std::vector<float>& values) {
    return tensor(name, dims, 0,
                  {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }

  std::string build() const {
    std::string out = "GGUF";
    put(out, version_);
    put(out, claimed_tensors_.value_or(num_tensors_));
    put(out, claimed_entries_.value_or(num_entries_));
    out += metadata_ + infos_;
    out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_, '\0');
    return out + data_;
  }

 private:
  template <typename T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename T>
  static void put_value(std::string& out, const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      put(out, uint64_t{value.size()});
      out += value;
    } else {
      put(out, value);
    }
  }
  void begin_entry(std::string_view key, uint32_t type) {
    put_value(metadata_, std::string(key));
    put(metadata_, type);
    ++num_entries_;
  }

  uint32_t version_ = 3;
  uint64_t alignment_ = 32;
  uint64_t num_tensors_ = 0, num_entries_ = 0;
  std::optional<uint64_t> claimed_tensors_, claimed_entries_;
  std::string metadata_, infos_, data_;
};

}  // namespace braid::testing
