#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "models/model.h"

namespace braid {

class Gemma4Assistant;

// Builds the model that `files` describe. Throws Error that names the model type and lists the
// supported ones if there is no such family, or says so if they are a draft model's.
std::unique_ptr<Model> load_model(ModelFiles& files);
// Only gives the tensors the names that the family knows them by, as load_model() does too. Throws
// Error for other types.
void use_canonical_names(ModelFiles& files);

// Whether `files` describe a model that only drafts for another.
bool is_draft_model(const ModelFiles& files);
// Builds it for `backbone`, which must outlive it. Throws Error if `files` describe no draft model,
// or one that does not fit the backbone.
std::unique_ptr<Gemma4Assistant> load_assistant(ModelFiles& files, const Model& backbone);

// The model types load_model() knows, as config.json (model_type) and GGUF (general.architecture)
// write them.
std::vector<std::string> supported_model_types();

}  // namespace braid
