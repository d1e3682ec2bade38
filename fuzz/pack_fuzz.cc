#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "checkpoint/checksum.h"
#include "checkpoint/pack_file.h"
#include "weights_probe.h"

// Sizes and checksum of the header are made true first: otherwise hardly an input came past them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> copy(data, data + size);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(copy));
  if (size >= braid::pack_layout::kFixedBytes) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, copy.data() + 16, 8);
    const uint64_t file_bytes = size;
    std::memcpy(copy.data() + 24, &file_bytes, 8);
    if (header_bytes >= braid::pack_layout::kFixedBytes && header_bytes <= size) {
      braid::Checksum checksum;
      checksum.add(bytes.first(header_bytes).subspan(braid::pack_layout::kFixedBytes));
      const uint64_t value = checksum.value();
      std::memcpy(copy.data() + 32, &value, 8);
    }
  }
  try {
    const braid::PackFile pack = braid::PackFile::parse(bytes, nullptr, "input");
    std::vector<braid::StoredTensor> tensors;
    for (const braid::PackFile::Entry& entry : pack.entries) tensors.push_back(entry.tensor);
    braid::fuzz::probe_weights(tensors);
    pack.verify();
  } catch (const braid::Error&) {
  }
  return 0;
}
