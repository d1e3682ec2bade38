#include "checkpoint/pack_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/checksum.h"
#include "checkpoint/pack_file.h"
#include "checkpoint/source_fingerprint.h"
#include "quant/panels.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using namespace pack_layout;

constexpr int64_t kChunkBytes = 32 << 20;

// A file that is being written; to disk in finish().
class OutputFile {
 public:
  // Messages name `shown`, where the file will be.
  OutputFile(const fs::path& path, fs::path shown)
      : shown_(std::move(shown)),
        fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (fd_ < 0) fail("cannot create");
  }
  ~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write_at(uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("cannot write");
      bytes = bytes.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
  }
  void set_size(uint64_t bytes) {
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail("cannot write");
  }
  void finish() {
    if (::fsync(fd_) != 0) fail("cannot write");
    if (::close(std::exchange(fd_, -1)) != 0) fail("cannot write");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error("{}: {}: {}", shown_.string(), what, std::strerror(errno));
  }

  fs::path shown_;
  int fd_;
};

// A folder beside `target` that takes its name in finish(), or goes away.
class PartialFolder {
 public:
  explicit PartialFolder(const fs::path& target) : target_(target) {
    // "out/" has an empty name.
    if (target_.filename().empty()) target_ = target_.parent_path();
    std::string pattern = target_.string() + std::string(kPartialMark) + "XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw Error("{}: cannot create the folder: {}", target.string(), std::strerror(errno));
    }
    path_ = pattern;
    // mkdtemp leaves it to the owner alone.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    ::chmod(path_.c_str(), 0777 & ~mask);
  }
  ~PartialFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const fs::path& path() const { return path_; }
  void finish() {
    sync(path_);
    // A folder takes the place of an empty one only.
    if (::rename(path_.c_str(), target_.c_str()) != 0) {
      const int reason = errno;
      if (reason == ENOTEMPTY || reason == EEXIST) {
        throw Error("{}: already exists; another program has packed it meanwhile",
                    target_.string());
      }
      throw Error("{}: cannot put the folder in place: {}", target_.string(),
                  std::strerror(reason));
    }
    path_.clear();
    sync(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
  }

 private:
  // Not all file systems can; the files themselves are safe.
  static void sync(const fs::path& folder) {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::fsync(fd);
    ::close(fd);
  }

  fs::path target_, path_;
};

// Little-endian bytes, one field after the other.
class Bytes {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void add(T value) { append(&value, sizeof(value)); }
  void add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    append(text.data(), text.size());
  }
  void add_raw(std::span<const std::byte> bytes) { append(bytes.data(), bytes.size()); }
  std::span<const std::byte> view() const { return std::as_bytes(std::span(bytes_)); }

 private:
  void append(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
  }

  std::string bytes_;
};

