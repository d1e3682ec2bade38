#include "engine/demo_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "checkpoint/model_files.h"
#include "models/registry.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "demo:";

std::vector<fs::path> demo_folders() {
  std::vector<fs::path> folders;
  if (const char* folder = std::getenv("BRAID_DEMO_MODELS"); folder != nullptr && *folder != 0) {
    folders.emplace_back(folder);
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return folders;
  for (const char* relative : {"../demo_models", "../../demo_models", "../share/braid/demo_models"})
    folders.push_back(program.parent_path() / relative);
  return folders;
}

bool is_supported(const fs::path& folder) {
  const std::vector<std::string> types = supported_model_types();
  try {
    const ModelFiles files = ModelFiles::open(folder, /*with_weights=*/false);
    return !is_draft_model(files) &&
           std::find(types.begin(), types.end(), files.model_type()) != types.end();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<std::string> demo_model_names() {
  std::vector<std::string> names;
  for (const fs::path& folder : demo_folders()) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      if (fs::exists(entry.path() / "config.json", error) && is_supported(entry.path())) {
        names.push_back(entry.path().filename().string());
      }
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

fs::path resolve_model(std::string_view model) {
  if (!model.starts_with(kPrefix)) return fs::path(model);
  const std::string name(model.substr(kPrefix.size()));
  if (!name.empty() && name.find('/') == std::string::npos) {
    for (const fs::path& folder : demo_folders()) {
      std::error_code error;
      if (fs::exists(folder / name / "config.json", error)) {
        return fs::weakly_canonical(folder / name);
      }
    }
  }
  const std::vector<std::string> names = demo_model_names();
  if (names.empty()) {
    throw Error("{}: no bundled models found; set BRAID_DEMO_MODELS to the folder that holds them",
                model);
  }
  throw Error("{}: no such bundled model (there are: demo:{})", model, fmt::join(names, ", demo:"));
}

}  // namespace braid
