#include "checkpoint/pack_file.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/checksum.h"
#include "checkpoint/gguf_cursor.h"
#include "checkpoint/printable.h"
#include "quant/panels.h"

namespace braid {
namespace {

using namespace pack_layout;

// A format by the name a pack gives it, nullptr if there is none.
const QuantFormat* find_format(std::string_view name) {
  const QuantFormat* format = find_quant_format(name);
  return format != nullptr ? format : find_panel_format(name);
}

// The shape, with 1 ≤ rank ≤ 4 and a number of elements (after filling up panels) that leaves room
// for their bytes.
Shape read_shape(GgufCursor& cursor, const std::string& label) {
  const size_t rank_at = cursor.offset();
  const auto rank = cursor.read<uint32_t>(label + ": number of dimensions");
  if (rank < 1 || rank > Shape::kMaxRank) {
    cursor.fail(rank_at, label, fmt::format("{} dimensions", rank));
  }
  std::vector<int64_t> sizes;
  int64_t product = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const size_t at = cursor.offset();
    const auto size = cursor.read<uint64_t>(label + ": dimension");
    // Room for 16 rows of filling and 8 bytes an element.
    const uint64_t filled = std::max<uint64_t>(size, kPanelRows);
    if (filled > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
        __builtin_mul_overflow(product, static_cast<int64_t>(filled), &product) ||
        product > std::numeric_limits<int64_t>::max() / 64) {
      cursor.fail(at, label, fmt::format("dimension {} makes the tensor impossibly large", size));
    }
    sizes.push_back(static_cast<int64_t>(size));
  }
  return Shape(sizes);
}

void check_format(const GgufCursor& cursor, size_t at, const std::string& label,
                  const Weight& weight, uint64_t bytes) {
  const QuantFormat& format = *weight.format;
  if (weight.shape.num_elements() == 0 || weight.cols() % format.block_elements != 0) {
    cursor.fail(at, label,
                fmt::format("shape {} in format {}", to_string(weight.shape), format.name));
  }
  if (format.panels() && weight.shape.rank() != 2 && weight.shape.rank() != 3) {
    cursor.fail(at, label, fmt::format("{} dimensions in panels", weight.shape.rank()));
  }
  if (static_cast<uint64_t>(weight.size_bytes()) != bytes) {
    cursor.fail(at, label,
                fmt::format("{} bytes, but shape {} in format {} has {}", bytes,
                            to_string(weight.shape), format.name, weight.size_bytes()));
  }
}

PackFile::Entry read_entry(GgufCursor& cursor, uint64_t index, std::span<const std::byte> bytes,
                           uint64_t header_bytes, const std::shared_ptr<const void>& owner,
                           const std::string& path) {
  PackFile::Entry entry;
  StoredTensor& tensor = entry.tensor;
  tensor.name = cursor.read_string(fmt::format("name of tensor {}", index));
  const std::string label = "tensor " + printable(tensor.name);
  tensor.file = path;
  tensor.dtype_name = cursor.read_string(label + ": type");
  const size_t format_at = cursor.offset();
  const std::string format_name(cursor.read_string(label + ": format"));
  if (!format_name.empty()) {
    tensor.weight.format = find_format(format_name);
    if (tensor.weight.format == nullptr) {
      cursor.fail(format_at, label, fmt::format("unknown format '{}'", printable(format_name)));
    }
  }
  tensor.weight.shape = read_shape(cursor, label);
  const size_t place_at = cursor.offset();
  entry.offset = cursor.read<uint64_t>(label + ": offset");
  const auto size = cursor.read<uint64_t>(label + ": bytes");
  entry.checksum = cursor.read<uint64_t>(label + ": checksum");
  if (entry.offset < header_bytes || entry.offset % kAlignment != 0 ||
      entry.offset > bytes.size() || size > bytes.size() - entry.offset) {
    cursor.fail(
        place_at, label,
        fmt::format("{} bytes at {} do not lie within the file's data", size, entry.offset));
  }
  if (tensor.weight.format != nullptr) check_format(cursor, format_at, label, tensor.weight, size);
  tensor.stored_bytes = static_cast<int64_t>(size);
  tensor.weight.data = bytes.data() + entry.offset;
  tensor.weight.owner = owner;
  return entry;
}

void check_overlaps(const std::vector<PackFile::Entry>& entries, const std::string& path) {
  std::vector<const PackFile::Entry*> order;
  std::set<std::string_view> names;
  for (const PackFile::Entry& entry : entries) {
    if (!names.insert(entry.tensor.name).second) {
      throw Error("{}: tensor {} occurs twice", path, printable(entry.tensor.name));
    }
    if (entry.tensor.stored_bytes > 0) order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const PackFile::Entry* a, const PackFile::Entry* b) {
    return a->offset < b->offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const PackFile::Entry& before = *order[i - 1];
    if (order[i]->offset < before.offset + static_cast<uint64_t>(before.tensor.stored_bytes)) {
      throw Error("{}: tensor {} overlaps tensor {}", path, printable(order[i]->tensor.name),
                  printable(before.tensor.name));
    }
  }
}

}  // namespace

