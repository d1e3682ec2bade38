#pragma once

#include <string>
#include <vector>

#include "apps/batch_line.h"
#include "apps/result_file.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace braid {

// The files of a batch, opened before the model is loaded so that a wrong path costs no time.
struct BatchFiles {
  // `prompts`, `output`: paths, "-" for standard input and output; `output` may be empty. Throws
  // Error naming the file that cannot be used, or if both are one.
  BatchFiles(const std::string& prompts, const std::string& output);

  std::string origin;  // of the prompts
  std::string text;
  ResultFile output;
};

// Generates for every line of a JSONL file: {"prompt": TEXT} or {"messages": [...]} or
// {"ids": [...]}, and optionally "id", "max_tokens", sampling parameters, "stop" and "tools".
// Writes one line for each, in input order, as soon as its turn has come; blank lines are passed
// over. "index" is the number of the line, from 0. Ctrl-C ends what runs, writes what there is of
// it, and marks it and the rest as cancelled. `resume` keeps the results that the output holds up
// to the first cancelled one. Returns true if every line was generated, now or earlier.
bool run_batch(Engine& engine, const LoadedModel& loaded, BatchFiles& files,
               const BatchDefaults& defaults, bool resume);

}  // namespace braid
