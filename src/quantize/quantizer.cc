#include "quantize/quantizer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "checkpoint/checksum.h"
#include "checkpoint/printable.h"
#include "checkpoint/source_fingerprint.h"
#include "convert/gguf_metadata.h"
#include "convert/hf_folder.h"
#include "layers/placement.h"
#include "models/registry.h"
#include "quant/panels.h"
#include "quantize/block_rounding.h"
#include "quantize/gguf_output.h"
#include "quantize/gguf_recipe.h"
#include "quantize/hessian_solver.h"
#include "quantize/layer_hessians.h"
#include "quantize/quantization_entry.h"
#include "quantize/quantized_parts.h"
#include "quantize/report.h"
#include "quantize/text_file.h"
#include "quantize/work_folder.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kRowGrain = 16;
constexpr double kSizeTolerance = 0.01;
constexpr const char* kGgufName = "model.gguf";
constexpr size_t kWorkspaceBytes = size_t{64} << 30;  // of address space

// Adds to `seconds` what a scope takes.
class Timer {
 public:
  explicit Timer(double& seconds) : seconds_(seconds) {}
  ~Timer() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

class Key {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void add(T value) { checksum_.add(std::as_bytes(std::span(&value, 1))); }
  void add(std::string_view text) {
    add(text.size());
    checksum_.add(std::as_bytes(std::span(text)));
  }
  void add(std::span<const int32_t> values) { checksum_.add(std::as_bytes(values)); }
  uint64_t value() const { return checksum_.value(); }

 private:
  Checksum checksum_;
};

uint64_t key_of(const ModelFiles& files, const CalibrationTokens& calibration,
                const QuantizeOptions& options) {
  Key key;
  key.add(fingerprint(files));
  const Recipe& recipe = options.recipe;
  key.add(std::string_view(recipe.scheme));
  key.add(recipe.group_size);
  for (const bool flag : {recipe.asymmetric, recipe.strict, recipe.head, recipe.half_scales,
                          options.search_scales, options.gptq.search_scales}) {
    key.add(static_cast<int>(flag));
  }
  for (const Recipe::Rule& rule : recipe.rules) {
    key.add(std::string_view(rule.modules));
    key.add(std::string_view(rule.storage));
  }
  key.add(static_cast<int>(recipe.gguf));
  key.add(static_cast<int>(options.method));
  key.add(options.gptq.damping);
  key.add(static_cast<int>(options.gptq.order));
  key.add(options.gptq.refinements);
  key.add(options.min_inputs_per_column);
  key.add(static_cast<int>(options.one_pass));
  key.add(static_cast<int>(options.device.kind));
  key.add(static_cast<int>(options.precision));
  key.add(calibration.length);
  for (const auto& sequence : calibration.sequences) key.add(std::span(sequence));
  return key.value();
}

// Infinity or NaN in any number of a tensor.
bool all_finite(const Weight& weight) {
  const int64_t cols = weight.cols(),
                rows = weight.shape.num_elements() / std::max<int64_t>(cols, 1);
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    expand_row(weight, r, row.data());
    for (const float x : row) {
      if (!std::isfinite(x)) return false;
    }
  }
  return true;
}

void refuse_nonfinite(const WeightMap& weights, ThreadPool& pool) {
  std::vector<const StoredTensor*> tensors;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (tensor.weight.format != nullptr && tensor.weight.shape.num_elements() > 0) {
      tensors.push_back(&tensor);
    }
  }
  std::vector<char> bad(tensors.size());
  pool.parallel_for(static_cast<int64_t>(tensors.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) bad[i] = all_finite(tensors[i]->weight) ? 0 : 1;
  });
  std::vector<std::string> names;
  for (size_t i = 0; i < bad.size(); ++i) {
    if (bad[i] != 0) names.push_back(printable(tensors[i]->name));
  }
  if (!names.empty()) {
    throw Error("{}: NaN or infinite weights in {}", weights.origin(), join_some(names, ", ", 5));
  }
}

bool has_single_experts(const WeightMap& weights) {
  return std::any_of(weights.tensors().begin(), weights.tensors().end(),
                     [](const auto& entry) { return expert_name(entry.first).has_value(); });
}

