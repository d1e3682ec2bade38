#pragma once

#include <vector>

#include "checkpoint/weight_map.h"
#include "quantize/layer_hessians.h"
#include "quantize/quantizer.h"
#include "quantize/work_folder.h"
#include "tensor/stream.h"
#include "tensor/workspace.h"

namespace braid {

// Turns matrices of one layer (or of what belongs to none) into their formats. `hessians`: of their
// inputs, each given up once its matrices are done; null: round to nearest, no errors of outputs.
// Adds to `times`. Throws Error naming the tensor if a format's scales are too small for it.
WorkFolder::Part quantize_part(Stream& stream, Workspace& workspace, const WeightMap& weights,
                               const QuantizeOptions& options, const LayerHessians* hessians,
                               PhaseTimes& times, const std::vector<const TensorPlan*>& plans);

}  // namespace braid
