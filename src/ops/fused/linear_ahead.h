#pragma once

#include <span>

#include "ops/linear/linear.h"

namespace braid {

// linear(). While ops that read little follow, a device's memory could already bring the weights
// that come after them: where weights are streamed, those of `next`, up to kMostAheadBytes of
// them in all, are asked for into the second-level cache once the present ones are on their way.
// Changes no result. Empty weights are left out.
inline constexpr size_t kMostAhead = 3;
inline constexpr int64_t kMostAheadBytes = int64_t{40} << 20;
void linear_ahead(Stream& stream, const Weight& w, const LinearInput& x, const TensorView& y,
                  std::span<const Weight* const> next);

}  // namespace braid