Weight allocate(const TensorPlan& plan) {
  Weight weight;
  weight.format = plan.format;
  weight.shape = plan.shape;
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
  weight.data = buffer->data();
  weight.owner = buffer;
  return weight;
}

// Turns matrices of one layer (or of what belongs to none) into their formats.
class PartQuantizer {
 public:
  PartQuantizer(Stream& stream, Workspace& workspace, const WeightMap& weights,
                const QuantizeOptions& options, const LayerHessians* hessians, PhaseTimes& times)
      : stream_(stream),
        workspace_(workspace),
        pool_(stream.pool()),
        weights_(weights),
        options_(options),
        hessians_(hessians),
        times_(times) {}

  WorkFolder::Part run(const std::vector<const TensorPlan*>& plans) {
    WorkFolder::Part part;
    // Matrices by the Hessian they share, so that it is factored once and forgotten then.
    std::map<std::pair<LayerHessians::Family*, size_t>, std::vector<Matrix>> by_hessian;
    std::vector<Matrix> unseen, without_grid;
    std::map<const TensorPlan*, MatrixResult> results;
    for (const TensorPlan* plan : plans) {
      MatrixResult& result = results[plan];
      result.name = plan->name;
      result.format = plan->per_row ? std::string(plan->format->name) + " per row"
                                    : std::string(plan->format->name);
      const Weight& weight = part.weights.emplace(plan->name, allocate(*plan)).first->second;
      const int64_t matrices = plan->shape.rank() == 3 ? plan->shape.dim(0) : 1;
      for (int64_t m = 0; m < matrices; ++m) {
        const Matrix matrix{plan, m, &weight, &result};
        if (!has_grid(*plan) || plan->column_run != 0) {
          without_grid.push_back(matrix);
          continue;
        }
        LayerHessians::Reader reader;
        if (hessians_ != nullptr) reader = hessians_->find(plan->name, static_cast<size_t>(m));
        if (reader.family == nullptr || (*reader.family)[reader.member] == nullptr) {
          unseen.push_back(matrix);
        } else {
          by_hessian[{reader.family.get(), reader.member}].push_back(matrix);
        }
      }
    }
    for (auto& [reader, matrices] : by_hessian) {
      std::unique_ptr<Hessian>& hessian = (*reader.first)[reader.second];
      quantise_with(*hessian, matrices);
      hessian.reset();
    }
    for (const Matrix& matrix : unseen) quantise_unseen(matrix);
    for (const Matrix& matrix : without_grid) round_matrix(matrix);
    for (const TensorPlan* plan : plans) {
      MatrixResult& result = results[plan];
      result.method = method_of(*plan, result);
      part.results.push_back(std::move(result));
    }
    return part;
  }

 private:
  struct Matrix {
    const TensorPlan* plan;
    int64_t index;  // in its stack
    const Weight* to;
    MatrixResult* result;

    int64_t rows() const { return plan->shape.dim(-2); }
    int64_t cols() const { return plan->cols(); }
    bool expert() const { return plan->kind == ModuleKind::kExperts; }
    int64_t expert_index() const {
      const auto one = expert_name(plan->name);
      return one ? one->expert : index;
    }
  };

  std::string method_of(const TensorPlan& plan, const MatrixResult& result) const {
    if (options_.method == QuantizeMethod::kNearest || gptq_matrices_[&plan] == 0) return "rtn";
    if (result.starved.empty()) return "gptq";
    return fmt::format("gptq, {} experts rtn", result.starved.size());
  }

