#pragma once

#include <span>

#include "ops/fused/gated_mlps.h"

namespace braid::cuda {

// gated_mlps() of w8c weights with inputs of int8 codes: gate, up and activation of each call as
// one kernel, which finds the inputs of experts by itself, then codes of the result and W_down.
bool int8_mlps(Stream& stream, Workspace& workspace, std::span<const GatedMlpCall> calls);

}  // namespace braid::cuda
