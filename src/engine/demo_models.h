#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// "demo:gemma4" -> the folder of that bundled model; any other text is taken as a path. Bundled
// models are looked for in $BRAID_DEMO_MODELS, then relative to the program's folder:
// ../demo_models and ../../demo_models (build trees), ../share/braid/demo_models (an installation).
// Throws Error that lists the names there are.
std::filesystem::path resolve_model(std::string_view model);

// Names of the bundled models that can be found and are of a supported type, sorted.
std::vector<std::string> demo_model_names();

}  // namespace braid
