#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace braid {

// A = L·Lᵀ. a: [n, n], of which the lower triangle counts and becomes L; what is above it is
// undefined afterwards. False: A is not positive definite (or not finite), and a is spoilt.
bool factor_cholesky(ThreadPool& pool, int64_t n, double* a);

// L becomes L⁻¹. l: [n, n], lower triangular; what is above it is undefined afterwards.
void invert_lower(ThreadPool& pool, int64_t n, double* l);

}  // namespace braid
