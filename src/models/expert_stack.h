#pragma once

#include <cstdint>
#include <string>

#include "models/layer_binder.h"

namespace braid {

// Experts stored in tensors of their own, "EXPERTS.i.MATRIX.weight", as one stack [experts, rows,
// cols]. Throws Error if they are stored in different formats.
Weight bind_expert_stack(LayerBinder& bind, const std::string& experts, const std::string& matrix,
                         const Shape& shape, LayerBinder::Share active);

}  // namespace braid
