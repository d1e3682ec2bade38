#include <filesystem>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/gguf.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxParts = 99'999;

// "model-00002-of-00003.gguf" -> {"model", 2, 3}.
struct PartName {
  std::string prefix;
  int64_t number, count;
};

std::optional<PartName> parse_part_name(const std::string& name) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (name.size() < kForm.size()) return std::nullopt;
  const size_t start = name.size() - kForm.size();
  for (size_t i = 0; i < kForm.size(); ++i) {
    const char c = name[start + i];
    if (kForm[i] == '0' ? c < '0' || c > '9' : c != kForm[i]) return std::nullopt;
  }
  return PartName{name.substr(0, start), std::stoll(name.substr(start + 1, 5)),
                  std::stoll(name.substr(start + 10, 5))};
}

GgufFile read_part(const fs::path& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  return GgufFile::parse(file->bytes(), file, path.string());
}

// The paths of all parts, in order. Throws Error naming the absent ones.
std::vector<fs::path> part_paths(const fs::path& path, int64_t count) {
  const std::optional<PartName> name = parse_part_name(path.filename().string());
  if (!name || name->count != count) {
    throw Error(
        "{}: part of a set of {} files, which must be named like "
        "model-00001-of-{:05}.gguf for the others to be found",
        path.string(), count, count);
  }
  std::vector<fs::path> paths;
  std::vector<std::string> absent;
  for (int64_t i = 1; i <= count; ++i) {
    std::string part = fmt::format("{}-{:05}-of-{:05}.gguf", name->prefix, i, count);
    paths.push_back(path.parent_path() / part);
    std::error_code error;
    if (!fs::exists(paths.back(), error)) absent.push_back(printable(part, 200));
  }
  if (!absent.empty()) {
    throw Error("{}: {} of {} parts of the model are missing: {}", path.string(), absent.size(),
                count, join_some(absent));
  }
  return paths;
}

void check_part(const GgufMetadata& metadata, int64_t number, int64_t count) {
  const int64_t stated_count = metadata.integer("split.count");
  if (stated_count != count) {
    metadata.fail("split.count", fmt::format("{}, but the set has {} parts", stated_count, count));
  }
  const int64_t stated_number = metadata.integer("split.no");
  if (stated_number != number) {
    metadata.fail("split.no", fmt::format("{}, but by its name the file is part {} (from 0)",
                                          stated_number, number));
  }
}

}  // namespace

std::shared_ptr<const GgufFile> GgufFile::open(const fs::path& path) {
  auto whole = std::make_shared<GgufFile>(read_part(path));
  const int64_t count = whole->metadata.find_integer("split.count").value_or(1);
  if (count < 0 || count > kMaxParts) {
    whole->metadata.fail("split.count", fmt::format("{} is no number of parts", count));
  }
  if (count <= 1) return whole;

  const std::vector<fs::path> paths = part_paths(path, count);
  *whole = read_part(paths.front());
  check_part(whole->metadata, 0, count);
  std::map<std::string, std::string> seen;  // tensor -> file
  for (const StoredTensor& tensor : whole->tensors) seen.emplace(tensor.name, tensor.file);
  for (int64_t i = 1; i < count; ++i) {
    GgufFile part = read_part(paths[static_cast<size_t>(i)]);
    check_part(part.metadata, i, count);
    for (StoredTensor& tensor : part.tensors) {
      const auto [it, is_new] = seen.emplace(tensor.name, tensor.file);
      if (!is_new) {
        throw Error("{}: tensor {} is also in {}", tensor.file, printable(tensor.name), it->second);
      }
      whole->tensors.push_back(std::move(tensor));
    }
  }
  const auto stated = whole->metadata.find_integer("split.tensors.count");
  if (stated && *stated != static_cast<int64_t>(whole->tensors.size())) {
    whole->metadata.fail("split.tensors.count",
                         fmt::format("{}, but the parts hold {}", *stated, whole->tensors.size()));
  }
  return whole;
}

}  // namespace braid
