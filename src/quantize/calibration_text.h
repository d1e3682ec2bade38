#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "quantize/calibration_pass.h"
#include "tokenizer/tokenizer.h"

namespace braid {

struct CalibrationTextOptions {
  int64_t num_sequences = 128;
  int64_t length = 512;
  uint64_t seed = 0;  // of the choice, where the text has more than that
};

// Sequences of `length` tokens, each with the tokenizer's BOS in front if it adds one: the text cut
// into pieces, of which num_sequences are drawn (all, if there are fewer). `text` is plain text, or
// JSON lines whose field "text" counts, if it begins with "{". `origin` is for messages. Throws
// Error if there is not a single piece.
CalibrationTokens calibration_from_text(std::string_view text, const std::string& origin,
                                        const Tokenizer& tokenizer,
                                        const CalibrationTextOptions& options);

}  // namespace braid