  std::vector<float> load(const Matrix& matrix) const {
    const Weight source = weights_.find(matrix.plan->name)->payload();
    const std::vector<int64_t>& runs = matrix.plan->column_runs;
    const int64_t run = matrix.plan->column_run;
    const int64_t rows = matrix.rows(), cols = matrix.cols();
    std::vector<float> w(static_cast<size_t>(rows * cols));
    pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      std::vector<float> given(run != 0 ? static_cast<size_t>(cols) : 0);
      for (int64_t r = begin; r < end; ++r) {
        float* const row = w.data() + r * cols;
        expand_row(source, matrix.index * rows + r, run != 0 ? given.data() : row);
        for (size_t i = 0; i < runs.size(); ++i) {
          std::copy_n(given.data() + runs[i] * run, run, row + static_cast<int64_t>(i) * run);
        }
      }
    });
    return w;
  }

  // As the reference quantisers round.
  RoundedRows nearest(const Matrix& matrix, const std::vector<float>& w) {
    return round_to_nearest(pool_, grid_of(*matrix.plan), w.data(), matrix.rows(), matrix.cols(),
                            nullptr, options_.search_scales);
  }

  void store(const Matrix& matrix, const RoundedRows& rounded, const WeightError& error) {
    const RoundingGrid grid = grid_of(*matrix.plan);
    const int64_t rows = matrix.rows(), row_bytes = matrix.to->row_bytes();
    // The buffer is this part's own.
    auto* const to = const_cast<std::byte*>(matrix.to->data) + matrix.index * rows * row_bytes;
    pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) pack_row(grid, rounded, r, to + r * row_bytes);
    });
    add_error(matrix, error);
  }

  static void add(std::optional<RoundingError>& sum, const RoundingError& one, double share) {
    if (!sum) sum = RoundingError();
    sum->error += share * one.error;
    sum->output += share * one.output;
  }

  bool is_starved(const Matrix& matrix, int64_t num_inputs) const {
    return matrix.expert() &&
           static_cast<double>(num_inputs) <
               options_.min_inputs_per_column * static_cast<double>(matrix.cols());
  }

  void quantise_with(Hessian& hessian, const std::vector<Matrix>& matrices) {
    {
      const Timer timer(times_.hessian);
      hessian.finish(stream_);
      stream_.synchronize();
    }
    const auto solver = HessianSolver::make(
        stream_, workspace_, hessian, {.exact = options_.precision == ActivationPrecision::kF32});
    HessianSolver::Inverse inverse;
    int64_t inverse_group = 0;
    for (const Matrix& matrix : matrices) {
      const RoundingGrid grid = grid_of(*matrix.plan);
      MatrixResult& result = *matrix.result;
      result.num_inputs += hessian.num_inputs();
      const bool starved = is_starved(matrix, hessian.num_inputs());
      if (starved) result.starved.push_back({matrix.expert_index(), hessian.num_inputs()});
      const bool gptq = options_.method == QuantizeMethod::kGptq && !starved;
      if (gptq && inverse_group != grid.group) {
        inverse_group = grid.group;
        const Timer timer(times_.factor);
        inverse = solver->invert(options_.gptq.damping, options_.gptq.order, grid.group);
        stream_.synchronize();
      }
      {
        const Timer timer(times_.load);
        solver->load(grid, weights_.find(matrix.plan->name)->payload(),
                     matrix.index * matrix.rows(), matrix.rows());
        stream_.synchronize();
      }
      {
        // As the reference quantisers round.
        const Timer timer(times_.round);
        solver->round_to_nearest(options_.search_scales);
        stream_.synchronize();
      }
      RoundingError error = compare(*solver);
      const auto share = static_cast<double>(hessian.num_inputs());
      add(result.nearest, error, share);
      if (gptq) {
        result.damping = std::max(result.damping, inverse.damping);
        result.num_dead_columns += inverse.num_dead_columns;
        ++gptq_matrices_[matrix.plan];
        {
          const Timer timer(times_.round);
          solver->round_gptq(options_.gptq);
          stream_.synchronize();
        }
        error = compare(*solver);
      }
      add(result.stored, error, share);
      const Timer timer(times_.pack);
      store(matrix, solver->rounded(), solver->weight_error());
    }
  }

  RoundingError compare(HessianSolver& solver) {
    const Timer timer(times_.compare);
    return solver.rounding_error();
  }

  void quantise_unseen(const Matrix& matrix) {
    if (hessians_ != nullptr && matrix.expert()) {
      matrix.result->starved.push_back({matrix.expert_index(), 0});
    }
    const std::vector<float> w = load(matrix);
    const Timer timer(times_.round);
    const RoundedRows rounded = nearest(matrix, w);
    store(matrix, rounded, weight_error(pool_, grid_of(*matrix.plan), w, rounded));
  }

  // Into blocks that have a rounding of their own.
  void round_matrix(const Matrix& matrix) {
    const std::vector<float> w = load(matrix);
    const Timer timer(times_.round);
    const int64_t rows = matrix.rows(), cols = matrix.cols();
    const int64_t row_bytes = matrix.to->row_bytes();
    auto* const to = const_cast<std::byte*>(matrix.to->data) + matrix.index * rows * row_bytes;
    std::vector<WeightError> errors(static_cast<size_t>(rows));
    pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      std::vector<float> stored(static_cast<size_t>(cols));
      for (int64_t r = begin; r < end; ++r) {
        round_blocks(*matrix.plan->format, w.data() + r * cols, cols, to + r * row_bytes);
        dequantize(*matrix.plan->format, to + r * row_bytes, cols, stored.data());
        for (int64_t c = 0; c < cols; ++c) {
          const double x = w[r * cols + c], e = x - stored[c];
          errors[r].error += e * e;
          errors[r].square += x * x;
        }
      }
    });
    WeightError sum;
    for (const WeightError& row : errors) {
      sum.error += row.error;
      sum.square += row.square;
    }
    add_error(matrix, sum);
  }

  void add_error(const Matrix& matrix, const WeightError& error) {
    matrix.result->weight_error += error.error;
    matrix.result->weight_square += error.square;
    if (!std::isfinite(matrix.result->weight_error)) {
      throw Error("{}: weights are too large for the scales of {}", printable(matrix.plan->name),
                  matrix.plan->format->name);
    }
  }

  Stream& stream_;
  Workspace& workspace_;
  ThreadPool& pool_;
  const WeightMap& weights_;
  const QuantizeOptions& options_;
  const LayerHessians* hessians_;
  PhaseTimes& times_;
  mutable std::map<const TensorPlan*, int64_t> gptq_matrices_;
};

