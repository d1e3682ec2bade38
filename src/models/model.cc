#include "models/model.h"

#include "base/error.h"

namespace braid {

void Model::rebind_layer(int64_t, const WeightMap&) {
  throw Error("layers of {} models cannot be replaced", family());
}

void Model::place_shared(Placement&) {
  throw Error("layers of {} models cannot be placed one by one", family());
}

void Model::place_layer(int64_t, Placement& placement) { place_shared(placement); }

}  // namespace braid
