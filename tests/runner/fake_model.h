#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/model.h"

namespace braid::testing {

// A "model" whose logits are an exact function of what each token can see, read back through the
// cache. Full, window, borrowing, cacheless and recurrent layers; all arithmetic is on small
// integers, so float32 holds it exactly.
class FakeModel : public Model {
 public:
  void place(Placement&) override {}
  static constexpr int64_t kWindow = 5;
  static constexpr int64_t kVocab = 50;

  std::string family() const override { return "fake"; }
  int64_t vocab_size() const override { return kVocab; }
  int64_t hidden_size() const override { return 4; }
  int64_t num_layers() const override { return 5; }
  int64_t max_positions() const override { return 1 << 20; }
  CacheLayout cache_layout() const override {
    CacheLayout layout;
    layout.layers = {FullKv{1, 2}, WindowKv{2, 1, kWindow}, SharesKvOf{1}, NoCache{},
                     RecurrentState{1, 1, 1, 1, 1, 1}};
    return layout;
  }
  LayerInfo layer_info(int64_t) const override { return {}; }
  const LoadReport& load_report() const override { return report_; }

  // The logits of the last of `tokens` with nothing but arithmetic.
  static float expected(std::span<const int32_t> tokens, int64_t column) {
    int64_t sum = 0;
    const int64_t end = static_cast<int64_t>(tokens.size());
    for (int64_t p = 0; p < end; ++p) {
      sum += term(tokens[p], p, 0);
      if (p >= end - kWindow) sum += term(tokens[p], p, 1) + term(tokens[p], p, 2);
    }
    float state = 0;
    for (const int32_t token : tokens) state = advance(state, static_cast<float>(token));
    sum += static_cast<int64_t>(state);
    return static_cast<float>(sum % 9973 + column);
  }

  // The embedding of a token is its id, four times.
  TensorView embed(StepContext& step) const override {
    const TensorView x = step.workspace.take(DType::kF32, {step.num_tokens(), hidden_size()});
    for (int64_t t = 0; t < step.num_tokens(); ++t) {
      std::fill_n(x.row<float>(t), hidden_size(), static_cast<float>(step.token_ids[t]));
    }
    return x;
  }

  TensorView forward(StepContext& step) const override {
    if (fail) throw Error("the fake model was told to fail");
    if (step.observer != nullptr) step.observer->layer_output(-1, TensorView());
    const TensorView scratch = step.workspace.take(DType::kI64, {step.num_tokens()});
    int64_t* sums = scratch.data<int64_t>();
    for (int64_t t = 0; t < step.num_tokens(); ++t) sums[t] = 0;

    for (int64_t layer = 0; layer < num_layers(); ++layer) {
      const StepContext::LayerKv& kv = step.layer_kv[layer];
      if (layer == 3) continue;
      if (layer == 4) {
        const StepContext::LayerRecurrent& recurrent = step.layer_recurrent[layer];
        for (const RecurrentRows& rows : recurrent.sequences) {
          recur(step, recurrent.store, rows, sums);
        }
        continue;
      }
      if (layer < 2) {
        for (const SequenceRows& rows : kv.sequences) write(step, kv.store, rows);
      }
      for (const SequenceRows& rows : kv.sequences) read(layer, kv.store, rows, sums);
    }

    const int64_t num_rows = static_cast<int64_t>(step.logits_rows.size());
    const TensorView logits = step.workspace.take(DType::kF32, {num_rows, kVocab});
    for (int64_t r = 0; r < num_rows; ++r) {
      const int32_t t = step.logits_rows[r];
      for (int64_t v = 0; v < kVocab; ++v) {
        logits.row<float>(r)[v] = static_cast<float>(sums[t] % 9973 + v);
      }
      if (step.token_ids[t] == poisoned_token) logits.row<float>(r)[kVocab - 1] = poison;
    }
    if (step.wants_hidden) {
      step.hidden = step.workspace.take(DType::kF32, {step.num_tokens(), hidden_size()});
      for (int64_t t = 0; t < step.num_tokens(); ++t) {
        std::fill_n(step.hidden.row<float>(t), hidden_size(), static_cast<float>(sums[t] % 9973));
      }
    }
    return logits;
  }

  bool fail = false;
  int32_t poisoned_token = -1;  // rows of this token get a bad last logit
  float poison = 0;

 private:
  static int64_t term(int64_t token, int64_t position, int64_t layer) {
    return (token + 1) * (position + 3) * (layer + 1);
  }
  static float* slot(const TensorView& store, const SequenceRows& rows, int64_t position) {
    const int64_t page_tokens = store.dim(2);
    const int64_t page =
        rows.pages[static_cast<size_t>(position / page_tokens) % rows.pages.size()];
    return store.row<float>(page) + position % page_tokens * store.dim(3);
  }
  static void write(const StepContext& step, const PagedKv& store, const SequenceRows& rows) {
    for (int64_t t = 0; t < rows.num_rows; ++t) {
      const int64_t position = rows.first_position + t;
      BRAID_CHECK(step.positions[rows.first_row + t] == position, "row {}", t);
      *slot(store.keys, rows, position) = static_cast<float>(step.token_ids[rows.first_row + t]);
      *slot(store.values, rows, position) = static_cast<float>(position);
    }
  }
  static void read(int64_t layer, const PagedKv& store, const SequenceRows& rows, int64_t* sums) {
    for (int64_t t = 0; t < rows.num_rows; ++t) {
      const int64_t position = rows.first_position + t;
      const int64_t first = layer == 0 ? 0 : std::max<int64_t>(0, position - kWindow + 1);
      for (int64_t p = first; p <= position; ++p) {
        sums[rows.first_row + t] += term(static_cast<int64_t>(*slot(store.keys, rows, p)),
                                         static_cast<int64_t>(*slot(store.values, rows, p)), layer);
      }
    }
  }

  static float advance(float state, float token) {
    return static_cast<float>((static_cast<int64_t>(state) * 31 + static_cast<int64_t>(token) + 1) %
                              9973);
  }
  // The log holds the tokens.
  static void recur(const StepContext& step, const RecurrentLayer& store, const RecurrentRows& rows,
                    int64_t* sums) {
    float& state = *store.states.row<float>(rows.slot);
    if (rows.fresh) state = 0;
    float* log =
        store.max_logged_tokens() > 0 ? store.logged_updates.row<float>(rows.slot) : nullptr;
    for (int32_t i = 0; i < rows.num_replayed; ++i) state = advance(state, log[i]);
    float running = state;
    for (int64_t t = 0; t < rows.num_rows; ++t) {
      const float token = static_cast<float>(step.token_ids[rows.first_row + t]);
      running = advance(running, token);
      if (rows.logged) log[t] = token;
      sums[rows.first_row + t] += static_cast<int64_t>(running);
    }
    if (!rows.logged) state = running;
  }

  LoadReport report_;
};

}  // namespace braid::testing
