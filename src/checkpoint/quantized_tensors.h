#pragma once

#include "checkpoint/quantization_config.h"
#include "checkpoint/weight_map.h"

namespace braid {

// Joins the parts in which a quantised checkpoint stores its matrices into one tensor each, under
// the name of the matrix ("….q_proj.weight", "….experts.down_proj"); what it is made of is read
// when the weight is asked for (StoredTensor::payload). Parts by suffix:
//
//   compressed-tensors  …_packed int32 with …_shape, or the int8 matrix itself; …_scale,
//                       …_zero_point, …_g_idx
//   GPTQ                .qweight, .qzeros, .scales, .g_idx; and a .bias of zeros, which is dropped
//
// Throws Error naming the tensor whose parts are missing or do not fit each other. Parts that
// belong to nothing stay as they are. Disagreements with the config are a warning with names.
void join_quantized_tensors(WeightMap& weights, const QuantizationConfig& config);

}  // namespace braid
