#include "engine/drafter_choice.h"

#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "engine/demo_models.h"
#include "models/registry.h"
#include "speculative/assistant_drafter.h"
#include "speculative/model_drafter.h"
#include "speculative/mtp_drafter.h"
#include "speculative/ngram_drafter.h"

namespace braid {
namespace {

void check_tokenizers(const LoadedModel& draft, const LoadedModel& target) {
  if (draft.model().vocab_size() != target.model().vocab_size()) {
    throw Error(
        "{}: the draft model has a vocabulary of {} tokens, the model {} one of {}; they must be "
        "the same",
        draft.origin(), draft.model().vocab_size(), target.origin(), target.model().vocab_size());
  }
  if (!draft.has_tokenizer() || !target.has_tokenizer()) return;
  const int64_t size = target.tokenizer().vocab_size();
  for (int64_t i = 0; i < std::min(size, draft.tokenizer().vocab_size()); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (draft.tokenizer().token_text(id) == target.tokenizer().token_text(id)) continue;
    throw Error(
        "{}: the draft model has another tokenizer than {}: token {} is '{}' in one and '{}' in "
        "the other",
        draft.origin(), target.origin(), i, draft.tokenizer().token_text(id),
        target.tokenizer().token_text(id));
  }
}

DrafterFactory load_model_drafter(const std::string& path, const LoadedModel& target) {
  const auto draft = std::make_shared<const LoadedModel>(
      LoadedModel::load(path, {.with_tokenizer = false, .device = target.device()}));
  spdlog::info("draft model {}: {}", draft->origin(), to_string(draft->model().load_report()));
  return [draft](const DrafterSetup& setup) {
    return std::make_unique<ModelDrafter>(std::shared_ptr<const Model>(draft, &draft->model()),
                                          setup);
  };
}

DrafterFactory load_assistant_drafter(const std::string& path, const LoadedModel& target) {
  // The weights are views of the files.
  struct Loaded {
    ModelFiles files;
    std::unique_ptr<Gemma4Assistant> model;
  };
  const auto loaded = std::make_shared<Loaded>(Loaded{ModelFiles::open(resolve_model(path)), {}});
  loaded->model = load_assistant(loaded->files, target.model());
  if (!target.device().is_cpu()) {
    Placement placement(target.device());
    loaded->model->place(placement);
  }
  spdlog::info("assistant {}: {}", loaded->files.origin(), to_string(loaded->model->load_report()));
  return [loaded](const DrafterSetup& setup) {
    return std::make_unique<AssistantDrafter>(
        std::shared_ptr<const Gemma4Assistant>(loaded, loaded->model.get()), setup);
  };
}

}  // namespace

DrafterChoice parse_drafter(std::string_view text) {
  using Kind = DrafterChoice::Kind;
  if (text == "off") return {Kind::kOff, ""};
  if (text == "ngram") return {Kind::kNgram, ""};
  if (text == "mtp") return {Kind::kMtp, ""};
  for (const auto& [prefix, kind] : {std::pair<std::string_view, Kind>{"model:", Kind::kModel},
                                     {"assistant:", Kind::kAssistant}}) {
    if (text.starts_with(prefix) && text.size() > prefix.size()) {
      return {kind, std::string(text.substr(prefix.size()))};
    }
  }
  throw UsageError(
      "--speculate '{}': expected mtp, assistant:PATH, model:PATH, ngram or off (PATH: a folder, a "
      ".gguf file or demo:NAME)",
      text);
}

void check_drafter(const DrafterChoice& choice, const LoadedModel& target) {
  switch (choice.kind) {
    case DrafterChoice::Kind::kOff:
    case DrafterChoice::Kind::kNgram:
      return;
    case DrafterChoice::Kind::kMtp:
      if (target.model().draft_head() != nullptr) return;
      throw Error(
          "{}: --speculate mtp: this model has no multi-token-prediction head (only some "
          "Qwen3-Next and Qwen3.5 checkpoints do); use ngram, model:PATH or off",
          target.origin());
    case DrafterChoice::Kind::kModel:
      return check_tokenizers(
          LoadedModel::load(choice.path, {.with_tokenizer = target.has_tokenizer(),
                                          .device = target.device(),
                                          .read_ahead = false}),
          target);
    case DrafterChoice::Kind::kAssistant: {
      ModelFiles files = ModelFiles::open(resolve_model(choice.path));
      files.weights().set_deferring(true);
      load_assistant(files, target.model());
      return;
    }
  }
}

DrafterFactory load_drafter(const DrafterChoice& choice, const LoadedModel& target) {
  check_drafter(choice, target);
  switch (choice.kind) {
    case DrafterChoice::Kind::kOff:
      return {};
    case DrafterChoice::Kind::kNgram:
      return [](const DrafterSetup&) { return std::make_unique<NgramDrafter>(); };
    case DrafterChoice::Kind::kMtp:
      return [](const DrafterSetup& setup) { return std::make_unique<MtpDrafter>(setup); };
    case DrafterChoice::Kind::kModel:
      return load_model_drafter(choice.path, target);
    case DrafterChoice::Kind::kAssistant:
      return load_assistant_drafter(choice.path, target);
  }
  return {};
}

}  // namespace braid
