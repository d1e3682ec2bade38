#pragma once

#include "tensor/cuda/stream_state.h"
#include "tensor/stream.h"

namespace braid {

// While it lives, the tables that ops put on a CUDA device are shared by the ops of a step.
class StepTables {
 public:
  explicit StepTables(Stream& stream) : stream_(stream) {
    if (!stream_.is_cpu()) stream_.cuda().begin_step();
  }
  ~StepTables() {
    if (!stream_.is_cpu()) stream_.cuda().end_step();
  }
  StepTables(const StepTables&) = delete;
  StepTables& operator=(const StepTables&) = delete;

 private:
  Stream& stream_;
};

}  // namespace braid