class Quantizer {
 public:
  Quantizer(const fs::path& path, const fs::path& out, const CalibrationTokens& calibration,
            ThreadPool& pool, const QuantizeOptions& options)
      : path_(path),
        out_(out),
        calibration_(calibration),
        pool_(pool),
        options_(options),
        files_(open(path, options)),
        work_(out, key_of(files_, calibration, options)),
        stream_(pool, options.device),
        workspace_(kWorkspaceBytes, options.device) {
    use_canonical_names(files_);
    // Binding a model copies experts that are stored one by one; only calibration has to have it.
    if (calibrated() || !has_single_experts(files_.weights())) model_ = load_model(files_);
    num_layers_ = model_ != nullptr ? model_->num_layers() : count_layers(files_.weights());
    if (files_.is_gguf() && !as_gguf()) texts_ = hf_folder_texts(files_);
    plans_ = plan_tensors(files_.weights(), options.recipe);
    if (as_gguf()) {
      layout_ = gguf_layout(files_);
      fit_plans_to_layout(layout_, files_.weights(), plans_);
    } else if (files_.is_gguf()) {
      for (TensorPlan& plan : plans_) {
        plan.file_name = hf_tensor_name(plan.name);
        if (!plan.quantised()) plan.kept_as = dtype_name(kept_dtype(plan));
      }
    }
    for (const TensorPlan& plan : plans_) {
      if (!plan.quantised()) continue;
      const int64_t part = layer_of(plan.name).value_or(num_layers_);
      parts_[part].push_back(&plan);
      progress_.total += plan.num_parameters();
      if (plan.column_run != 0) moved_columns_.insert(plan.name);
    }
    check_formats();
  }

