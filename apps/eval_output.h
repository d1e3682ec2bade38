#pragma once

#include <string>

#include "evaluate/eval_report.h"

namespace braid {

// The report as tables for a terminal.
std::string eval_tables(const EvalReport& report);

}  // namespace braid
