#include "quantize/quantizer.h"

#include <algorithm>
#include <chrono>
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
#include "models/registry.h"
#include "quant/panels.h"
#include "quantize/balance.h"
#include "quantize/finite_weights.h"
#include "quantize/gguf_output.h"
#include "quantize/gguf_recipe.h"
#include "quantize/layer_calibration.h"
#include "quantize/part_quantizer.h"
#include "quantize/phase_timer.h"
#include "quantize/quantization_entry.h"
#include "quantize/quantized_parts.h"
#include "quantize/report.h"
#include "quantize/source.h"
#include "quantize/text_file.h"
#include "quantize/work_folder.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kRowGrain = 16;
constexpr double kSizeTolerance = 0.01;
constexpr const char* kGgufName = "model.gguf";
constexpr size_t kWorkspaceBytes = size_t{64} << 30;  // of address space

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
  key.add(static_cast<int>(options.match_source));
  key.add(static_cast<int>(options.measure_outputs));
  key.add(static_cast<int>(recipe.kv));
  key.add(options.balance);
  key.add(static_cast<int>(options.device.kind));
  key.add(static_cast<int>(options.precision));
  key.add(calibration.length);
  for (const auto& sequence : calibration.sequences) key.add(std::span(sequence));
  return key.value();
}

class Quantizer {
 public:
  Quantizer(const fs::path& path, const fs::path& out, const CalibrationTokens& calibration,
            ThreadPool& pool, const QuantizeOptions& options)
      : path_(path),
        out_(out),
        calibration_(calibration),
        pool_(pool),
        options_(options),
        files_(open_source(path, options)),
        work_(out, key_of(files_, calibration, options)),
        stream_(pool, options.device),
        workspace_(kWorkspaceBytes, options.device) {
    if (options.balance > 0) balance();
    if (calibrated()) {
      layers_.emplace(files_, calibration_, stream_, workspace_, options_, times_);
      num_layers_ = layers_->num_layers();
    } else if (has_single_experts(files_.weights())) {
      // Binding a model would copy them into stacks.
      num_layers_ = count_layers(files_.weights());
    } else {
      num_layers_ = load_model(files_)->num_layers();
    }
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
    {
      const PhaseTimer timer(stream_, times_.load);
      refuse_nonfinite(files_.weights(), pool_);
    }
    const int64_t layers = num_layers_;
    if (layers_) layers_->begin();
    for (int64_t part = 0; part <= layers; ++part) {
      report_progress(part < layers ? fmt::format("layer {} of {}", part + 1, layers)
                                    : std::string("other tensors"));
      do_part(part);
    }
    report_progress("writing");
    QuantizeResult result = write();
    times_.total = std::chrono::duration<double>(Clock::now() - start_).count();
    result.times = times_;
    if (!stream_.is_cpu()) {
      result.device_peak_bytes = cuda::memory_use(stream_.device().index).peak_bytes;
    }
    write_reports(output_,
                  {plans_, results_, balanced_, kv_, result, calibration_, options_, path_});
    as_gguf() ? publish_gguf() : work_.publish();
    return result;
  }

 private:
  bool as_gguf() const { return options_.file_format == QuantizedFileFormat::kGguf; }

  // Whether layers run on the calibration while they are quantised.
  bool calibrated() const {
    return !calibration_.sequences.empty() && (options_.observes_products() || static_kv());
  }

  void balance() {
    plan_tensors(files_.weights(), options_.recipe);  // refuses what is quantised already
    refuse_nonfinite(files_.weights(), pool_);
    QuantizeOptions options = options_;
    options.match_source = false;
    LayerCalibration layers(files_, calibration_, stream_, workspace_, options, times_);
    balanced_ = balance_source(files_, layers, stream_, options.balance, [&](int64_t layer) {
      report_progress(fmt::format("balancing layer {} of {}", layer + 1, layers.num_layers()));
    });
  }

