#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/loaded_model.h"
#include "ops/linear/linear.h"
#include "tensor/dtype.h"

namespace braid {

// Throws Error unless there is a CUDA device and this build can use it.
void require_cuda();

// How a model's keys and values are stored, by --kv and by what its checkpoint says.
struct KvStorage {
  DType dtype = DType::kBF16;
  bool dynamic_scales = false;  // CacheOptions::dynamic_kv_scales
  std::string name;             // "bf16", "i8", "i8 with static scales"
};
// The values of --kv.
const std::vector<std::string>& kv_choices();

// Options every command shares that loads a model: which one, and on what it runs.
struct DeviceOptions {
  std::string model;
  std::string device = "cpu";
  int num_threads = 0;
  bool pin_threads = false;
  std::string isa;
  std::string compute = "auto";
  std::string kv_dtype = "auto";
  bool deterministic = false;
  std::string load_format = "auto";
  std::string dummy_format = "bf16";
  std::string dummy_layout = "panels";
  uint64_t dummy_seed = 0;
  std::string weight_cache = "auto";

  // Adds MODEL and the rest to `command`. `default_model` empty: MODEL is required.
  void add_model(CLI::App& command, const std::string& default_model = "");
  void add_to(CLI::App& command);

  // Checks --device, forces --isa. Call before loading.
  void apply() const;
  // read_ahead false: weights are described, not used, and no packed copy is made.
  // on_host: LoadOptions::offloaded.
  LoadedModel load(bool with_tokenizer = true, bool read_ahead = true,
                   const std::vector<int64_t>& on_host = {}) const;
  ThreadPoolOptions thread_pool() const { return {.num_threads = num_threads, .pin = pin_threads}; }
  // The storage format of dummy weights: that of panels, unless rows are wanted or it has none.
  std::string dummy_storage() const;
  // auto: int8 activations for block-quantised weights, float32 for others; on CUDA, bf16.
  ActivationPrecision precision() const;
  // auto: int8 if the checkpoint says so, float32 for --compute f32, bfloat16 otherwise. Throws
  // Error for static scales that it has not.
  KvStorage kv(const LoadedModel& loaded) const;
};

}  // namespace braid
