#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "models/model.h"
#include "quantize/calibration_pass.h"
#include "quantize/model_values.h"

namespace braid::testing {

// What a layer's router makes of each token.
struct Routing {
  int64_t top_k = 0, num_experts = 0;
  std::vector<double> logits;  // [tokens, experts]
  std::vector<double> sizes;   // [tokens]: ‖w‖·‖x‖ of the expert for which it is largest

  // The chosen ones in ascending order, and by how much the last of them leads the next expert.
  std::vector<int64_t> chosen(int64_t token, double* lead = nullptr) const {
    const double* row = logits.data() + token * num_experts;
    std::vector<int64_t> experts(static_cast<size_t>(num_experts));
    std::iota(experts.begin(), experts.end(), 0);
    std::stable_sort(experts.begin(), experts.end(),
                     [&](int64_t a, int64_t b) { return row[a] > row[b]; });
    if (lead != nullptr && top_k < num_experts) {
      *lead = row[experts[top_k - 1]] - row[experts[top_k]];
    }
    experts.resize(static_cast<size_t>(top_k));
    std::sort(experts.begin(), experts.end());
    return experts;
  }
};

class RouterObserver : public StepContext::ProductObserver {
 public:
  explicit RouterObserver(const WeightMap& weights) : weights_(weights) {}

  void input(std::span<const std::string_view> readers, const TensorView& x) override {
    for (const std::string_view reader : readers) {
      const bool routes =
          reader.ends_with(".mlp.gate.weight") || reader.ends_with(".router.proj.weight");
      if (routes) multiply(values_of(weights_.find(std::string(reader))->weight), x);
    }
  }
  void expert_input(std::span<const std::string_view>, const TensorView& x,
                    const TensorView&) override {
    ASSERT_FALSE(routing.sizes.empty()) << "experts without a router";
    routing.top_k = x.dim(0) / std::ssize(routing.sizes);
  }

  Routing routing;

 private:
  void multiply(const std::vector<float>& w, const TensorView& x) {
    const int64_t cols = x.dim(1);
    routing.num_experts = std::ssize(w) / cols;
    for (int64_t t = 0; t < x.dim(0); ++t) {
      const float* row = x.row<float>(t);
      double& size = routing.sizes.emplace_back();
      for (int64_t e = 0; e < routing.num_experts; ++e) {
        double product = 0, w_squares = 0, x_squares = 0;
        for (int64_t c = 0; c < cols; ++c) {
          product += double{w[e * cols + c]} * row[c];
          w_squares += double{w[e * cols + c]} * w[e * cols + c];
          x_squares += double{row[c]} * row[c];
        }
        routing.logits.push_back(product);
        size = std::max(size, std::sqrt(w_squares * x_squares));
      }
    }
  }

  const WeightMap& weights_;
};

// By layer, of those that have experts.
inline std::map<int64_t, Routing> routing_of(const ModelFiles& files, const Model& model,
                                             const std::vector<int32_t>& ids) {
  ThreadPool threads({.num_threads = 2});
  Stream stream(threads);
  Workspace workspace(size_t{1} << 32);
  const CalibrationTokens tokens{.length = std::ssize(ids), .sequences = {ids}};
  CalibrationPass pass(model, tokens, stream, workspace, ActivationPrecision::kF32);
  pass.embed();
  std::map<int64_t, Routing> result;
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    RouterObserver observer(files.weights());
    pass.run_layer(layer, nullptr, &observer);
    if (observer.routing.top_k > 0) result[layer] = observer.routing;
  }
  return result;
}

// Whether every token goes to the same experts in both models. Where the first of them does not,
// two experts must have been equally good but for relative errors of `room`; what follows such a
// choice cannot be compared.
inline bool same_routing(const std::map<int64_t, Routing>& a, const std::map<int64_t, Routing>& b,
                         double room) {
  for (const auto& [layer, routing] : a) {
    const Routing& other = b.at(layer);
    bool same = true;
    for (int64_t t = 0; t < std::ssize(routing.sizes); ++t) {
      double lead = 0;
      if (routing.chosen(t, &lead) == other.chosen(t)) continue;
      same = false;
      EXPECT_LE(lead, 2 * room * routing.sizes[t]) << "layer " << layer << " token " << t;
    }
    if (!same) return false;
  }
  return true;
}

}  // namespace braid::testing
