#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// "demo:gemma4" -> the folder of that bundled model; any other text is taken as a path. Bundled
// models are looked for in $BRAID_DEMO_MODELS, then beside the program: ../../demo_models (a build
// tree) and
// ../share/braid/demo_models (an installation). Throws Error that lists the names there are.
std::filesystem::path resolve_model(std::string_view model);

// Names of the bundled models that can be found, sorted.
std::vector<std::string> demo_model_names();

}  // namespace braid
