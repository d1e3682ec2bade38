#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "models/golden_file.h"
#include "models/registry.h"
#include "ops/logits/row_scan.h"
#include "runner/runner.h"

namespace braid {

// What the golden tests of all families share. Goldens are what Hugging Face transformers computes
// in float32; tests/data/models/README.md describes them.

struct GoldenCase {
  const char* model;   // below tests/data/models
  const char* golden;  // likewise
};

inline std::ostream& operator<<(std::ostream& out, const GoldenCase& golden_case) {
  return out << golden_case.model;
}

inline std::string golden_case_name(const testing::TestParamInfo<GoldenCase>& info) {
  std::string name = info.param.model;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

// Norm-wise relative error of float32 evaluation. Each rounding stage (a dot product of length n
// gives √n roundings of one sign or the other) is taken as independent, and both sides round:
// ε/2 · √(2 · stages · n), with n the longest dot product of these models.
inline double float32_tolerance(const Model& model, double stages_per_layer, double longest_dot) {
  constexpr double kUnitRoundoff = 0x1p-24;
  const double stages = stages_per_layer * static_cast<double>(model.num_layers() + 1);
  return kUnitRoundoff * std::sqrt(2 * stages * longest_dot);
}

// The error of the bf16 mode: every matrix input is rounded to 8 bits of mantissa. Rounding errors
// of one input vector average out over a dot product, so each of the stages adds about 2^-9
// norm-wise.
inline double bf16_tolerance(const Model& model, double rounded_inputs_per_layer) {
  constexpr double kUnitRoundoff = 0x1p-9;
  return kUnitRoundoff *
         std::sqrt(rounded_inputs_per_layer * static_cast<double>(model.num_layers() + 1)) *
         std::sqrt(static_cast<double>(model.num_layers()));
}

class HiddenStates : public StepContext::Observer {
 public:
  void layer_output(int64_t, const TensorView& x) override {
    const std::span<float> rows = x.span<float>();
    values.insert(values.end(), rows.begin(), rows.end());
  }
  std::vector<float> values;
};

class GoldenModelTest : public testing::TestWithParam<GoldenCase> {
 protected:
  explicit GoldenModelTest(Device device = {}) : stream_(threads_, device) {}

  void SetUp() override {
    const std::string root = std::string(BRAID_TEST_DATA) + "/models/";
    files_ = std::make_unique<ModelFiles>(ModelFiles::open(root + GetParam().model));
    model_ = load_model(*files_);
    golden_ = std::make_unique<GoldenFile>(root + GetParam().golden);
    if (stream_.is_cpu()) return;
    Placement placement(stream_.device());
    model_->place(placement);
  }

  CacheOptions cache_for(int64_t tokens) const {
    return {
        .page_tokens = 8, .kv_dtype = kv_dtype_, .max_tokens = tokens, .max_step_tokens = tokens};
  }
  RunnerOptions runner_options() const {
    return {.precision = precision_,
            .workspace_bytes = 1 << 28,
            .use_graphs = use_graphs_,
            .deterministic = deterministic_};
  }

  // Runs `ids` on `sequence` in pieces of `chunk` and returns the logits of every token.
  std::vector<float> feed(Runner& runner, SequenceState& sequence, std::span<const int32_t> ids,
                          int64_t chunk, StepContext::Observer* observer = nullptr) {
    std::vector<float> logits;
    for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(chunk)) {
      StepPlan plan;
      plan.sequences.push_back({&sequence,
                                ids.subspan(begin, std::min<size_t>(chunk, ids.size() - begin)),
                                WantedLogits::kAll});
      const StepResult result = runner.run(plan, {.observer = observer});
      EXPECT_EQ(result.status, StepStatus::kDone);
      const std::span<float> rows = result.logits.span<float>();
      logits.insert(logits.end(), rows.begin(), rows.end());
    }
    return logits;
  }

  // Logits of every token, fed in pieces of `chunk`.
  std::vector<float> logits_of(std::span<const int32_t> ids, int64_t chunk,
                               StepContext::Observer* observer = nullptr) {
    CachePool pool(model_->cache_layout(), cache_for(static_cast<int64_t>(ids.size())),
                   stream_.device());
    Runner runner(*model_, pool, stream_, runner_options());
    SequenceState sequence(pool);
    return feed(runner, sequence, ids, chunk, observer);
  }

  std::vector<float> select_rows(const std::vector<float>& logits,
                                 const std::vector<int32_t>& rows) const {
    const int64_t vocab = model_->vocab_size();
    std::vector<float> selected;
    for (const int32_t row : rows) {
      selected.insert(selected.end(), logits.begin() + row * vocab,
                      logits.begin() + (row + 1) * vocab);
    }
    return selected;
  }

  // Of logits of every token of a prompt, against the golden's rows.
  double logits_error(const std::string& prompt, const std::vector<float>& logits) const {
    return relative_error(select_rows(logits, golden_->ints(prompt + ".rows")),
                          golden_->floats(prompt + ".logits"));
  }

  // The checks that every family passes.

  void expect_logits_at_every_length(double tolerance) {
    ASSERT_FALSE(golden_->prompts().empty());
    const std::vector<Isa> isas =
        stream_.is_cpu() ? supported_isas() : std::vector<Isa>{active_isa()};
    for (const Isa isa : isas) {
      force_isa(isa);
      for (const std::string& prompt : golden_->prompts()) {
        const std::vector<int32_t> ids = golden_->ints(prompt + ".ids");
        const double error = logits_error(prompt, logits_of(ids, 64));
        EXPECT_LT(error, tolerance) << prompt << " " << isa_name(isa);
        RecordProperty(prompt + "_" + std::string(isa_name(isa)), fmt::format("{:.2e}", error));
      }
    }
  }

  void expect_hidden_states(double tolerance) {
    if (!golden_->has("p17.hidden")) GTEST_SKIP() << "this golden holds no hidden states";
    HiddenStates hidden;
    logits_of(golden_->ints("p17.ids"), 64, &hidden);
    const std::vector<float> expected = golden_->floats("p17.hidden");
    ASSERT_EQ(hidden.values.size(), expected.size());
    const size_t layer_size = expected.size() / (model_->num_layers() + 1);
    for (int64_t layer = 0; layer <= model_->num_layers(); ++layer) {
      EXPECT_LT(relative_error({hidden.values.data() + layer * layer_size, layer_size},
                               {expected.data() + layer * layer_size, layer_size}),
                tolerance)
          << "after layer " << layer - 1;
    }
  }

  void expect_batch_mates_change_nothing() {
    const std::vector<int32_t> a = golden_->ints("p17.ids");
    const std::vector<int32_t> b = golden_->ints("p65.ids");
    const std::vector<float> alone_a = logits_of(a, 128);
    const std::vector<float> alone_b = logits_of(b, 128);
    CacheOptions options = cache_for(256);
    options.max_sequences = 2;
    CachePool pool(model_->cache_layout(), options, stream_.device());
    Runner runner(*model_, pool, stream_, runner_options());
    SequenceState first(pool), second(pool);
    StepPlan plan;
    plan.sequences.push_back({&first, a, WantedLogits::kAll});
    plan.sequences.push_back({&second, b, WantedLogits::kAll});
    const StepResult result = runner.run(plan);
    const std::span<float> logits = result.logits.span<float>();
    EXPECT_EQ(std::vector<float>(logits.begin(), logits.begin() + alone_a.size()), alone_a);
    EXPECT_EQ(std::vector<float>(logits.begin() + alone_a.size(), logits.end()), alone_b);
  }

  void expect_greedy_continuations() {
    for (const std::string& prompt : golden_->prompts()) {
      if (!golden_->has(prompt + ".greedy")) continue;
      const std::vector<int32_t> ids = golden_->ints(prompt + ".ids");
      const std::vector<int32_t> expected = golden_->ints(prompt + ".greedy");
      CachePool pool(model_->cache_layout(),
                     cache_for(static_cast<int64_t>(ids.size() + expected.size())),
                     stream_.device());
      Runner runner(*model_, pool, stream_, runner_options());
      SequenceState sequence(pool);
      std::vector<int32_t> pending = ids, generated;
      while (generated.size() < expected.size()) {
        StepPlan plan;
        plan.sequences.push_back({&sequence, pending, WantedLogits::kLast});
        const StepResult result = runner.run(plan);
        generated.push_back(argmax(result.logits.span<float>()));
        pending = {generated.back()};
      }
      EXPECT_EQ(generated, expected) << prompt;
    }
  }

  void expect_bf16_within(double tolerance) {
    precision_ = ActivationPrecision::kBF16;
    expect_rounded(logits_error("p65", logits_of(golden_->ints("p65.ids"), 128)), tolerance);
  }

  // The same of the median row: rounding may turn a router's choice, which changes a row wholesale.
  void expect_median_row_bf16_within(double tolerance) {
    precision_ = ActivationPrecision::kBF16;
    const std::vector<float> rows =
        select_rows(logits_of(golden_->ints("p65.ids"), 128), golden_->ints("p65.rows"));
    const std::vector<float> expected = golden_->floats("p65.logits");
    const auto vocab = static_cast<size_t>(model_->vocab_size());
    std::vector<double> errors;
    for (size_t begin = 0; begin < expected.size(); begin += vocab) {
      errors.push_back(
          relative_error({rows.data() + begin, vocab}, {expected.data() + begin, vocab}));
    }
    std::sort(errors.begin(), errors.end());
    expect_rounded(errors[errors.size() / 2], tolerance);
  }

  static void expect_rounded(double error, double tolerance) {
    EXPECT_LT(error, tolerance);
    EXPECT_GT(error, 0x1p-16) << "bf16 mode seems to round nothing";
    RecordProperty("bf16", fmt::format("{:.2e}", error));
  }

  ThreadPool threads_{{.num_threads = 2}};
  Stream stream_;
  ActivationPrecision precision_ = ActivationPrecision::kF32;
  DType kv_dtype_ = DType::kF32;
  bool use_graphs_ = true;
  bool deterministic_ = false;
  std::unique_ptr<ModelFiles> files_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<GoldenFile> golden_;
};

}  // namespace braid
