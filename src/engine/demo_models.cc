#include "engine/demo_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "demo:";

std::vector<fs::path> demo_folders() {
  std::vector<fs::path> folders;
  if (const char* folder = std::getenv("BRAID_DEMO_MODELS")) folders.emplace_back(folder);
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    folders.push_back(program.parent_path() / "../../demo_models");
    folders.push_back(program.parent_path() / "../share/braid/demo_models");
  }
  return folders;
}

}  // namespace

std::vector<std::string> demo_model_names() {
  std::vector<std::string> names;
  for (const fs::path& folder : demo_folders()) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      if (fs::exists(entry.path() / "config.json", error)) {
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