  bool static_kv() const { return options_.recipe.kv == KvRecipe::kInt8Static; }

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
    const bool is_layer = index < num_layers_, runs = is_layer && layers_;
    const bool resumed = work_.has_part(index);
    int64_t elements = 0;
    for (const TensorPlan* plan : plans) elements += plan->num_parameters();
    if (resumed) {
      progress_.resumed += elements;
      if (is_layer) ++times_.layers_resumed;
    } else {
      if (runs) layers_->open_layer(index);
      const WorkFolder::Part part = runs && !plans.empty() && options_.observes_products()
                                        ? quantise_layer(plans)
                                        : quantize_part(stream_, workspace_, files_.weights(),
                                                        options_, nullptr, times_, plans);
      const PhaseTimer timer(stream_, times_.write);
      work_.save_part(index, part);
    }
    WorkFolder::Part part = work_.load_part(index);
    check_part(index, plans, part);
    if (runs) leave_layer(index, part.weights, /*open=*/!resumed);
    for (MatrixResult& result : part.results) results_.emplace(result.name, std::move(result));
    for (const auto& [name, weight] : part.weights) weights_.insert_or_assign(name, weight);
    progress_.done += elements;
  }

  // Gives the next layer its inputs, and finds the scales of the layer's keys and values. A layer
  // that was resumed is opened as what it became.
  void leave_layer(int64_t index, const LayerCalibration::Weights& weights, bool open) {
    const bool has_scales = static_kv() && layers_->keeps_kv(index);
    const bool finds_scales = has_scales && !work_.has_kv(index);
    if (index + 1 < num_layers_ || finds_scales) {
      const LayerCalibration::Weights finished = in_order_of_the_model(weights);
      open ? layers_->replace(finished) : layers_->open_layer(index, finished);
      open = true;
      if (finds_scales) {
        KvObserver kv(stream_);
        layers_->advance(&kv);
        work_.save_kv(kv.result(index));
      } else {
        layers_->advance();
      }
    }
    if (open) layers_->close_layer();
    if (has_scales) kv_.push_back(work_.load_kv(index));
  }

  // Without those whose columns are in the order of the file.
  LayerCalibration::Weights in_order_of_the_model(const LayerCalibration::Weights& weights) const {
    LayerCalibration::Weights result = weights;
    for (const std::string& name : moved_columns_) result.erase(name);
    return result;
  }

  // Stage by stage: the inputs of a matrix are those that the layer's quantised matrices before it
  // give.
  WorkFolder::Part quantise_layer(const std::vector<const TensorPlan*>& plans) {
    WorkFolder::Part part;
    const auto stages = layers_->stages_of(plans);
    for (size_t i = 0; i < stages.size(); ++i) {
      const std::unique_ptr<LayerHessians> hessians = layers_->observe(stages[i]);
      WorkFolder::Part done = quantize_part(stream_, workspace_, files_.weights(), options_,
                                            hessians.get(), times_, stages[i]);
      if (i + 1 < stages.size()) layers_->replace(in_order_of_the_model(done.weights));
      part.weights.merge(done.weights);
      for (MatrixResult& result : done.results) part.results.push_back(std::move(result));
    }
    return part;
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
                ? gptq_parts(plan, weight, pool_)
                : compressed_tensors_parts(plan, weight, options_.split_experts, pool_);
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

  // What a layer's tensors of attention are called up to their own names.
  std::string attention_of(int64_t layer) const {
    constexpr std::string_view kAttention = "self_attn.";
    const std::string prefix = fmt::format("layers.{}.{}", layer, kAttention);
    for (const TensorPlan& plan : plans_) {
      if (!plan.name.starts_with(prefix)) continue;
      const size_t at = plan.file_name.find(kAttention);
      if (at != plan.file_name.npos) return plan.file_name.substr(0, at + kAttention.size());
    }
    throw Error("{}: layer {} has keys and values, but no tensors of attention", path_.string(),
                layer);
  }

  std::vector<OutputTensors> kv_outputs() const {
    std::vector<OutputTensors> outputs;
    for (const KvLayerResult& layer : kv_) {
      const std::string prefix = attention_of(layer.layer);
      for (const auto& [name, fit] : {std::pair("k_scale", layer.key), {"v_scale", layer.value}}) {
        const auto make = [scale = fit.scale] {
          const auto bytes = std::as_bytes(std::span(&scale, 1));
          return std::vector<std::vector<std::byte>>{{bytes.begin(), bytes.end()}};
        };
        outputs.push_back(
            {.parts = {{prefix + name, DType::kF32, Shape{1}}}, .make = make, .stored = {}});
      }
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
    const PhaseTimer timer(stream_, times_.write);
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
      work_.settle_output();
      return result;
    }
    std::vector<OutputTensors> tensors = outputs();
    for (OutputTensors& scale : kv_outputs()) {
      result.added.push_back(scale.parts[0].name);
      tensors.push_back(std::move(scale));
    }
    for (const OutputTensors& one : tensors) result.bytes_predicted += one.bytes();
    const auto written = [&](int64_t) { report_progress("writing"); };
    for (const std::string& name :
         write_sharded(output_, tensors, options_.max_shard_bytes, written)) {
      result.files.emplace_back(name);
      result.bytes_after += static_cast<int64_t>(fs::file_size(output_ / name));
    }
    copy_other_files();
    work_.settle_output();
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
                        : with_compressed_tensors_entry(config, plans_, options_.split_experts,
                                                        options_.recipe.kv));
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

  Clock::time_point start_ = Clock::now();
  fs::path path_, out_, output_;
  const CalibrationTokens& calibration_;
  ThreadPool& pool_;
  const QuantizeOptions& options_;
  ModelFiles files_;
  WorkFolder work_;
  int64_t num_layers_ = 0;
  Stream stream_;
  Workspace workspace_;
  std::vector<TensorPlan> plans_;
  GgufLayout layout_;                         // as_gguf()
  std::map<std::string, std::string> texts_;  // of a folder made of a GGUF file
  std::set<std::string, std::less<>> moved_columns_;
  std::map<int64_t, std::vector<const TensorPlan*>> parts_;
  std::map<std::string, Weight, std::less<>> weights_;  // quantised ones
  std::map<std::string, MatrixResult> results_;
  std::vector<BalancedGroup> balanced_;
  std::vector<KvLayerResult> kv_;  // static_kv(): of the layers that have some
  QuantizeProgress progress_;
  PhaseTimes times_;
  std::optional<LayerCalibration> layers_;  // with a calibration
};

}  // namespace

