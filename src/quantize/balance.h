#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "quantize/layer_calibration.h"
#include "tensor/stream.h"

namespace braid {

// Matrices that read one input, and what makes it: a norm's gain or the rows of a matrix. Columns
// of the readers were multiplied by powers of two, and what makes their input divided by them.
struct BalancedGroup {
  std::string before;                // canonical name, as are the readers'
  std::vector<std::string> readers;  // in the order of their names
  int64_t channels = 0;              // that have a scale of their own
  int64_t scaled = 0;                // whose scale is not 1
  int smallest = 0, largest = 0;     // exponents of two
};

// Exponents of the powers of two nearest to x^strength / w^(1 - strength), these divided by their
// geometric mean: Xiao et al., "SmoothQuant", 2022, eq. 4. inputs, weights: the largest magnitudes
// of each channel; where one is zero the exponent is 0, and the channel does not count.
std::vector<int> balance_exponents(std::span<const float> inputs, std::span<const float> weights,
                                   double strength);
inline constexpr int kMaxBalanceExponent = 12;

// Balances the layers of a model in place, so that rounding inputs and weights to few bits loses
// less: scales are as the calibration shows the inputs. The model computes what it did: all factors
// are powers of two, and only what a gain's offset (1 + w) makes of it is rounded, in float32.
// Gains become float32, matrices stay bfloat16 or become float32. Experts stay as they are, and so
// does what reads an input along with a matrix that is not known.
//
// `layers`: of these files, with nothing run yet; it is spent afterwards. progress: called before
// each layer. Throws Error for families without rules, and for inputs that are not finite.
std::vector<BalancedGroup> balance_source(ModelFiles& files, LayerCalibration& layers,
                                          const Stream& stream, double strength,
                                          const std::function<void(int64_t layer)>& progress);

// Of the copies that balancing makes, at most.
int64_t balanced_bytes(const ModelFiles& files);

}  // namespace braid
