#include "checkpoint/model_files.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "checkpoint/pack_file.h"
#include "checkpoint/printable.h"
#include "checkpoint/quantized_tensors.h"
#include "checkpoint/safetensors.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Generous: the largest published tokenizer.json is about 33 MB.
constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr size_t kMaxTokenizerBytes = size_t{512} << 20;

bool is_present(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::optional<std::string> read_if_present(const fs::path& path, size_t max_bytes) {
  if (!is_present(path)) return std::nullopt;
  return read_file(path, max_bytes);
}

std::optional<ConfigReader> config_if_present(const fs::path& path) {
  const auto text = read_if_present(path, kMaxConfigBytes);
  if (!text) return std::nullopt;
  return ConfigReader(*text, path.string());
}

bool has_gguf_magic(const fs::path& path) {
  std::array<char, 4> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  return std::string_view(magic.data(), magic.size()) == "GGUF";
}

// Why a file that is neither folder nor GGUF cannot be opened, and what to give instead.
[[noreturn]] void fail_for_file(const fs::path& path) {
  const std::string extension = path.extension().string();
  const fs::path parent = path.has_parent_path() ? path.parent_path() : ".";
  if (extension == ".safetensors" || extension == ".json") {
    throw Error("{}: give the folder that holds this file and config.json: {}", path.string(),
                parent.string());
  }
  if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
    throw Error(
        "{}: PyTorch weights are not read, as such files can run code; convert the model "
        "with save_pretrained(..., safe_serialization=True) of transformers",
        path.string());
  }
  throw Error("{}: neither a Hugging Face folder nor a GGUF file", path.string());
}

[[noreturn]] void fail_without_config(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> ggufs;
  bool is_empty = true;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    is_empty = false;
    if (entry.path().extension() == ".gguf") ggufs.push_back(printable(entry.path().string(), 400));
  }
  const std::string path = folder.string();
  if (error) throw Error("{}: cannot list the folder: {}", path, error.message());
  if (is_empty) throw Error("{}: the folder is empty; config.json and weights are needed", path);
  if (!ggufs.empty()) {
    throw Error("{}: no config.json; for a GGUF file, give its own path: {}", path,
                join_some(ggufs, ", ", 3));
  }
  throw Error("{}: no config.json; is this a Hugging Face model folder?", path);
}

// The field "chat_template": one template, or a list of named ones of which "default" counts.
std::optional<std::string> template_of(const ConfigReader& reader) {
  if (!reader.is_list("chat_template")) return reader.find_string("chat_template");
  std::vector<std::string> names;
  const std::optional<std::vector<ConfigReader>> templates = reader.find_objects("chat_template");
  for (const ConfigReader& item : *templates) {
    names.push_back(item.string("name"));
    if (names.back() == "default") return item.string("template");
  }
  spdlog::debug("{}: chat_template: none is named \"default\"; there are: {}", reader.origin(),
                join_some(names));
  return std::nullopt;
}

std::optional<std::string> find_chat_template(const fs::path& folder,
                                              const std::optional<std::string>& tokenizer_config) {
  if (auto text = read_if_present(folder / "chat_template.jinja", kMaxConfigBytes)) return text;
  if (tokenizer_config) {
    const ConfigReader reader(*tokenizer_config, (folder / "tokenizer_config.json").string());
    if (auto text = template_of(reader)) return text;
  }
  if (const auto reader = config_if_present(folder / "chat_template.json")) {
    return template_of(*reader);
  }
  return std::nullopt;
}

// Notes the metadata that nothing in braid reads.
void note_foreign_keys(const GgufMetadata& metadata, const std::string& architecture) {
  const std::array<std::string, 5> known = {"general.", "tokenizer.", "split.", "quantize.",
                                            architecture + "."};
  std::vector<std::string> foreign;
  for (const auto& entry : metadata.values) {
    const std::string& key = entry.first;
    const bool is_known = std::any_of(known.begin(), known.end(), [&](const std::string& prefix) {
      return key.starts_with(prefix);
    });
    if (!is_known) foreign.push_back(printable(key));
  }
  if (!foreign.empty()) {
    spdlog::debug("{}: metadata ignored: {}", metadata.origin, join_some(foreign));
  }
}

}  // namespace

ModelFiles ModelFiles::open(const fs::path& path, bool with_weights) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    throw Error("{}: no such file or folder; give a Hugging Face folder or a .gguf file",
                path.string());
  }
  ModelFiles files;
  files.origin_ = path.string();
  if (fs::is_directory(status) && is_present(path / kPackFileName)) {
    files.open_pack(path, with_weights);
  } else if (fs::is_directory(status)) {
    files.open_folder(path, with_weights);
  } else if (fs::is_regular_file(status) && (path.extension() == ".gguf" || has_gguf_magic(path))) {
    files.open_gguf(path, with_weights);
  } else {
    fail_for_file(path);
  }
  return files;
}

void ModelFiles::open_folder(const fs::path& folder, bool with_weights) {
  const std::optional<ConfigReader> config = config_if_present(folder / "config.json");
  if (!config) fail_without_config(folder);
  config_ = std::make_shared<const ConfigReader>(*config);
  text_config_ =
      std::make_shared<const ConfigReader>(config->find_object("text_config").value_or(*config));
  model_type_ = (text_config_->has("model_type") ? *text_config_ : *config_).string("model_type");
  generation_ =
      read_generation_defaults(*config, config_if_present(folder / "generation_config.json"));
  tokenizer_json_ = read_if_present(folder / "tokenizer.json", kMaxTokenizerBytes);
  tokenizer_config_json_ = read_if_present(folder / "tokenizer_config.json", kMaxTokenizerBytes);
  chat_template_ = find_chat_template(folder, tokenizer_config_json_);
  const std::optional<QuantizationConfig> quantization = QuantizationConfig::read(*config);
  if (quantization) kv_cache_ = quantization->kv_cache();
  if (!with_weights) return;
  weights_ = read_safetensors_folder(folder);
  if (quantization) join_quantized_tensors(weights_, *quantization);
  settle_kv_scales(weights_, kv_cache_);
}

void ModelFiles::open_pack(const fs::path& folder, bool with_weights) {
  packed_ = true;
  if (is_present(folder / kPackMetadataName)) {
    const fs::path path = folder / kPackMetadataName;
    const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
    // Not opened as a set of files, which its metadata may still speak of.
    use_gguf(std::make_shared<const GgufFile>(GgufFile::parse(file->bytes(), file, path.string())));
  } else {
    open_folder(folder, false);
  }
  if (!with_weights) return;
  PackFile pack = PackFile::open(folder / kPackFileName);
  packed_bytes_ = pack.bytes;
  weights_.set_origin(folder.string());
  for (PackFile::Entry& entry : pack.entries) weights_.add(std::move(entry.tensor));
}

void ModelFiles::read_ahead() const { braid::read_ahead(packed_bytes_); }

void ModelFiles::use_gguf(std::shared_ptr<const GgufFile> gguf) {
  gguf_ = std::move(gguf);
  const GgufMetadata& metadata = gguf_->metadata;
  model_type_ = metadata.string("general.architecture");
  note_foreign_keys(metadata, model_type_);
  generation_ = read_generation_defaults(metadata);
  chat_template_ = metadata.find_string("tokenizer.chat_template");
}

void ModelFiles::open_gguf(const fs::path& path, bool with_weights) {
  use_gguf(GgufFile::open(path));
  weights_.set_origin(path.string());
  if (!with_weights) return;
  for (const StoredTensor& tensor : gguf_->tensors) weights_.add(tensor);
}

}  // namespace braid
