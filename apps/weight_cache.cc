#include "apps/weight_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "apps/interrupt.h"
#include "apps/progress_bar.h"
#include "apps/table.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/pack_file.h"
#include "checkpoint/pack_writer.h"
#include "checkpoint/source_fingerprint.h"
#include "engine/demo_models.h"
#include "models/registry.h"
#include "quant/panels.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr auto kUnusedAge = std::chrono::hours(24 * 30);
// What the names of copies end with, before any ".partial-..." of an unfinished one.
constexpr std::string_view kNameMark = ".packed";

// Not a reason to go on without a copy, as an Error is.
struct Interrupted {};

// Held by the one program that changes a cache folder; given up when the object or the program
// ends. Where the file system has no locks, programs may do the same work twice.
class CacheLock {
 public:
  explicit CacheLock(const fs::path& folder) {
    const fs::path path = folder / "lock";
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) throw Error("{}: cannot write: {}", path.string(), std::strerror(errno));
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    spdlog::info("waiting for another program that packs a model into {}", folder.string());
    while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) continue;
  }
  ~CacheLock() { ::close(fd_); }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  int fd_;
};

// Whether `folder` holds the packed copy of these files, whole as far as its header tells.
bool is_good(const fs::path& folder, uint64_t expected) {
  std::error_code error;
  if (!fs::exists(folder, error)) return false;
  try {
    return PackFile::open(folder / kPackFileName).fingerprint == expected;
  } catch (const Error& fault) {
    spdlog::debug("weight cache: {}", fault.what());
    return false;
  }
}

void mark_used(const fs::path& folder) {
  ::utimensat(AT_FDCWD, (folder / kPackFileName).c_str(), nullptr, 0);  // fails in foreign folders
}

// Copies that nobody used for long, and what programs that were killed left. Call with the lock.
void remove_old(const fs::path& base) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(base, error)) {
    const std::string name = entry.path().filename().string();
    const size_t mark = name.rfind(kNameMark);
    if (mark == name.npos || !entry.is_directory(error)) continue;
    const bool unfinished = name.find(kPartialMark, mark) != name.npos;
    if (!unfinished && mark + kNameMark.size() != name.size()) continue;
    const auto used = fs::last_write_time(entry.path() / kPackFileName, error);
    const bool unused = !error && fs::file_time_type::clock::now() - used > kUnusedAge;
    if (!unfinished && !unused) continue;
    spdlog::info("removing {} ({})", entry.path().string(),
                 unfinished ? "unfinished" : "not used for a month");
    fs::remove_all(entry.path(), error);
  }
}

// Throws what loading the model would: one that cannot be used is not worth a copy.
void check_model(const fs::path& path) {
  ModelFiles files = ModelFiles::open(path);
  files.weights().set_deferring(true);
  load_model(files);
}

void check_room(const fs::path& base, int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(base, error);
  if (error || static_cast<uint64_t>(bytes) <= space.available / 2) return;
  throw Error("{}: a packed copy would take {} of the {} that are free", base.string(),
              format_bytes(bytes), format_bytes(static_cast<int64_t>(space.available)));
}

void make_copy(const fs::path& path, const ModelFiles& files, const fs::path& folder,
               int num_threads, PackLayout layout) {
  std::error_code error;
  fs::remove_all(folder, error);  // what is there is damaged
  ThreadPool pool({.num_threads = num_threads});
  const InterruptGuard interrupt;
  ProgressBar bar;
  const auto show = [&](int64_t done, int64_t total) {
    if (interrupt.interrupted()) throw Interrupted();
    bar.show(done >> 20, total >> 20, -1, "MiB packed");
  };
  pack_model(path, files, folder, pool, {.layout = layout, .progress = show});
}

}  // namespace

fs::path user_weight_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "braid/weights";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache/braid/weights";
  return {};
}

std::string cached_model(std::string_view model, const std::string& cache, int num_threads,
                         PackLayout layout) {
  const std::string given(model);
  if (cache == "off") return given;
  const fs::path base = cache == "auto" ? user_weight_cache() : fs::path(cache);
  const fs::path path = resolve_model(model);
  const ModelFiles files = ModelFiles::open(path);
  const PackSize size = packed_size(files);
  const bool panels = layout == PackLayout::kPanels;
  if (files.is_packed() || (panels ? size.num_panels : size.num_made) == 0) return given;
  const uint64_t key = fingerprint(files);
  const fs::path folder =
      base / fmt::format("{}-{:016x}-{}.{}{}", fs::weakly_canonical(path).filename().string(), key,
                         pack_layout::kFileVersion,
                         panels ? std::to_string(kPanelLayoutVersion) : "rows", kNameMark);
  if (!is_good(folder, key)) check_model(path);
  try {
    if (base.empty()) throw Error("neither XDG_CACHE_HOME nor HOME is set");
    if (!is_good(folder, key)) {
      std::error_code error;
      fs::create_directories(base, error);
      const CacheLock lock(base);
      if (!is_good(folder, key)) {
        remove_old(base);
        if (cache == "auto") check_room(base, size.bytes);
        spdlog::info("packing {} into {} for faster runs, this time only (--weight-cache off: not)",
                     path.string(), folder.string());
        make_copy(path, files, folder, num_threads, layout);
      }
    }
    mark_used(folder);
    return folder.string();
  } catch (const Interrupted&) {
    throw Error("interrupted");
  } catch (const Error& fault) {
    spdlog::log(cache == "auto" ? spdlog::level::info : spdlog::level::warn,
                "no packed copy of the weights is used: {}", fault.what());
    return given;
  }
}

}  // namespace braid