  QuantizeResult run() {
    const auto start = Clock::now();
    refuse_nonfinite(files_.weights(), pool_);
    const int64_t layers = num_layers_;
    if (calibrated()) {
      if (!stream_.is_cpu()) {
        const Timer timer(times_.load);
        Placement shared(stream_.device());
        model_->place_shared(shared);
      }
      pass_.emplace(*model_, calibration_, stream_, workspace_, options_.precision);
      const Timer timer(times_.forward);
      pass_->embed();
      stream_.synchronize();
    }
    for (int64_t part = 0; part <= layers; ++part) {
      report_progress(part < layers ? fmt::format("layer {} of {}", part + 1, layers)
                                    : std::string("other tensors"));
      do_part(part);
    }
    report_progress("writing");
    QuantizeResult result = write();
    times_.total = std::chrono::duration<double>(Clock::now() - start).count();
    result.times = times_;
    write_reports(output_, {plans_, results_, result, calibration_, options_, path_});
    as_gguf() ? publish_gguf() : work_.publish();
    return result;
  }

 private:
  static ModelFiles open(const fs::path& path, const QuantizeOptions& options) {
    if (options.dummy_weights) return open_dummy(path, options.dummy_seed);
    ModelFiles files = ModelFiles::open(path);
    const bool to_gguf = options.file_format == QuantizedFileFormat::kGguf;
    if (to_gguf != options.recipe.gguf) throw Error("recipe.gguf must be {}", to_gguf);
    if (files.is_packed()) {
      throw Error("{}: is packed for speed; give the model it was made from", path.string());
    }
    return files;
  }

  bool as_gguf() const { return options_.file_format == QuantizedFileFormat::kGguf; }
  // With the tensors that a model of the config asks for.
  static ModelFiles open_dummy(const fs::path& path, uint64_t seed) {
    ModelFiles files = ModelFiles::open(path, /*with_weights=*/false);
    auto made = std::make_shared<WeightMap>();
    made->set_origin(path.string());
    files.weights() = WeightMap::dummy(seed, *DummyFormats::find("bf16"));
    files.weights().keep_dummies_in(made);
    load_model(files);
    files.weights() = *made;
    return files;
  }

  bool calibrated() const { return !calibration_.sequences.empty(); }

  void check_formats() const {
    if (as_gguf()) return;
    for (const TensorPlan& plan : plans_) {
      if (!plan.quantised()) continue;
      const bool groups = as_w4(plan), rows = plan.format->id == FormatId::kW8C;
      const bool gptq = options_.file_format == QuantizedFileFormat::kGptq;
      if (gptq ? !groups : !groups && !rows) {
        throw UsageError("--format {}: {} cannot be stored as {} there",
                         gptq ? "gptq" : "compressed-tensors", printable(plan.name),
                         plan.format->name);
      }
    }
  }
  static bool as_w4(const TensorPlan& plan) { return plan.format->name.starts_with("w4"); }

  void report_progress(const std::string& phase) {
    if (!options_.progress) return;
    progress_.phase = phase;
    options_.progress(progress_);
  }

  // The last part has no layer.
  void do_part(int64_t index) {
    const std::vector<const TensorPlan*>& plans = parts_[index];
    const bool is_layer = index < num_layers_;
    int64_t elements = 0;
    for (const TensorPlan* plan : plans) elements += plan->num_parameters();
    WorkFolder::Part part;
    if (work_.has_part(index)) {
      progress_.resumed += elements;
      if (is_layer) ++times_.layers_resumed;
    } else {
      part = calibrated() && is_layer && !plans.empty()
                 ? quantise_layer(index, plans)
                 : PartQuantizer(stream_, workspace_, files_.weights(), options_, nullptr, times_)
                       .run(plans);
      const Timer timer(times_.write);
      work_.save_part(index, part);
    }
    part = work_.load_part(index);
    check_part(index, plans, part);
    for (MatrixResult& result : part.results) results_.emplace(result.name, std::move(result));
    for (auto& [name, weight] : part.weights) weights_.insert_or_assign(name, std::move(weight));
    progress_.done += elements;
    if (!is_layer || !calibrated()) return;
    if (index + 1 < num_layers_) {
      rebind(index);
      place(index);
      const Timer timer(times_.forward);
      pass_->run_layer(index);
      stream_.synchronize();
    }
    take_back(index);
  }

