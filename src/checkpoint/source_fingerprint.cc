#include "checkpoint/source_fingerprint.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "base/mapped_file.h"
#include "checkpoint/checksum.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSampledTensors = 64;
constexpr int64_t kSampleBytes = 256;

class Fields {
 public:
  void add(int64_t value) { checksum_.add(std::as_bytes(std::span(&value, 1))); }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void add(std::span<const std::byte> bytes) {
    add(static_cast<int64_t>(bytes.size()));
    checksum_.add(bytes);
  }
  uint64_t value() const { return checksum_.value(); }

 private:
  Checksum checksum_;
};

// From its middle: the first rows of a table may be special tokens that all models leave alone.
void add_sample(const StoredTensor& tensor, Fields& fields) {
  if (tensor.parts != nullptr) {
    for (const StoredTensor& part : *tensor.parts) add_sample(part, fields);
    return;
  }
  if (tensor.weight.data == nullptr) return;
  const int64_t bytes = std::min(kSampleBytes, tensor.stored_bytes);
  const int64_t begin = (tensor.stored_bytes - bytes) / 2;
  fields.add(std::span(tensor.weight.data + begin, static_cast<size_t>(bytes)));
}

void add_tensors(const WeightMap& weights, Fields& fields) {
  const size_t count = weights.size();
  const size_t stride = std::max<size_t>(1, (count + kSampledTensors - 1) / kSampledTensors);
  std::set<std::string> paths;
  size_t index = 0;
  for (const auto& [name, tensor] : weights.tensors()) {
    fields.add(name);
    fields.add(tensor.dtype_name);
    fields.add(tensor.weight.shape.rank());
    for (const int64_t size : tensor.weight.shape.sizes()) fields.add(size);
    fields.add(tensor.stored_bytes);
    if (index++ % stride == 0) add_sample(tensor, fields);
    paths.insert(tensor.file);
  }
  for (const std::string& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) continue;
    fields.add(fs::path(path).filename().string());
    fields.add(int64_t{status.st_size});
    fields.add(int64_t{status.st_mtim.tv_sec});
    fields.add(int64_t{status.st_mtim.tv_nsec});
  }
}

}  // namespace

uint64_t fingerprint(const ModelFiles& files) {
  Fields fields;
  add_tensors(files.weights(), fields);
  if (files.is_gguf()) {
    fields.add(files.gguf_file().metadata_bytes);
  } else {
    for (const char* name : kFolderTextFiles) {
      const fs::path path = fs::path(files.origin()) / name;
      std::error_code error;
      if (!fs::is_regular_file(path, error)) continue;
      fields.add(name);
      fields.add(MappedFile::open(path)->bytes());
    }
  }
  return fields.value();
}

}  // namespace braid
