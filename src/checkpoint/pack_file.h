#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/weight_map.h"

namespace braid {

// A packed model is a folder with these files, beside copies of the source's other files.
inline constexpr const char* kPackFileName = "model.braid";
inline constexpr const char* kPackMetadataName =
    "metadata.gguf";  // of a GGUF source: all but tensors

// The weights of a packed model: a header that lists the tensors, then their data, each at a
// multiple of 64 bytes. All numbers are little-endian.
//
//   magic, 8 bytes; u32 version of this file; u32 version of the panel layout; u64 bytes of the
//   header, of the file; u64 checksum of the rest of the header; source name; u64 source
//   fingerprint; u64 number of tensors; for each: name, type name in the source, format name
//   (empty: not readable as numbers), u32 number of dimensions, u64 each of them, u64 offset,
//   bytes, checksum
//
// A string is its u64 length and bytes. Anything that changes what the bytes mean changes a
// version.
struct PackFile {
  struct Entry {
    StoredTensor tensor;
    uint64_t offset = 0;
    uint64_t checksum = 0;  // of its data
  };

  std::string source;  // name of the folder or file that was packed
  uint64_t fingerprint = 0;
  std::vector<Entry> entries;
  std::span<const std::byte> bytes;  // of the whole file

  // Maps the file. Checks the header whole, but not the data against their checksums (verify()
  // does). Throws Error naming file and field; versions other than this program's are refused with
  // advice to pack again.
  static PackFile open(const std::filesystem::path& path);
  // From bytes in memory that `owner` keeps alive; `path` is for messages.
  static PackFile parse(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner,
                        const std::string& path);

  // Reads all data. Throws Error naming the first tensor whose data are not what was written.
  void verify() const;
};

namespace pack_layout {

inline constexpr char kMagic[9] = "braidpk\n";
inline constexpr uint32_t kFileVersion = 1;
inline constexpr uint64_t kAlignment = 64;
// Magic, versions, sizes, checksum.
inline constexpr uint64_t kFixedBytes = 8 + 4 + 4 + 8 + 8 + 8;

}  // namespace pack_layout

}  // namespace braid
