#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace braid {

// --weight-cache: packed copies of models (docs/packing.md), made when a model is first loaded and
// used from then on.
//
// What to load in place of `model`: its packed copy below `cache` ("auto": the user's cache folder;
// "off": none; otherwise a folder). A copy is told by names, sizes, times and tensor lists of the
// model's files and by the version of the layout; a damaged one is made again. Models without
// weights that packing rearranges have none. If a copy cannot be made (a full disk, a read-only
// folder), says so in the log and gives `model`.
std::string cached_model(std::string_view model, const std::string& cache, int num_threads);

// $XDG_CACHE_HOME/braid or ~/.cache/braid; empty if neither variable is set.
std::filesystem::path user_cache_folder();

}  // namespace braid
