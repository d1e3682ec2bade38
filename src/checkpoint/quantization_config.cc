#include "checkpoint/quantization_config.h"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/log.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

constexpr uint32_t kMatchSteps = 100'000;  // names are short

bool ends_with_name(std::string_view longer, std::string_view name) {
  return longer == name || (longer.size() > name.size() && longer.ends_with(name) &&
                            longer[longer.size() - name.size() - 1] == '.');
}

void check_weights(const ConfigReader& weights) {
  const std::string type = weights.find_string("type").value_or("int");
  if (type != "int") {
    weights.fail("type", fmt::format("'{}' weights are not supported (int is)", printable(type)));
  }
  const int64_t bits = weights.find_integer("num_bits").value_or(8);
  if (bits != 4 && bits != 8) {
    weights.fail("num_bits", fmt::format("{} bits are not supported (4 and 8 are)", bits));
  }
  const std::string strategy = weights.find_string("strategy").value_or("tensor");
  if (strategy != "tensor" && strategy != "channel" && strategy != "group") {
    weights.fail("strategy", fmt::format("'{}' is not supported (group, channel and tensor are)",
                                         printable(strategy)));
  }
  if (weights.has("dynamic") && !weights.is_string("dynamic") &&
      weights.find_boolean("dynamic").value_or(false)) {
    weights.fail("dynamic", "weights must have stored scales");
  }
}

void check_activations(const ConfigReader& group, std::string_view field) {
  const auto activations = group.find_object(field);
  if (!activations) return;
  const std::string type = activations->find_string("type").value_or("int");
  const int64_t bits = activations->find_integer("num_bits").value_or(8);
  if (field != "input_activations" || type != "int" || bits != 8) {
    activations->fail("num_bits", fmt::format("{}-bit {} activations are not supported (int8 "
                                              "inputs are)",
                                              bits, printable(type)));
  }
  if (activations->is_string("dynamic") || !activations->find_boolean("dynamic").value_or(false)) {
    activations->fail("dynamic",
                      "static scales of activations are not supported; dynamic ones are");
  }
  if (!activations->find_boolean("symmetric").value_or(true)) {
    activations->fail("symmetric", "asymmetric activations are not supported");
  }
}

}  // namespace

class QuantizationConfig::Pattern {
 public:
  explicit Pattern(std::string text) : text_(std::move(text)) {
    if (!text_.starts_with("re:")) return;
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text_.data() + 3), text_.size() - 3,
                          PCRE2_ANCHORED, &error, &offset, nullptr);
    if (code_ == nullptr) {
      spdlog::warn("quantization_config: the pattern \"{}\" is ignored: it cannot be read",
                   printable(text_));
    }
  }
  ~Pattern() { pcre2_code_free(code_); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  bool matches(std::string_view module) const {
    if (!text_.starts_with("re:")) {
      // Checkpoints and modules differ in their outermost prefixes.
      return text_ == "Linear" || ends_with_name(module, text_) || ends_with_name(text_, module);
    }
    if (code_ == nullptr) return false;
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(context, kMatchSteps);
    pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
    const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(),
                                  0, 0, data, context);
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    return found >= 0;
  }

 private:
  std::string text_;
  pcre2_code* code_ = nullptr;
};

std::optional<QuantizationConfig> QuantizationConfig::read(const ConfigReader& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    auto found = config.find_object(key);
    if (!found) {
      if (const auto text = config.find_object("text_config")) found = text->find_object(key);
    }
    if (!found) continue;
    QuantizationConfig result;
    const std::string method = found->find_string("quant_method").value_or("compressed-tensors");
    if (method == "compressed-tensors") {
      result.read_compressed_tensors(*found);
    } else if (method == "gptq" || method == "auto-round") {
      result.read_gptq(*found);
    } else {
      found->fail("quant_method",
                  fmt::format("'{}' is not supported (compressed-tensors, gptq and auto-round in "
                              "GPTQ packing are); convert the model, or take its GGUF files",
                              printable(method)));
    }
    return result;
  }
  return std::nullopt;
}

void QuantizationConfig::read_compressed_tensors(const ConfigReader& config) {
  method_ = Method::kCompressedTensors;
  const auto check_format = [](const ConfigReader& reader) {
    const auto format = reader.find_string("format");
    if (!format) return;
    for (const char* known :
         {"pack-quantized", "int-quantized", "naive-quantized", "dense", "mixed-precision"}) {
      if (*format == known) return;
    }
    reader.fail("format", fmt::format("'{}' is not supported (pack-quantized and int-quantized "
                                      "are)",
                                      printable(*format)));
  };
  check_format(config);
  if (const auto sparsity = config.find_object("sparsity_config")) {
    const std::string format = sparsity->find_string("format").value_or("dense");
    if (format != "dense") {
      sparsity->fail("format", fmt::format("'{}' is not supported", printable(format)));
    }
  }
  if (const auto transform = config.find_object("transform_config")) {
    if (const auto groups = transform->find_object("config_groups");
        groups && !groups->keys().empty()) {
      transform->fail("config_groups", "transformed (rotated) weights are not supported");
    }
  }
  kv_cache_ = KvCacheScheme::read(config);
  if (const auto groups = config.find_object("config_groups")) {
    for (const std::string& name : groups->keys()) {
      const auto group = groups->find_object(name);
      if (!group) continue;
      check_format(*group);
      if (const auto weights = group->find_object("weights")) {
        check_weights(*weights);
        if (const auto size = weights->find_integer("group_size"); size && *size > 0) {
          group_size_ = *size;
        }
        for (std::string& target :
             group->find_strings("targets").value_or(std::vector<std::string>{})) {
          targets_.push_back(std::make_shared<const Pattern>(std::move(target)));
        }
      }
      check_activations(*group, "input_activations");
      check_activations(*group, "output_activations");
    }
  }
  for (std::string& name : config.find_strings("ignore").value_or(std::vector<std::string>{})) {
    ignored_.push_back(std::make_shared<const Pattern>(std::move(name)));
  }
}

void QuantizationConfig::read_gptq(const ConfigReader& config) {
  method_ = Method::kGptq;
  const int64_t bits = config.integer("bits");
  if (bits != 4 && bits != 8) {
    config.fail("bits", fmt::format("{} bits are not supported (4 and 8 are)", bits));
  }
  group_size_ = std::max<int64_t>(0, config.find_integer("group_size").value_or(-1));
  std::string format = config.find_string("checkpoint_format").value_or("gptq");
  if (const auto packing = config.find_string("packing_format")) {  // AutoRound
    if (packing->find("gptq") == packing->npos) {
      config.fail("packing_format", fmt::format("'{}' is not supported (auto_round:auto_gptq is)",
                                                printable(*packing)));
    }
  }
  if (format != "gptq" && format != "gptq_v2") {
    config.fail("checkpoint_format",
                fmt::format("'{}' is not supported (gptq and gptq_v2 are)", printable(format)));
  }
  zeros_less_one_ = format == "gptq";
  targets_.push_back(std::make_shared<const Pattern>("Linear"));
  if (const auto rules = config.find_object("dynamic")) {
    for (const std::string& rule : rules->keys()) {
      if (!rule.starts_with("-:")) continue;
      ignored_.push_back(std::make_shared<const Pattern>("re:" + rule.substr(2)));
    }
  }
}

bool QuantizationConfig::covers(std::string_view module) const {
  const auto matches = [&](const std::shared_ptr<const Pattern>& pattern) {
    return pattern->matches(module);
  };
  return std::any_of(targets_.begin(), targets_.end(), matches) &&
         std::none_of(ignored_.begin(), ignored_.end(), matches);
}

}  // namespace braid