PackFile PackFile::parse(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner,
                         const std::string& path) {
  if (bytes.size() < kFixedBytes || std::memcmp(bytes.data(), kMagic, 8) != 0) {
    throw Error("{}: not a packed model; is the file cut short?", path);
  }
  GgufCursor fixed(bytes, path);
  fixed.read<uint64_t>("magic");
  const auto file_version = fixed.read<uint32_t>("file version");
  const auto panel_version = fixed.read<uint32_t>("layout version");
  if (file_version != kFileVersion || panel_version != kPanelLayoutVersion) {
    throw Error(
        "{}: packed for layout {}.{}, this program reads {}.{}; pack the model again (braid pack)",
        path, file_version, panel_version, kFileVersion, kPanelLayoutVersion);
  }
  const auto header_bytes = fixed.read<uint64_t>("header size");
  const auto file_bytes = fixed.read<uint64_t>("file size");
  const auto checksum = fixed.read<uint64_t>("header checksum");
  if (file_bytes != bytes.size()) {
    throw Error("{}: {} bytes, but {} were written; is the file cut short?", path, bytes.size(),
                file_bytes);
  }
  if (header_bytes < kFixedBytes || header_bytes > file_bytes) {
    throw Error("{}: a header of {} bytes in a file of {}", path, header_bytes, file_bytes);
  }
  Checksum actual;
  actual.add(bytes.subspan(kFixedBytes, header_bytes - kFixedBytes));
  if (actual.value() != checksum) throw Error("{}: the header is damaged", path);

  GgufCursor cursor(bytes.first(header_bytes), path);
  for (uint64_t i = 0; i < kFixedBytes / 8; ++i) cursor.read<uint64_t>("header");
  PackFile pack;
  pack.bytes = bytes;
  pack.source = cursor.read_string("source");
  pack.fingerprint = cursor.read<uint64_t>("source fingerprint");
  const uint64_t count = cursor.read_count("number of tensors", 3 * 8 + 4 + 8 + 3 * 8);
  pack.entries.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    pack.entries.push_back(read_entry(cursor, i, bytes, header_bytes, owner, path));
  }
  check_overlaps(pack.entries, path);
  return pack;
}

PackFile PackFile::open(const std::filesystem::path& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  return parse(file->bytes(), file, path.string());
}

void PackFile::verify() const {
  for (const Entry& entry : entries) {
    Checksum checksum;
    checksum.add({entry.tensor.weight.data, static_cast<size_t>(entry.tensor.stored_bytes)});
    if (checksum.value() != entry.checksum) {
      throw Error("{}: the data of tensor {} are damaged; pack the model again", entry.tensor.file,
                  printable(entry.tensor.name));
    }
  }
}

}  // namespace braid