uint64_t align(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

// Tables that are looked up by row and never multiplied with stay as they are: a row of a panel is
// spread over sixteen times as much memory.
bool is_lookup_table(const std::string& name, const WeightMap& weights) {
  if (name == "token_embd.weight") return weights.find("output.weight") != nullptr;
  return name == "per_layer_token_embd.weight" || name.ends_with("embed_tokens_per_layer.weight");
}

const QuantFormat* target_format(const StoredTensor& tensor, const WeightMap& weights) {
  const QuantFormat* format = tensor.weight.format;
  if (format == nullptr) return nullptr;
  const int rank = tensor.weight.shape.rank();
  const QuantFormat* panels = panel_format(*format);
  if (panels == nullptr || (rank != 2 && rank != 3) || is_lookup_table(tensor.name, weights)) {
    return format;
  }
  return panels;
}

std::vector<PackFile::Entry> plan(const WeightMap& weights, PackLayout layout) {
  std::vector<PackFile::Entry> entries;
  for (const auto& [name, tensor] : weights.tensors()) {
    PackFile::Entry& entry = entries.emplace_back();
    entry.tensor = tensor;
    Weight& weight = entry.tensor.weight;
    const bool made = static_cast<bool>(tensor.convert);
    if (made) {
      // Of parts, which have no format until then; its data are made when they are written.
      weight.format = find_quant_format(tensor.dtype_name);
      BRAID_CHECK(weight.format != nullptr, "{}: {}", tensor.name, tensor.dtype_name);
      entry.tensor.parts = nullptr;
      entry.tensor.convert = nullptr;
    }
    if (layout == PackLayout::kPanels) weight.format = target_format(entry.tensor, weights);
    if (weight.format != nullptr) entry.tensor.stored_bytes = weight.size_bytes();
    if (weight.format != nullptr && weight.format->panels()) {
      entry.tensor.dtype_name = weight.format->name;
    }
    // A type of unknown size, which no model can use.
    if (weight.data == nullptr && !made) entry.tensor.stored_bytes = 0;
  }
  return entries;
}

void add_header_entries(Bytes& bytes, const std::vector<PackFile::Entry>& entries,
                        uint64_t first_offset) {
  for (const PackFile::Entry& entry : entries) {
    const StoredTensor& tensor = entry.tensor;
    bytes.add(tensor.name);
    bytes.add(tensor.dtype_name);
    bytes.add(tensor.weight.format != nullptr ? tensor.weight.format->name : std::string_view());
    bytes.add(static_cast<uint32_t>(tensor.weight.shape.rank()));
    for (const int64_t size : tensor.weight.shape.sizes()) bytes.add(static_cast<uint64_t>(size));
    bytes.add(first_offset + entry.offset);
    bytes.add(static_cast<uint64_t>(tensor.stored_bytes));
    bytes.add(entry.checksum);
  }
}

// The tensors' data, in order, from `first_offset`; sets the checksums.
class DataWriter {
 public:
  DataWriter(OutputFile& file, uint64_t first_offset, int64_t total_bytes, ThreadPool& pool,
             const PackOptions& options)
      : file_(file),
        first_offset_(first_offset),
        total_bytes_(total_bytes),
        pool_(pool),
        options_(options) {}

  void write(const Weight& source, PackFile::Entry& entry) {
    Checksum checksum;
    uint64_t offset = first_offset_ + entry.offset;
    const auto put = [&](std::span<const std::byte> bytes) {
      checksum.add(bytes);
      file_.write_at(offset, bytes);
      offset += bytes.size();
      done_bytes_ += static_cast<int64_t>(bytes.size());
      if (options_.progress && done_bytes_ >= next_report_) {
        next_report_ = done_bytes_ + kChunkBytes;
        options_.progress(done_bytes_, total_bytes_);
      }
    };
    const Weight& target = entry.tensor.weight;
    if (target.format != nullptr && target.format->panels()) {
      const int64_t matrices = target.size_bytes() / target.matrix_bytes();
      for (int64_t m = 0; m < matrices; ++m) {
        write_panels(source, source.data + m * source.matrix_bytes(), put);
      }
    } else {
      std::span<const std::byte> rest(source.data, static_cast<size_t>(entry.tensor.stored_bytes));
      while (!rest.empty()) {
        const size_t size = std::min<size_t>(rest.size(), kChunkBytes);
        put(rest.first(size));
        rest = rest.subspan(size);
      }
    }
    entry.checksum = checksum.value();
  }

 private:
  template <typename Put>
  void write_panels(const Weight& source, const std::byte* matrix, const Put& put) {
    const int64_t rows = source.rows(), cols = source.cols(), row_bytes = source.row_bytes();
    const int64_t panels_at_once = std::max<int64_t>(1, kChunkBytes / (kPanelRows * row_bytes));
    for (int64_t first = 0; first < rows; first += panels_at_once * kPanelRows) {
      const int64_t count = std::min(rows - first, panels_at_once * kPanelRows);
      const int64_t panels = (count + kPanelRows - 1) / kPanelRows;
      buffer_.resize(static_cast<size_t>(panels * kPanelRows * row_bytes));
      pool_.parallel_for(panels, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t p = begin; p < end; ++p) {
          const int64_t row = p * kPanelRows;
          pack_panels(*source.format, matrix + (first + row) * row_bytes,
                      std::min<int64_t>(kPanelRows, count - row), cols,
                      buffer_.data() + row * row_bytes);
        }
      });
      put(buffer_);
    }
  }

  OutputFile& file_;
  uint64_t first_offset_;
  int64_t total_bytes_, done_bytes_ = 0, next_report_ = 0;
  ThreadPool& pool_;
  const PackOptions& options_;
  std::vector<std::byte> buffer_;
};

