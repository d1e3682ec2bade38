#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/model_files.h"
#include "ops/linear/linear.h"
#include "quantize/calibration_pass.h"
#include "quantize/gptq.h"
#include "quantize/plan.h"
#include "tensor/device.h"

namespace braid {

struct QuantizeProgress {
  std::string phase;  // "layer 3 of 48", "writing"
  // Of the matrices' elements: done by now, done before this run, of all.
  int64_t done = 0, resumed = 0, total = 0;
};

enum class QuantizeMethod { kNearest, kGptq };
enum class QuantizedFileFormat {
  kCompressedTensors,
  kGptq,  // AutoGPTQ's v1: zeros less one
  kGguf,  // one file; recipe.gguf goes with it
};

struct QuantizeOptions {
  Recipe recipe;
  QuantizeMethod method = QuantizeMethod::kGptq;
  GptqOptions gptq;
  bool split_experts = false;  // stacks are written as experts one by one
  // All matrices of a layer are calibrated at once, rather than each with those before it
  // quantised.
  bool one_pass = false;
  bool search_scales = false;  // of matrices that are rounded to nearest
  // GPTQ aims at what a matrix gives in the source, from the inputs that it has there, rather than
  // at what its own weights would give from the inputs that the quantised model has. Not of
  // experts.
  bool match_source = false;
  // With a calibration, matrices that are rounded to nearest are compared on it.
  bool measure_outputs = true;
  // Whether what a calibration shows of the inputs of products is made use of.
  bool observes_products() const { return method == QuantizeMethod::kGptq || measure_outputs; }
  // Before anything else, columns of matrices are balanced against the inputs that calibration
  // shows (quantize/balance.h): 0: not at all; up to 1. Not for GGUF files.
  double balance = 0;
  QuantizedFileFormat file_format = QuantizedFileFormat::kCompressedTensors;
  int64_t max_shard_bytes = int64_t{5} << 30;
  // An expert that calibration shows fewer inputs than this share of its width is rounded to
  // nearest.
  double min_inputs_per_column = 0.25;
  // Called between steps; what it throws ends the work, which a later call resumes.
  std::function<void(const QuantizeProgress&)> progress;

  // Where calibration and rounding compute: on a CUDA device a layer at a time is there. Matrices
  // without calibration are rounded on the CPU.
  Device device;
  // To what the inputs of the layers' products are rounded. kF32: all products are of float32.
  ActivationPrecision precision = ActivationPrecision::kF32;
  // Random weights of the config's shapes instead of the folder's, for measurements of speed.
  bool dummy_weights = false;
  uint64_t dummy_seed = 0;
};

struct PhaseTimes {
  double load = 0;  // of weights: looked through, expanded, or to a device
  double forward = 0, hessian = 0, factor = 0, round = 0, compare = 0, pack = 0, write = 0,
         total = 0;
  double hessian_operations = 0;
  int64_t layers_resumed = 0;
};

struct QuantizeResult {
  std::vector<std::filesystem::path> files;
  int64_t num_tensors = 0, num_quantised = 0;
  int64_t num_parameters = 0, num_parameters_quantised = 0;
  int64_t bytes_before = 0, bytes_predicted = 0, bytes_after = 0;  // of tensors
  int64_t num_starved = 0;
  std::vector<std::string> added;  // tensors that the source has not
  int64_t device_peak_bytes = 0;   // allocated on the device at most
  PhaseTimes times;
};

// Quantises a model into the folder `out`, layer by layer: the inputs of a layer are
// those that the quantised layers before it give. Memory: a layer, its Hessians and the hidden
// states of the calibration; with match_source, of these two. `calibration` may be empty for
// kNearest without static scales of keys and values; these are those of the model whose layers up
// to there are quantised.
//
// The folder appears whole or not at all. Finished layers are kept beside it (OUT.quantizing) until
// then; a call with the same model, options and calibration goes on from there, to the same bytes.
// Throws Error naming the tensor for weights that are not finite.
//
// kGguf: `out` is a file; its reports lie beside it (OUT.report.md for OUT.gguf). `model` may be a
// GGUF file too.
QuantizeResult quantize_model(const std::filesystem::path& model, const std::filesystem::path& out,
                              const CalibrationTokens& calibration, ThreadPool& pool,
                              const QuantizeOptions& options);

}  // namespace braid
