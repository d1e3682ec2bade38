#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "models/model.h"

namespace braid {

// Builds the model that `files` describe. Throws Error that names the model type and lists the
// supported ones if there is no such family.
std::unique_ptr<Model> load_model(ModelFiles& files);

// The model types load_model() knows, as config.json (model_type) and GGUF (general.architecture)
// write them.
std::vector<std::string> supported_model_types();

}  // namespace braid
