#pragma once

#include <string>

#include "benchmark/result.h"

namespace braid {

// A page that needs nothing else: table, share of the ceiling of each row, where its time goes.
// Well-formed XML.
std::string to_html(const BenchResult& result);

}  // namespace braid
