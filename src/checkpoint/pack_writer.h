#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "base/thread_pool.h"
#include "checkpoint/model_files.h"

namespace braid {

enum class PackLayout {
  kPanels,  // of the CPU's kernels: matrices in block formats in panels
  kRows,    // as files have it, for other devices: only what is made of parts is made
};

struct PackOptions {
  PackLayout layout = PackLayout::kPanels;
  // Called now and then with the bytes written and those of the whole; what it throws ends the
  // packing.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

struct PackResult {
  int64_t num_tensors = 0;
  int64_t num_panels = 0;  // of them, in the kernels' layout
  int64_t bytes = 0;       // of the weights' file
};

struct PackSize {
  // Tensors that would be rearranged, but for those that are made of parts; and these.
  int64_t num_panels = 0;
  int64_t num_made = 0;
  int64_t bytes = 0;  // of all data, without filling
};
// What packing would write.
PackSize packed_size(const ModelFiles& files);

// Names of unfinished folders are those wanted with this and six characters more.
inline constexpr std::string_view kPartialMark = ".partial-";

// Writes the folder `out`: all weights in the kernels' layout (matrices in block formats; others as
// they are) and copies of the other files of the model. `path` is what `files` were opened from.
// The folder appears whole or not at all: it is written under another name beside its own, and
// several programs may try at once, of which one succeeds. Throws Error if `out` exists, the model
// is packed already, or writing fails (the disk is full, ...).
PackResult pack_model(const std::filesystem::path& path, const ModelFiles& files,
                      const std::filesystem::path& out, ThreadPool& pool,
                      const PackOptions& options = {});

}  // namespace braid
