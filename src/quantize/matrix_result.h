#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quantize/gptq.h"

namespace braid {

// What became of a quantised tensor; of a stack, of all its experts together.
struct MatrixResult {
  std::string name;
  std::string format;      // "w4g128"
  std::string method;      // "gptq", "rtn"; of a stack with both: "gptq, 2 experts rtn"
  int64_t num_inputs = 0;  // that calibration showed it
  // Of outputs, by rounding to nearest and as stored; absent without calibration.
  std::optional<RoundingError> nearest, stored;
  double weight_error = 0;   // ‖W − Q‖² as stored
  double weight_square = 0;  // ‖W‖²
  double damping = 0;        // the greatest used
  int64_t num_dead_columns = 0;

  // Experts that calibration showed too few tokens, and how many.
  struct Starved {
    int64_t expert = 0;
    int64_t num_inputs = 0;
  };
  std::vector<Starved> starved;
};

}  // namespace braid
