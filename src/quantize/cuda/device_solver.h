#pragma once

#include <memory>

#include "quantize/hessian_solver.h"

namespace braid::cuda {

// HessianSolver of a CUDA stream.
std::unique_ptr<HessianSolver> make_device_solver(Stream& stream, Workspace& workspace,
                                                  const Hessian& hessian,
                                                  const SolverOptions& options);

}  // namespace braid::cuda
