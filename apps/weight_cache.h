#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/pack_writer.h"

namespace braid {

// --weight-cache: packed copies of models (docs/packing.md), made when a model is first loaded and
// used from then on.
//
// What to load in place of `model`: its packed copy below `cache` ("auto": the user's cache folder;
// "off": none; otherwise a folder). A copy is told by the fingerprint of the model's files and by
// the version of the layout; a damaged one is made again. Models without weights that packing
// rearranges (kPanels) or that are made of parts (kRows) have none. If a copy cannot be made (a
// full disk, a read-only folder), says so in the log and gives `model`. With "auto", a copy that
// would take more than half of the free space is not made. Throws Error if interrupted.
//
// Any number of programs may do this at once: one packs, the others wait for it. Copies that were
// not used for a month go when another one is made.
std::string cached_model(std::string_view model, const std::string& cache, int num_threads,
                         PackLayout layout = PackLayout::kPanels);

// $XDG_CACHE_HOME/braid/weights or ~/.cache/braid/weights; empty if neither variable is set.
std::filesystem::path user_weight_cache();

}  // namespace braid
