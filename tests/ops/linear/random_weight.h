#pragma once

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "ops/op_test.h"
#include "quant/channel_format.h"
#include "quant/group_format.h"
#include "quant/panels.h"
#include "quant/schemes/schemes.h"
#include "quant/weight.h"

namespace braid {

// Byte offsets of the float16 numbers of a block, and of the bytes that hold codes. Clearing the
// codes of a format with mins leaves the mins.
struct BlockFields {
  std::vector<size_t> halves;
  size_t codes_begin, codes_end;
  bool has_min;
};
inline BlockFields block_fields(FormatId id) {
  switch (id) {
    case FormatId::kQ4_1:
      return {{0, 2}, 4, 20, true};
    case FormatId::kQ5_1:
      return {{0, 2}, 4, 24, true};
    case FormatId::kQ2K:
      return {{80, 82}, 16, 80, true};
    case FormatId::kQ3K:
      return {{108}, 0, 108, false};
    case FormatId::kQ4K:
      return {{0, 2}, 16, 144, true};
    case FormatId::kQ5K:
      return {{0, 2}, 16, 176, true};
    case FormatId::kQ6K:
      return {{208}, 0, 208, false};
    case FormatId::kW4G32Asym:
    case FormatId::kW4G64Asym:
    case FormatId::kW4G128Asym:
      return {{}, 4, static_cast<size_t>(quant_format(id).block_bytes), true};
    case FormatId::kW4G32AsymF32:
    case FormatId::kW4G64AsymF32:
    case FormatId::kW4G128AsymF32:
      return {{}, 6, static_cast<size_t>(quant_format(id).block_bytes), true};
    default:
      return {{0}, 2, static_cast<size_t>(quant_format(id).block_bytes), false};
  }
}

// Random codes and scales (plain formats: normal values). The payload lies at an odd address, as
// files may have it.
inline Weight random_weight(Random& random, FormatId id, const Shape& shape) {
  Weight w;
  w.format = &quant_format(id);
  w.shape = shape;
  const int64_t elements = shape.num_elements();
  const size_t size = static_cast<size_t>(w.size_bytes());
  auto storage = std::make_shared<std::vector<std::byte>>(size + 1);
  std::byte* const data = storage->data() + 1;
  if (w.format->plain()) {
    std::vector<float> values(static_cast<size_t>(elements));
    for (float& x : values) x = random.normal();
    quantize(*w.format, values.data(), elements, data);
  } else if (const auto groups = as_group_format(*w.format)) {
    std::vector<uint8_t> codes(static_cast<size_t>(groups->group));
    for (size_t block = 0; block < size; block += w.format->block_bytes) {
      for (uint8_t& code : codes) code = static_cast<uint8_t>(random.integer(0, 15));
      const int zero = groups->asymmetric ? static_cast<int>(random.integer(0, 16)) : 8;
      write_group(*w.format, {random.normal(0.1f), zero}, codes.data(), data + block);
    }
  } else if (id == FormatId::kW8C) {
    std::vector<int8_t> codes(static_cast<size_t>(w.cols()));
    for (int64_t row = 0; row < elements / w.cols(); ++row) {
      for (int8_t& code : codes) code = static_cast<int8_t>(random.integer(-128, 127));
      write_channel_row(random.normal(0.01f), codes.data(), w.cols(), data + row * w.row_bytes());
    }
  } else {
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(random.integer(0, 255));
    for (size_t block = 0; block < size; block += w.format->block_bytes) {
      for (const size_t offset : block_fields(id).halves) {
        const Half scale = to_half(random.normal(0.1f));
        std::memcpy(data + block + offset, &scale, sizeof(scale));
      }
    }
  }
  w.data = data;
  w.owner = storage;
  return w;
}

// The same in the memory of the device that the running test is for.
inline Weight on_target(const Weight& w) {
  if (op_test_device.is_cpu()) return w;
  Weight copy = w;
  const size_t size = static_cast<size_t>(w.size_bytes());
  const auto storage = std::make_shared<Buffer>(size, op_test_device);
  std::memcpy(storage->data(), w.data, size);
  copy.data = storage->data();
  copy.owner = storage;
  copy.device = op_test_device;
  return copy;
}

// The same matrices in panels, aligned as a panel must be.
inline Weight in_panels(const Weight& w) {
  Weight panels = w;
  panels.format = panel_format(*w.format);
  const int64_t matrices = w.shape.num_elements() / (w.rows() * w.cols());
  const auto storage = std::make_shared<Buffer>(static_cast<size_t>(panels.size_bytes()), Device{});
  for (int64_t i = 0; i < matrices; ++i) {
    pack_panels(*w.format, w.data + i * w.matrix_bytes(), w.rows(), w.cols(),
                storage->data() + i * panels.matrix_bytes());
  }
  panels.data = storage->data();
  panels.owner = storage;
  return panels;
}

// The same matrix with all codes cleared: the mins, for formats that have them.
inline Weight mins_of(const Weight& w) {
  Weight mins = w;
  const size_t size = static_cast<size_t>(w.size_bytes());
  auto storage = std::make_shared<std::vector<std::byte>>(w.data, w.data + size);
  const BlockFields fields = block_fields(w.format->id);
  for (size_t block = 0; block < size; block += w.format->block_bytes) {
    std::memset(storage->data() + block + fields.codes_begin, 0,
                fields.codes_end - fields.codes_begin);
  }
  mins.data = storage->data();
  mins.owner = storage;
  return mins;
}

}  // namespace braid
