#include "quantize/source.h"

#include <memory>

#include "base/error.h"
#include "models/registry.h"

namespace braid {
namespace {

// With the tensors that a model of the config asks for.
ModelFiles open_dummy(const std::filesystem::path& path, uint64_t seed, bool fill) {
  ModelFiles files = ModelFiles::open(path, /*with_weights=*/false);
  auto made = std::make_shared<WeightMap>();
  made->set_origin(path.string());
  files.weights() = WeightMap::dummy(seed, *DummyFormats::find("bf16"), fill);
  files.weights().keep_dummies_in(made);
  load_model(files);
  files.weights() = *made;
  return files;
}

}  // namespace

ModelFiles open_source(const std::filesystem::path& path, const QuantizeOptions& options,
                       bool fill) {
  const bool to_gguf = options.file_format == QuantizedFileFormat::kGguf;
  if (to_gguf != options.recipe.gguf) throw Error("recipe.gguf must be {}", to_gguf);
  ModelFiles files =
      options.dummy_weights ? open_dummy(path, options.dummy_seed, fill) : ModelFiles::open(path);
  if (files.is_packed()) {
    throw Error("{}: is packed for speed; give the model it was made from", path.string());
  }
  use_canonical_names(files);
  return files;
}

}  // namespace braid
