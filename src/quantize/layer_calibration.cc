#include "quantize/layer_calibration.h"

#include <fmt/format.h>

#include <utility>

#include "models/registry.h"
#include "quantize/phase_timer.h"

namespace braid {

LayerCalibration::LayerCalibration(ModelFiles& files, const CalibrationTokens& tokens,
                                   Stream& stream, Workspace& workspace,
                                   const QuantizeOptions& options, PhaseTimes& times)
    : files_(files),
      tokens_(tokens),
      stream_(stream),
      workspace_(workspace),
      options_(options),
      times_(times),
      stacks_experts_(has_single_experts(files.weights())) {
  // Binding a layer copies experts that are stored one by one: put off until its turn.
  files_.weights().set_deferring(stacks_experts_);
  quantised_.model = load_model(files_);
  if (options.match_source && options.method == QuantizeMethod::kGptq) {
    source_.model = load_model(files_);
  }
}

void LayerCalibration::begin() {
  begin(quantised_);
  if (source_.model != nullptr) begin(source_);
}

void LayerCalibration::begin(Side& side) {
  if (!stream_.is_cpu()) {
    const PhaseTimer timer(stream_, times_.load);
    Placement shared(stream_.device());
    side.model->place_shared(shared);
  }
  side.pass.emplace(*side.model, tokens_, stream_, workspace_, options_.precision);
  const PhaseTimer timer(stream_, times_.forward);
  side.pass->embed();
  timer.stop();
}

void LayerCalibration::open_layer(int64_t layer, const Weights& finished) {
  layer_ = layer;
  quantised_.weights = finished;
  for (Side* side : {&quantised_, &source_}) {
    if (side->model == nullptr) continue;
    if (!side->weights.empty() || (stacks_experts_ && stream_.is_cpu())) {
      bind(*side, /*deferring=*/false);
    }
    place(*side);
  }
}

void LayerCalibration::bind(Side& side, bool deferring) {
  WeightMap map;
  map.set_origin(files_.origin());
  map.set_deferring(deferring);
  const std::string prefix = fmt::format("layers.{}.", layer_);
  for (const auto& [name, tensor] : files_.weights().tensors()) {
    if (!name.starts_with(prefix)) continue;
    StoredTensor bound = tensor;
    if (const auto found = side.weights.find(name); found != side.weights.end()) {
      bound.weight = found->second;
      bound.dtype_name = bound.weight.format->name;
    }
    map.add(std::move(bound));
  }
  side.model->rebind_layer(layer_, map);
}

// On a device: puts the layer there. What is there already, of an earlier stage, stays.
void LayerCalibration::place(Side& side) {
  if (stream_.is_cpu()) return;
  const PhaseTimer timer(stream_, times_.load);
  if (!side.placement) side.placement.emplace(stream_.device());
  side.model->place_layer(layer_, *side.placement);
  side.placement->finish();
}

std::vector<std::vector<const TensorPlan*>> LayerCalibration::stages_of(
    const std::vector<const TensorPlan*>& plans) {
  if (options_.one_pass) return {plans};
  ReaderOrder order;
  {
    const PhaseTimer timer(stream_, times_.forward);
    quantised_.pass->observe_layer(layer_, order, /*num_batches=*/1);
    timer.stop();
  }
  std::map<size_t, std::vector<const TensorPlan*>> stages;
  for (const TensorPlan* plan : plans) stages[order.stage_of(plan->name)].push_back(plan);
  std::vector<std::vector<const TensorPlan*>> result;
  for (auto& [number, stage] : stages) result.push_back(std::move(stage));
  return result;
}

std::unique_ptr<LayerHessians> LayerCalibration::observe(
    const std::vector<const TensorPlan*>& plans) {
  std::vector<std::string> names;
  for (const TensorPlan* plan : plans) names.push_back(plan->name);
  auto hessians = std::make_unique<LayerHessians>(stream_, workspace_, names);
  double seconds = 0;
  {
    const PhaseTimer timer(stream_, seconds);
    const auto readers = LayerHessians::single_readers(names);
    if (source_.model != nullptr && !readers.empty()) {
      observe_both(readers, *hessians);
    } else {
      quantised_.pass->observe_layer(layer_, *hessians);
    }
    timer.stop();
  }
  times_.forward += seconds - hessians->seconds();
  times_.hessian += hessians->seconds();
  times_.hessian_operations += hessians->operations();
  return hessians;
}

// Batch by batch in the source and in the quantised model, in turn.
void LayerCalibration::observe_both(const std::set<std::string, std::less<>>& readers,
                                    LayerHessians& hessians) {
  SourceInputs inputs(stream_, readers);
  hessians.pair_with(&inputs);
  for (size_t batch = 0; batch < quantised_.pass->num_batches(); ++batch) {
    source_.pass->observe_batch(layer_, inputs, batch);
    quantised_.pass->observe_batch(layer_, hessians, batch);
  }
  hessians.pair_with(nullptr);
}

void LayerCalibration::replace(const Weights& weights) {
  for (const auto& [name, weight] : weights) quantised_.weights.insert_or_assign(name, weight);
  bind(quantised_, /*deferring=*/false);
  place(quantised_);
}

void LayerCalibration::advance(KvObserver* kv, StepContext::ProductObserver* products) {
  const PhaseTimer timer(stream_, times_.forward);
  quantised_.pass->run_layer(layer_, kv, products);
  if (source_.model != nullptr) source_.pass->run_layer(layer_);
  timer.stop();
}

void LayerCalibration::close_layer() {
  for (Side* side : {&quantised_, &source_}) {
    if (side->model == nullptr) continue;
    if (!stream_.is_cpu() || stacks_experts_) bind(*side, /*deferring=*/true);
    side->placement.reset();
    side->weights.clear();
  }
}

}  // namespace braid