int64_t write_weights(const fs::path& path, const fs::path& shown, const std::string& source,
                      const ModelFiles& files, ThreadPool& pool, const PackOptions& options) {
  std::vector<PackFile::Entry> entries = plan(files.weights(), options.layout);
  uint64_t data_bytes = 0;
  for (PackFile::Entry& entry : entries) {
    entry.offset = align(data_bytes);
    data_bytes = entry.offset + static_cast<uint64_t>(entry.tensor.stored_bytes);
  }
  const auto header = [&](uint64_t first_offset) {
    Bytes bytes;
    bytes.add(source);
    bytes.add(fingerprint(files));
    bytes.add(static_cast<uint64_t>(entries.size()));
    add_header_entries(bytes, entries, first_offset);
    return bytes;
  };
  const uint64_t header_bytes = kFixedBytes + header(0).view().size();
  const uint64_t first_offset = align(header_bytes);

  OutputFile file(path, shown);
  DataWriter data(file, first_offset, static_cast<int64_t>(data_bytes), pool, options);
  for (PackFile::Entry& entry : entries) {
    data.write(files.weights().find(entry.tensor.name)->payload(), entry);
  }
  // Last, so that no reader could take a part for the whole.
  const uint64_t file_bytes = first_offset + data_bytes;
  file.set_size(file_bytes);
  const Bytes body = header(first_offset);
  Checksum checksum;
  checksum.add(body.view());
  Bytes fixed;
  fixed.add_raw(std::as_bytes(std::span(kMagic, 8)));
  fixed.add(kFileVersion);
  fixed.add(static_cast<uint32_t>(kPanelLayoutVersion));
  fixed.add(header_bytes);
  fixed.add(file_bytes);
  fixed.add(checksum.value());
  BRAID_CHECK(fixed.view().size() == kFixedBytes);
  file.write_at(kFixedBytes, body.view());
  file.write_at(0, fixed.view());
  file.finish();
  return static_cast<int64_t>(file_bytes);
}

void write_file(const fs::path& path, const fs::path& shown, std::span<const std::byte> bytes) {
  OutputFile file(path, shown);
  file.write_at(0, bytes);
  file.finish();
}

// A GGUF file of the same metadata and no tensors.
void write_metadata(const GgufFile& gguf, const fs::path& path, const fs::path& shown) {
  Bytes bytes;
  bytes.add_raw(std::as_bytes(std::span("GGUF", 4)));
  bytes.add(gguf.version);
  bytes.add(uint64_t{0});
  bytes.add(static_cast<uint64_t>(gguf.metadata.values.size()));
  bytes.add_raw(gguf.metadata_bytes);
  write_file(path, shown, bytes.view());
}

void copy_folder_files(const fs::path& from, const fs::path& to, const fs::path& shown) {
  for (const char* name : kFolderTextFiles) {
    std::error_code error;
    if (!fs::is_regular_file(from / name, error)) continue;
    const std::shared_ptr<const MappedFile> file = MappedFile::open(from / name);
    write_file(to / name, shown / name, file->bytes());
  }
}

void refuse_existing(const fs::path& out) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(out, error);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status) && fs::is_empty(out, error) && !error) return;
  throw Error("{}: already exists; name another folder or remove it", out.string());
}

}  // namespace

PackSize packed_size(const ModelFiles& files) {
  PackSize size;
  for (const auto& [name, tensor] : files.weights().tensors()) {
    size.bytes += tensor.stored_bytes;
    if (tensor.convert) ++size.num_made;
    const QuantFormat* format = target_format(tensor, files.weights());
    if (format != nullptr && format->panels()) ++size.num_panels;
  }
  return size;
}

PackResult pack_model(const fs::path& path, const ModelFiles& files, const fs::path& out,
                      ThreadPool& pool, const PackOptions& options) {
  if (files.is_packed()) throw Error("{}: is packed already", path.string());
  refuse_existing(out);
  PartialFolder partial(out);
  if (files.is_gguf()) {
    write_metadata(files.gguf_file(), partial.path() / kPackMetadataName, out / kPackMetadataName);
  } else {
    copy_folder_files(path, partial.path(), out);
  }
  const std::string source = fs::weakly_canonical(path).filename().string();
  PackResult result;
  result.bytes = write_weights(partial.path() / kPackFileName, out / kPackFileName, source, files,
                               pool, options);
  result.num_tensors = static_cast<int64_t>(files.weights().size());
  if (options.layout == PackLayout::kPanels) result.num_panels = packed_size(files).num_panels;
  partial.finish();
  return result;
}

}  // namespace braid
