#include "apps/weight_cache.h"

#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/pack_file.h"
#include "checkpoint/pack_writer.h"
#include "engine/demo_models.h"
#include "quant/panels.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Whether `folder` holds the packed copy of these files, whole as far as its header tells.
bool is_good(const fs::path& folder, uint64_t expected) {
  std::error_code error;
  if (!fs::exists(folder, error)) return false;
  try {
    return PackFile::open(folder / kPackFileName, false).fingerprint == expected;
  } catch (const Error& fault) {
    spdlog::debug("weight cache: {}", fault.what());
    return false;
  }
}

}  // namespace

fs::path user_cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "braid";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache" / "braid";
  return {};
}

std::string cached_model(std::string_view model, const std::string& cache, int num_threads) {
  const std::string given(model);
  if (cache == "off") return given;
  const fs::path base = cache == "auto" ? user_cache_folder() : fs::path(cache);
  if (base.empty()) {
    warn_once("--weight-cache auto: neither XDG_CACHE_HOME nor HOME is set; no cache is used");
    return given;
  }
  const fs::path path = resolve_model(model);
  const ModelFiles files = ModelFiles::open(path);
  if (files.is_packed() || count_panels(files) == 0) return given;
  const uint64_t key = fingerprint(files);
  const fs::path folder = base / fmt::format("{}-{:016x}-{}.{}", path.filename().string(), key,
                                             pack_layout::kFileVersion, kPanelLayoutVersion);
  if (is_good(folder, key)) return folder.string();
  try {
    std::error_code error;
    fs::create_directories(base, error);
    // What is there is damaged.
    fs::remove_all(folder, error);
    ThreadPool pool({.num_threads = num_threads});
    spdlog::info("packing {} into {}", path.string(), folder.string());
    pack_model(path, files, folder, pool);
  } catch (const Error& fault) {
    // Another program may have been faster.
    if (!is_good(folder, key)) {
      spdlog::warn("the weight cache is not used: {}", fault.what());
      return given;
    }
  }
  return folder.string();
}

}  // namespace braid
