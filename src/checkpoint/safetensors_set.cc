#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/printable.h"
#include "checkpoint/safetensors.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// What to tell someone whose folder holds no safetensors checkpoint.
[[noreturn]] void fail_without_weights(const fs::path& folder) {
  std::vector<std::string> shards, ggufs, torch;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    if (extension == ".safetensors") shards.push_back(printable(name));
    if (extension == ".gguf") ggufs.push_back(printable(name));
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
      torch.push_back(printable(name));
    }
  }
  const std::string path = folder.string();
  if (error) throw Error("{}: cannot list the folder: {}", path, error.message());
  if (!shards.empty()) {
    throw Error("{}: neither {} nor {}, which should list {}", path, kSingleFile, kIndexFile,
                join_some(shards, ", ", 3));
  }
  if (!ggufs.empty()) {
    throw Error("{}: no {}; for the GGUF file, give its own path: {}", path, kSingleFile,
                (folder / ggufs.front()).string());
  }
  if (!torch.empty()) {
    throw Error(
        "{}: only PyTorch weights ({}), which are not read, as such files can run code; "
        "convert them with save_pretrained(..., safe_serialization=True) of transformers",
        path, join_some(torch, ", ", 3));
  }
  throw Error("{}: no weights: neither {} nor {}", path, kSingleFile, kIndexFile);
}

bool is_present(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// tensor -> shard.
using Index = std::map<std::string, std::string, std::less<>>;

Index read_index(const fs::path& path) {
  const ConfigReader reader(read_file(path), path.string());
  const std::optional<ConfigReader> weight_map = reader.find_object("weight_map");
  if (!weight_map) reader.fail("weight_map", "missing; it should map tensors to files");
  Index index;
  for (const std::string& tensor : weight_map->keys()) {
    const std::string shard = weight_map->string(tensor);
    // A checkpoint must not reach outside its folder.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != shard.npos) {
      weight_map->fail(tensor, fmt::format("\"{}\" is not a plain file name", printable(shard)));
    }
    index.emplace(tensor, shard);
  }
  return index;
}

bool names_file(const Index& index, std::string_view file) {
  for (const auto& [tensor, shard] : index) {
    if (shard == file) return true;
  }
  return false;
}

WeightMap read_sharded(const fs::path& folder, const Index& index) {
  const std::string index_path = (folder / kIndexFile).string();
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, shard] : index) shards[shard].push_back(tensor);

  std::vector<std::string> absent;
  for (const auto& [shard, names] : shards) {
    if (!is_present(folder / shard)) {
      absent.push_back(fmt::format("{} ({} tensors)", printable(shard), names.size()));
    }
  }
  if (!absent.empty()) {
    throw Error("{}: {} of {} files missing from {}: {}", index_path, absent.size(), shards.size(),
                folder.string(), join_some(absent));
  }

  WeightMap map;
  std::vector<std::string> faults;
  for (const auto& [shard, names] : shards) {
    for (StoredTensor& tensor : read_safetensors(folder / shard)) {
      const auto it = index.find(tensor.name);
      if (it == index.end()) {
        faults.push_back(
            fmt::format("tensor {} of {} is not listed", printable(tensor.name), printable(shard)));
      } else if (it->second != shard) {
        faults.push_back(fmt::format("tensor {} is in {} but listed in {}", printable(tensor.name),
                                     printable(shard), printable(it->second)));
      } else {
        map.add(std::move(tensor));
      }
    }
    for (const std::string& name : names) {
      if (map.find(name) == nullptr) {
        faults.push_back(
            fmt::format("tensor {} is missing from {}", printable(name), printable(shard)));
      }
    }
  }
  if (!faults.empty()) throw Error("{}: {}", index_path, join_some(faults, "; "));
  return map;
}

}  // namespace

WeightMap read_safetensors_folder(const fs::path& folder) {
  const fs::path single = folder / kSingleFile;
  const fs::path index_path = folder / kIndexFile;
  WeightMap map;
  const bool has_single = is_present(single);
  if (is_present(index_path)) {
    // A lone model.safetensors wins over an index that does not know it, as in transformers.
    const Index index = read_index(index_path);
    if (!has_single || names_file(index, kSingleFile)) {
      map = read_sharded(folder, index);
      map.set_origin(folder.string());
      return map;
    }
  }
  if (!has_single) fail_without_weights(folder);
  for (StoredTensor& tensor : read_safetensors(single)) map.add(std::move(tensor));
  map.set_origin(folder.string());
  return map;
}

}  // namespace braid