QuantizeResult quantize_model(const fs::path& model, const fs::path& out,
                              const CalibrationTokens& calibration, ThreadPool& pool,
                              const QuantizeOptions& options) {
  if (options.method == QuantizeMethod::kGptq && calibration.sequences.empty()) {
    throw Error("GPTQ needs calibration text");
  }
  if (options.recipe.kv == KvRecipe::kInt8Static && calibration.sequences.empty()) {
    throw Error("static scales of keys and values need calibration text");
  }
  if (!(options.balance >= 0 && options.balance <= 1)) {
    throw Error("balance is {}, not from 0 to 1", options.balance);
  }
  if (options.balance > 0 && calibration.sequences.empty()) {
    throw Error("balancing needs calibration text");
  }
  if (options.balance > 0 && options.file_format == QuantizedFileFormat::kGguf) {
    throw Error("only models for folders are balanced");
  }
  if (options.recipe.kv != KvRecipe::kUnspecified &&
      options.file_format != QuantizedFileFormat::kCompressedTensors) {
    throw Error("only compressed-tensors says how keys and values are stored");
  }
  if (options.file_format == QuantizedFileFormat::kGguf && fs::is_directory(out)) {
    throw Error("{}: is a folder; give the name of a file", out.string());
  }
  return Quantizer(model, out, calibration, pool, options).run();
}

}  // namespace braid