  // Stage by stage: the inputs of a matrix are those that the layer's quantised matrices before it
  // give.
  WorkFolder::Part quantise_layer(int64_t layer, const std::vector<const TensorPlan*>& plans) {
    WorkFolder::Part part;
    place(layer);
    const auto stages = stages_of(layer, plans);
    for (size_t i = 0; i < stages.size(); ++i) {
      const std::unique_ptr<LayerHessians> hessians = observe(layer, stages[i]);
      PartQuantizer quantizer(stream_, workspace_, files_.weights(), options_, hessians.get(),
                              times_);
      WorkFolder::Part done = quantizer.run(stages[i]);
      for (const auto& [name, weight] : done.weights) weights_.insert_or_assign(name, weight);
      part.weights.merge(done.weights);
      for (MatrixResult& result : done.results) part.results.push_back(std::move(result));
      if (i + 1 < stages.size()) {
        rebind(layer);
        place(layer);
      }
    }
    return part;
  }

  // Matrices that read the same input, in the order in which the layer multiplies them.
  std::vector<std::vector<const TensorPlan*>> stages_of(
      int64_t layer, const std::vector<const TensorPlan*>& plans) {
    if (options_.one_pass) return {plans};
    ReaderOrder order;
    {
      const Timer timer(times_.forward);
      pass_->observe_layer(layer, order, /*num_batches=*/1);
      stream_.synchronize();
    }
    std::map<size_t, std::vector<const TensorPlan*>> stages;
    for (const TensorPlan* plan : plans) stages[order.stage_of(plan->name)].push_back(plan);
    std::vector<std::vector<const TensorPlan*>> result;
    for (auto& [number, stage] : stages) result.push_back(std::move(stage));
    return result;
  }

  void check_part(int64_t index, const std::vector<const TensorPlan*>& plans,
                  const WorkFolder::Part& part) const {
    bool fits = part.weights.size() == plans.size();
    for (const TensorPlan* plan : plans) {
      const auto found = part.weights.find(plan->name);
      fits = fits && found != part.weights.end() && found->second.format == plan->format &&
             found->second.shape == plan->shape;
    }
    if (!fits) throw Error("part {} of the interrupted work does not fit; remove it", index);
  }

  std::unique_ptr<LayerHessians> observe(int64_t layer,
                                         const std::vector<const TensorPlan*>& plans) {
    std::vector<std::string> names;
    for (const TensorPlan* plan : plans) names.push_back(plan->name);
    auto hessians = std::make_unique<LayerHessians>(stream_, workspace_, names);
    double seconds = 0;
    {
      const Timer timer(seconds);
      pass_->observe_layer(layer, *hessians);
      stream_.synchronize();
    }
    times_.forward += seconds - hessians->seconds();
    times_.hessian += hessians->seconds();
    times_.hessian_operations += hessians->operations();
    return hessians;
  }

  // The layer with its quantised matrices, as a later program will load it.
  void rebind(int64_t layer) {
    WeightMap map;
    map.set_origin(files_.origin());
    const std::string prefix = fmt::format("layers.{}.", layer);
    for (const auto& [name, tensor] : files_.weights().tensors()) {
      if (!name.starts_with(prefix)) continue;
      StoredTensor bound = tensor;
      const auto found = weights_.find(name);
      // Columns in the order of the file are not those of the model.
      if (found != weights_.end() && !moved_columns_.contains(name)) {
        bound.weight = found->second;
        bound.dtype_name = bound.weight.format->name;
      }
      map.add(std::move(bound));
    }
    model_->rebind_layer(layer, map);
  }

  // On a device: puts the layer there. What is there already, of an earlier stage, stays.
  void place(int64_t layer) {
    if (stream_.is_cpu()) return;
    const Timer timer(times_.load);
    if (!placement_) placement_.emplace(stream_.device());
    model_->place_layer(layer, *placement_);
    placement_->finish();
  }
  void take_back(int64_t layer) {
    if (stream_.is_cpu()) return;
    rebind(layer);
    placement_.reset();
  }

  static DType dtype_of(const StoredTensor& tensor) {
    const std::pair<std::string_view, DType> known[] = {
        {"F64", DType::kF64}, {"F32", DType::kF32},  {"F16", DType::kF16}, {"BF16", DType::kBF16},
        {"I64", DType::kI64}, {"I32", DType::kI32},  {"I16", DType::kI16}, {"I8", DType::kI8},
        {"U8", DType::kU8},   {"BOOL", DType::kBool}};
    for (const auto& [name, dtype] : known) {
      if (name == tensor.dtype_name) return dtype;
    }
    throw Error("{}: tensor {}: type {} cannot be copied", tensor.file, printable(tensor.name),
                tensor.dtype_name);
  }

