#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "cache/cache_plan.h"
#include "layers/placement.h"
#include "models/model.h"
#include "quantize/plan.h"
#include "quantize/quantizer.h"

namespace braid {

// Token sequences to calibrate with; none: no calibration.
struct CalibrationShape {
  int64_t sequences = 0, length = 0;
};

// What quantising a model takes, before anything of it is read: upper bounds, in bytes. On the CPU
// of the host's memory, with a CUDA device of the device's.
class MemoryNeed {
 public:
  // Describes the model: its files are mapped, not read. Throws Error as quantize_model() does.
  MemoryNeed(const std::filesystem::path& model, const QuantizeOptions& options);

  const Model* model() const { return model_.get(); }
  // How often all runs on the calibration: twice if the source is to be matched.
  int64_t passes(const CalibrationShape& shape) const { return matches(shape) ? 2 : 1; }

  // Of the source: on the CPU all of it, mapped, and a layer's experts as stacks where they are
  // stored one by one; on a device what the layers share, and a layer with what it becomes.
  int64_t source_bytes(const CalibrationShape& shape) const;
  // Finished layers, mapped until they are written. On the host.
  int64_t quantised_bytes() const;
  // Inputs of a layer, of all tokens, for each pass.
  int64_t hidden_bytes(const CalibrationShape& shape) const;
  // Of the matrices that are calibrated together, and a batch of their inputs in the source.
  int64_t hessian_bytes(const CalibrationShape& shape) const;
  // To round one matrix: its Hessian's factor and all that is as large as the matrix.
  int64_t solver_bytes(const CalibrationShape& shape) const;
  // Of balanced copies of tensors. On the host.
  int64_t balanced_bytes() const;
  // To look at keys and values. On the host.
  int64_t kv_bytes() const;
  // To pack one tensor for the files. On the host.
  int64_t output_bytes() const;

  // Keys and values, and the tokens that a layer runs on at a time.
  CacheOptions cache(const CalibrationShape& shape) const;
  int64_t batch_tokens(const CalibrationShape& shape) const;

 private:
  int64_t factor_bytes(int64_t cols) const;
  // aims: at the source's outputs.
  int64_t matrix_bytes(int64_t rows, int64_t cols, bool aims) const;
  int64_t on_device(int64_t bytes) const;
  bool matches(const CalibrationShape& shape) const;
  bool observes_products(const CalibrationShape& shape) const;

  QuantizeOptions options_;
  std::unique_ptr<ModelFiles> files_;
  std::unique_ptr<Model> model_;
  std::vector<TensorPlan> plans_;
  PlacementCount placed_;  // on a device
};

}  // namespace braid
