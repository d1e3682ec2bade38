#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config_reader.h"
#include "checkpoint/kv_cache_scheme.h"

namespace braid {

// quantization_config of config.json, as far as the tensors do not tell it themselves. How a tensor
// is stored is read from its own parts; the config is checked for what braid cannot compute, and
// names that it and the file disagree about are worth a warning.
class QuantizationConfig {
 public:
  enum class Method { kCompressedTensors, kGptq };

  // Nothing: the checkpoint is not quantised. Throws Error naming the field for a method, format or
  // scheme that is not supported.
  static std::optional<QuantizationConfig> read(const ConfigReader& config);

  Method method() const { return method_; }
  // GPTQ: qzeros hold the zeros less one.
  bool zeros_less_one() const { return zeros_less_one_; }
  // Of groups that do not divide a row evenly; 0: not told, or one group a row.
  int64_t group_size() const { return group_size_; }
  const KvCacheScheme& kv_cache() const { return kv_cache_; }
  // Whether the config says that a module (file's name, without ".weight") is quantised.
  bool covers(std::string_view module) const;

 private:
  // A name, a class of modules ("Linear") or, after "re:", a pattern for the name's beginning.
  class Pattern;
  using Patterns = std::vector<std::shared_ptr<const Pattern>>;

  void read_compressed_tensors(const ConfigReader& config);
  void read_gptq(const ConfigReader& config);

  Method method_ = Method::kCompressedTensors;
  bool zeros_less_one_ = false;
  int64_t group_size_ = 0;
  KvCacheScheme kv_cache_;
  Patterns targets_, ignored_;
};

}  // namespace braid