  // Of a GGUF file's tensor in a folder: blocks become bfloat16.
  DType kept_dtype(const TensorPlan& plan) const {
    const Weight& weight = files_.weights().find(plan.name)->weight;
    if (weight.format == nullptr) {
      throw Error("{}: tensor {}: type {} is not supported", files_.origin(), printable(plan.name),
                  plan.source_type);
    }
    switch (weight.format->id) {
      case FormatId::kF32:
        return DType::kF32;
      case FormatId::kF16:
        return DType::kF16;
      default:
        return DType::kBF16;
    }
  }

  OutputTensors expanded(const TensorPlan& plan) const {
    const DType dtype = kept_dtype(plan);
    const QuantFormat& format = quant_format(dtype == DType::kF32   ? FormatId::kF32
                                             : dtype == DType::kF16 ? FormatId::kF16
                                                                    : FormatId::kBF16);
    const auto make = [this, &plan, &format] {
      const Weight& weight = files_.weights().find(plan.name)->weight;
      const float offset = hf_tensor_offset(files_, plan.name);
      const int64_t cols = weight.cols(), row_bytes = format.row_bytes(cols);
      const int64_t rows = weight.shape.num_elements() / cols;
      std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes));
      pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
        std::vector<float> row(static_cast<size_t>(cols));
        for (int64_t r = begin; r < end; ++r) {
          expand_row(weight, r, row.data());
          for (float& x : row) x -= offset;
          quantize(format, row.data(), cols, bytes.data() + r * row_bytes);
        }
      });
      return std::vector<std::vector<std::byte>>{std::move(bytes)};
    };
    return {.parts = {{plan.file_name, dtype, plan.shape}}, .make = make, .stored = {}};
  }

  std::vector<OutputTensors> outputs() const {
    std::vector<OutputTensors> outputs;
    for (const TensorPlan& plan : plans_) {
      if (plan.quantised()) {
        const Weight& weight = weights_.find(plan.name)->second;
        std::vector<OutputTensors> parts =
            options_.file_format == QuantizedFileFormat::kGptq
                ? gptq_parts(plan, weight)
                : compressed_tensors_parts(plan, weight, options_.split_experts);
        for (OutputTensors& part : parts) outputs.push_back(std::move(part));
        continue;
      }
      if (files_.is_gguf()) {
        outputs.push_back(expanded(plan));
        continue;
      }
      const StoredTensor& tensor = *files_.weights().find(plan.name);
      outputs.push_back({.parts = {{plan.file_name, dtype_of(tensor), plan.shape}},
                         .make = {},
                         .stored = {tensor.weight.data, static_cast<size_t>(plan.source_bytes)}});
    }
    return outputs;
  }

  void write_gguf(QuantizeResult& result) {
    const GgufOutput output(layout_, plans_, files_.weights(), weights_);
    const GgufScheme& scheme = *find_gguf_scheme(options_.recipe.scheme);
    const GgufMetadataWriter metadata = gguf_metadata(files_, layout_, scheme.file_type);
    result.bytes_predicted = output.bytes();
    result.added = output.added();
    output.write(output_ / kGgufName, metadata, pool_, [&] { report_progress("writing"); });
    result.files.push_back(out_.filename());
    result.bytes_after = static_cast<int64_t>(fs::file_size(output_ / kGgufName)) -
                         static_cast<int64_t>(metadata.bytes().size());
  }

  void publish_gguf() {
    work_.publish_files({{"report.json", gguf_report_path(out_, ".json")},
                         {"report.md", gguf_report_path(out_, ".md")},
                         {kGgufName, out_}});
  }

  QuantizeResult write() {
    const Timer timer(times_.write);
    output_ = work_.start_output();
    QuantizeResult result;
    for (const TensorPlan& plan : plans_) {
      ++result.num_tensors;
      result.num_parameters += plan.num_parameters();
      result.bytes_before += plan.source_bytes;
      if (!plan.quantised()) continue;
      ++result.num_quantised;
      result.num_parameters_quantised += plan.num_parameters();
    }
    for (const auto& [name, one] : results_) {
      result.num_starved += static_cast<int64_t>(one.starved.size());
    }
    if (as_gguf()) {
      write_gguf(result);
      return result;
    }
    const std::vector<OutputTensors> tensors = outputs();
    for (const OutputTensors& one : tensors) result.bytes_predicted += one.bytes();
    const auto written = [&](int64_t) { report_progress("writing"); };
    for (const std::string& name :
         write_sharded(output_, tensors, options_.max_shard_bytes, written)) {
      result.files.emplace_back(name);
      result.bytes_after += static_cast<int64_t>(fs::file_size(output_ / name));
    }
    copy_other_files();
    const double difference = static_cast<double>(result.bytes_after - result.bytes_predicted) -
                              header_bytes_allowed(tensors);
    if (difference > kSizeTolerance * static_cast<double>(result.bytes_predicted)) {
      throw Error("{}: {} bytes written, but {} were predicted", output_.string(),
                  result.bytes_after, result.bytes_predicted);
    }
    return result;
  }

  // A header names each tensor, its shape and place.
  static double header_bytes_allowed(const std::vector<OutputTensors>& tensors) {
    size_t bytes = 64;
    for (const OutputTensors& one : tensors) {
      for (const OutputTensors::Part& part : one.parts) bytes += part.name.size() + 128;
    }
    return static_cast<double>(bytes);
  }

  void copy_other_files() const {
    const std::string config =
        files_.is_gguf() ? texts_.at("config.json") : read_file(path_ / "config.json");
    write_text_file(output_ / "config.json",
                    options_.file_format == QuantizedFileFormat::kGptq
                        ? with_gptq_entry(config, plans_)
                        : with_compressed_tensors_entry(config, plans_, options_.split_experts));
    for (const auto& [name, text] : texts_) {
      if (name != "config.json") write_text_file(output_ / name, text);
    }
    if (files_.is_gguf()) return;
    constexpr const char* kNames[] = {"generation_config.json",
                                      "tokenizer.json",
                                      "tokenizer_config.json",
                                      "tokenizer.model",
                                      "vocab.json",
                                      "merges.txt",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "processor_config.json",
                                      "preprocessor_config.json",
                                      "LICENSE",
                                      "NOTICE"};
    for (const char* name : kNames) {
      std::error_code error;
      if (!fs::is_regular_file(path_ / name, error)) continue;
      write_text_file(output_ / name, read_file(path_ / name));
    }
  }

  fs::path path_, out_, output_;
  const CalibrationTokens& calibration_;
  ThreadPool& pool_;
  const QuantizeOptions& options_;
  ModelFiles files_;
  WorkFolder work_;
  std::unique_ptr<Model> model_;  // null where nothing is calibrated and experts stand one by one
  int64_t num_layers_ = 0;
  Stream stream_;
  Workspace workspace_;
  std::optional<CalibrationPass> pass_;
  std::optional<Placement> placement_;  // of the layer at work
  std::vector<TensorPlan> plans_;
  GgufLayout layout_;                         // as_gguf()
  std::map<std::string, std::string> texts_;  // of a folder made of a GGUF file
  std::set<std::string, std::less<>> moved_columns_;
  std::map<int64_t, std::vector<const TensorPlan*>> parts_;
  std::map<std::string, Weight, std::less<>> weights_;  // quantised ones
  std::map<std::string, MatrixResult> results_;
  QuantizeProgress progress_;
  PhaseTimes times_;
};

}  // namespace

QuantizeResult quantize_model(const fs::path& model, const fs::path& out,
                              const CalibrationTokens& calibration, ThreadPool& pool,
                              const QuantizeOptions& options) {
  if (options.method == QuantizeMethod::kGptq && calibration.sequences.empty()) {
    throw Error("GPTQ needs calibration text");
  }
  return Quantizer(model, out, calibration, pool, options).run();
}

}  // namespace braid
