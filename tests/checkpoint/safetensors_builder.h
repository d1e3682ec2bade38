#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braid::testing {

// The bytes of a safetensors file with this header and data, however wrong they are.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes += header;
  bytes += data;
  return bytes;
}

// Builds a well-formed file by hand, independently of SafetensorsWriter.
class SafetensorsBuilder {
 public:
  SafetensorsBuilder& add(std::string_view name, std::string_view dtype,
                          const std::vector<int64_t>& shape, std::string_view bytes) {
    if (!header_.empty()) header_ += ',';
    header_ +=
        "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":[";
    for (size_t i = 0; i < shape.size(); ++i) {
      header_ += (i > 0 ? "," : "") + std::to_string(shape[i]);
    }
    header_ += "],\"data_offsets\":[" + std::to_string(data_.size()) + ",";
    data_ += bytes;
    header_ += std::to_string(data_.size()) + "]}";
    return *this;
  }
  SafetensorsBuilder& add_f32(std::string_view name, const std::vector<int64_t>& shape,
                              const std::vector<float>& values) {
    return add(name, "F32", shape,
               {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }

  std::string build() const { return safetensors_bytes("{" + header_ + "}", data_); }

 private:
  std::string header_, data_;
};

}  // namespace braid::testing
