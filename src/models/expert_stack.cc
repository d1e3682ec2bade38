#include "models/expert_stack.h"

#include <fmt/format.h>

#include <vector>

#include "base/error.h"
#include "models/weight_rows.h"

namespace braid {

Weight bind_expert_stack(LayerBinder& bind, const std::string& experts, const std::string& matrix,
                         const Shape& shape, LayerBinder::Share active) {
  std::vector<Weight> parts;
  for (int64_t i = 0; i < active.of; ++i) {
    const std::string name = fmt::format("{}.{}.{}.weight", experts, i, matrix);
    parts.push_back(bind.weight(name, shape, active));
    if (parts.back().empty()) return {};
    if (parts[i].format != parts[0].format) {
      throw Error("{}{} is stored as {}, that of expert 0 as {}; a layer's experts must share one",
                  bind.prefix(), name, parts[i].format->name, parts[0].format->name);
    }
  }
  return stack_matrices(parts);
}

}  // namespace braid
