#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "layers/placement.h"
#include "models/model.h"
#include "quantize/calibration_pass.h"
#include "quantize/layer_hessians.h"
#include "quantize/plan.h"
#include "quantize/quantizer.h"

namespace braid {

// The model that is being quantised, run on the calibration layer by layer; if the source is to be
// matched, the source beside it. Of a layer only what its turn asks for is in memory: experts that
// are stored one by one are stacks then, and a device has it then.
class LayerCalibration {
 public:
  using Weights = std::map<std::string, Weight, std::less<>>;  // by canonical name

  // Borrows all.
  LayerCalibration(ModelFiles& files, const CalibrationTokens& tokens, Stream& stream,
                   Workspace& workspace, const QuantizeOptions& options, PhaseTimes& times);

  int64_t num_layers() const { return quantised_.model->num_layers(); }
  // Embeds the tokens.
  void begin();

  // The layers' turns come in order; what follows is about the one whose turn it is. finished: what
  // it became, if its matrices are quantised already; then in place of the source's.
  void open_layer(int64_t layer, const Weights& finished = {});
  // Matrices that read the same input, in the order in which the layer multiplies them.
  std::vector<std::vector<const TensorPlan*>> stages_of(
      const std::vector<const TensorPlan*>& plans);
  std::unique_ptr<LayerHessians> observe(const std::vector<const TensorPlan*>& plans);
  // From now on these are in place of the source's, as a later program will load them.
  void replace(const Weights& weights);
  // Whether a layer has keys and values of its own.
  bool keeps_kv(int64_t layer) const { return quantised_.pass->keeps_kv(layer); }
  // Gives the next layer its inputs; `kv`, if not null, sees the layer's keys and values,
  // `products` what its products read.
  void advance(KvObserver* kv = nullptr, StepContext::ProductObserver* products = nullptr);
  void close_layer();

 private:
  struct Side {
    std::unique_ptr<Model> model;
    std::optional<CalibrationPass> pass;
    std::optional<Placement> placement;  // of the layer at work
    Weights weights;                     // in place of those of the files
  };

  void begin(Side& side);
  void bind(Side& side, bool deferring);
  void place(Side& side);
  void observe_both(const std::set<std::string, std::less<>>& readers, LayerHessians& hessians);

  ModelFiles& files_;
  const CalibrationTokens& tokens_;
  Stream& stream_;
  Workspace& workspace_;
  const QuantizeOptions& options_;
  PhaseTimes& times_;
  bool stacks_experts_;  // they are stored one by one
  int64_t layer_ = 0;
  Side quantised_, source_;  // source_.model: null if it is not to be matched
};

}  // namespace braid
