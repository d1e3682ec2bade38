#include "models/model.h"

#include "base/error.h"

namespace braid {

void Model::rebind_layer(int64_t, const WeightMap&) {
  throw Error("layers of {} models cannot be replaced", family());
}

}  // namespace braid
