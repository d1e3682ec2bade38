#pragma once

#include <string>
#include <vector>

#include "quantize/plan.h"

namespace braid {

// A config.json with the quantization_config that tells other programs how the tensors are stored:
// every matrix that is not quantised is named there.

std::string with_compressed_tensors_entry(const std::string& config_json,
                                          const std::vector<TensorPlan>& plans, bool split_experts,
                                          KvRecipe kv);
std::string with_gptq_entry(const std::string& config_json, const std::vector<TensorPlan>& plans);

}  // namespace braid
