#include "models/golden_model_test.h"

namespace braid {
namespace {

// tools/goldens/make_qwen.py, make_qwen_gguf.py and make_quantised.py write these.

const GoldenCase kCases[] = {
    {"qwen3_5", "qwen3_5/golden.safetensors"},
    {"qwen3_5_moe", "qwen3_5_moe/golden.safetensors"},
    {"qwen3_5_moe_split", "qwen3_5_moe_split/golden.safetensors"},
    {"qwen3_5_moe_w4a16", "qwen3_5_moe_w4a16/golden.safetensors"},
    {"qwen3_5_nested", "qwen3_5_nested/golden.safetensors"},
    {"qwen3_next", "qwen3_next/golden.safetensors"},
    {"qwen3_next_idle_experts", "qwen3_next_idle_experts/golden.safetensors"},
    {"qwen3_next_mixed", "qwen3_next_mixed/golden.safetensors"},
    {"qwen3_next_unnormed", "qwen3_next_unnormed/golden.safetensors"},
    {"qwen3_next_w8a8", "qwen3_next_w8a8/golden.safetensors"},
    {"gguf/qwen3_5_moe_mtp_q8_0.gguf", "gguf/qwen3_5_moe_mtp_q8_0.golden.safetensors"},
    {"gguf/qwen3_5_moe_split_bf16.gguf", "qwen3_5_moe_split/golden.safetensors"},
    {"gguf/qwen3_5_mtp_bf16.gguf", "qwen3_5_nested/golden.safetensors"},
    {"gguf/qwen3_next_idle_experts_f32.gguf", "qwen3_next_idle_experts/golden.safetensors"},
    {"gguf/qwen3_next_legacy_bf16.gguf", "qwen3_next/golden.safetensors"},
    {"gguf/qwen3_next_mtp_bf16.gguf", "qwen3_next/golden.safetensors"},
};

double tolerance_of(const Model& model) {
  // Mixer: norm, projections, convolution, SiLU, normalised keys, gates, state read, state, query,
  // gated norm, output, sum. Feed-forward: norm, gate and up, product, down, experts' sum, sum.
  constexpr double kStagesPerLayer = 18;
  // What a state or an attention row sums over the longest prompt.
  constexpr double kLongestDot = 200;
  return float32_tolerance(model, kStagesPerLayer, kLongestDot);
}

class QwenGoldenTest : public GoldenModelTest {
 protected:
  // What the recurrent layers hold after a prompt, as the golden has it, value heads grouped: ssm
  // [layers, value heads, key dim, value dim], conv [layers, width − 1, channels].
  struct States {
    std::vector<float> ssm, conv;
  };
  States states_of(const CachePool& pool, const SequenceState& sequence) const {
    States states;
    const CacheLayout layout = model_->cache_layout();
    for (int64_t layer = 0; layer < pool.num_layers(); ++layer) {
      const auto* shape = std::get_if<RecurrentState>(&layout.layers[layer]);
      if (shape == nullptr) continue;
      const RecurrentLayer store = pool.layer_recurrent(layer);
      const int32_t slot = sequence.slot(pool.layer_recurrent_group(layer));
      for (int64_t head = 0; head < shape->value_heads; ++head) {
        const float* state = store.states.row<float>(slot) +
                             place_of_head(*shape, head) * shape->value_dim * shape->key_dim;
        for (int64_t k = 0; k < shape->key_dim; ++k) {
          for (int64_t v = 0; v < shape->value_dim; ++v) {
            states.ssm.push_back(state[v * shape->key_dim + k]);
          }
        }
      }
      const int64_t num_keys = 2 * shape->key_heads * shape->key_dim;
      for (int64_t row = 0; row < shape->conv_width - 1; ++row) {
        const float* channels = store.conv_rows.row<float>(slot) + row * shape->conv_channels;
        states.conv.insert(states.conv.end(), channels, channels + num_keys);
        for (int64_t head = 0; head < shape->value_heads; ++head) {
          const float* values =
              channels + num_keys + place_of_head(*shape, head) * shape->value_dim;
          states.conv.insert(states.conv.end(), values, values + shape->value_dim);
        }
      }
    }
    return states;
  }

  // Where the checkpoint keeps value head i of key head j: GGUF files of Qwen3.5 at i·key_heads +
  // j.
  int64_t place_of_head(const RecurrentState& shape, int64_t head) const {
    if (!files_->is_gguf() || !files_->model_type().starts_with("qwen35")) return head;
    const int64_t ratio = shape.value_heads / shape.key_heads;
    return head % ratio * shape.key_heads + head / ratio;
  }

  std::vector<int32_t> ids_of(const std::string& prompt) const {
    return golden_->ints(prompt + ".ids");
  }
};

TEST_P(QwenGoldenTest, LogitsAgreeAtEveryLength) {
  expect_logits_at_every_length(tolerance_of(*model_));
}

TEST_P(QwenGoldenTest, HiddenStatesAgreeAfterEveryLayer) {
  expect_hidden_states(tolerance_of(*model_));
}

TEST_P(QwenGoldenTest, FinalStatesAgree) {
  for (const std::string& prompt : golden_->prompts()) {
    if (!golden_->has(prompt + ".ssm")) continue;
    for (const int64_t chunk : {1, 7, 64, 256}) {
      CachePool pool(model_->cache_layout(), cache_for(256));
      Runner runner(*model_, pool, stream_, runner_options());
      SequenceState sequence(pool);
      feed(runner, sequence, ids_of(prompt), chunk);
      const States states = states_of(pool, sequence);
      const double ssm = relative_error(states.ssm, golden_->floats(prompt + ".ssm"));
      const double conv = relative_error(states.conv, golden_->floats(prompt + ".conv"));
      EXPECT_LT(ssm, tolerance_of(*model_)) << prompt << " in chunks of " << chunk;
      EXPECT_LT(conv, tolerance_of(*model_)) << prompt << " in chunks of " << chunk;
      RecordProperty(fmt::format("{}_ssm_{}", prompt, chunk), fmt::format("{:.2e}", ssm));
    }
  }
}

TEST_P(QwenGoldenTest, AnySplitAgreesAndAlignedSplitsGiveTheSameBits) {
  const std::string longest = golden_->has("p200.ids") ? "p200" : "p65";
  const std::vector<int32_t> ids = ids_of(longest);
  const std::vector<float> whole = logits_of(ids, static_cast<int64_t>(ids.size()));
  for (const int64_t chunk : {1, 2, 3, 7, 63, 65}) {
    EXPECT_LT(relative_error(logits_of(ids, chunk), whole), tolerance_of(*model_))
        << "in chunks of " << chunk;
  }
  const int64_t alignment = model_->prefill_alignment();
  for (const int64_t chunk : {alignment, 2 * alignment}) {
    EXPECT_EQ(logits_of(ids, chunk), whole) << "in chunks of " << chunk;
  }
}

TEST_P(QwenGoldenTest, BatchMatesChangeNothing) { expect_batch_mates_change_nothing(); }

TEST_P(QwenGoldenTest, NumberOfThreadsChangesNothing) {
  const std::vector<float> expected = logits_of(ids_of("p65"), 128);
  ThreadPool threads({.num_threads = 1});
  Stream stream(threads);
  CachePool pool(model_->cache_layout(), cache_for(128));
  Runner runner(*model_, pool, stream, runner_options());
  SequenceState sequence(pool);
  EXPECT_EQ(feed(runner, sequence, ids_of("p65"), 128), expected);
}

// Steps whose last tokens are wrong guesses, of which only the right ones are committed.
TEST_P(QwenGoldenTest, RejectedGuessesLeaveTheBitsOfSingleTokens) {
  constexpr int64_t kStep = 5;
  constexpr int64_t kPrompt = 33;
  const std::vector<int32_t> ids = ids_of("p65");
  const std::span<const int32_t> prompt = std::span(ids).first(kPrompt);
  const std::span<const int32_t> rest = std::span(ids).subspan(kPrompt);
  CacheOptions cache = cache_for(256);
  cache.max_logged_tokens = kStep;
  cache.max_sequences = 2;
  CachePool pool(model_->cache_layout(), cache);
  Runner runner(*model_, pool, stream_, runner_options());
  SequenceState plain(pool), guessing(pool);
  feed(runner, plain, prompt, kPrompt);
  const std::vector<float> expected = feed(runner, plain, rest, 1);

  feed(runner, guessing, prompt, kPrompt);
  std::vector<float> logits;
  for (int64_t done = 0, round = 0; done < static_cast<int64_t>(rest.size()); ++round) {
    const int64_t left = static_cast<int64_t>(rest.size()) - done;
    const int64_t kept = std::min(round % (kStep + 1), left);  // none, …, all of them
    std::vector<int32_t> tokens(rest.begin() + done, rest.begin() + done + kept);
    while (static_cast<int64_t>(tokens.size()) < kStep) {
      const size_t place = static_cast<size_t>(done) + tokens.size();
      tokens.push_back(place < rest.size() && rest[place] == 3 ? 4 : 3);
    }
    StepPlan plan;
    plan.sequences.push_back({&guessing, tokens, WantedLogits::kAll, /*commit=*/false});
    const StepResult result = runner.run(plan);
    ASSERT_EQ(result.status, StepStatus::kDone);
    guessing.commit(kept);
    const float* rows = result.logits.row<float>(0);
    logits.insert(logits.end(), rows, rows + kept * model_->vocab_size());
    done += kept;
  }
  EXPECT_EQ(logits, expected);
}

TEST_P(QwenGoldenTest, GreedyContinuationsAreTheReferences) { expect_greedy_continuations(); }

TEST_P(QwenGoldenTest, Bf16ModeStaysWithinItsBound) {
  constexpr double kRoundedInputs = 5;  // projections, output, router, gate and up, down
  expect_median_row_bf16_within(bf16_tolerance(*model_, kRoundedInputs));
}

// The head's rows for all pairs of a prompt, then a chain of drafts, each from the one before.
TEST_P(QwenGoldenTest, DraftHeadAgrees) {
  const bool left_out = GetParam().model == std::string("gguf/qwen3_next_legacy_bf16.gguf");
  ASSERT_EQ(model_->draft_head() != nullptr, golden_->has("p17.mtp_logits") && !left_out);
  if (model_->draft_head() == nullptr) GTEST_SKIP() << "this checkpoint has no MTP head";
  const Model& head = *model_->draft_head();
  for (const char* prompt : {"p17", "p65"}) {
    const auto golden = [&](const char* name) { return std::string(prompt) + name; };
    std::vector<int32_t> ids = ids_of(prompt);
    const int64_t count = static_cast<int64_t>(ids.size());
    CachePool pool(model_->cache_layout(), cache_for(count));
    Runner runner(*model_, pool, stream_, runner_options());
    SequenceState sequence(pool);
    StepPlan plan;
    plan.sequences.push_back({&sequence, ids, WantedLogits::kLast});
    const StepResult main = runner.run(plan, {.wants_hidden = true});
    EXPECT_LT(relative_error(main.hidden.span<float>(), golden_->floats(golden(".final"))),
              tolerance_of(*model_));

    std::vector<int32_t> next(ids.begin() + 1, ids.end());
    next.push_back(golden_->ints(golden(".greedy"))[0]);
    CachePool head_pool(head.cache_layout(), cache_for(count + 8));
    Runner head_runner(head, head_pool, stream_, runner_options());
    SequenceState pairs(head_pool);
    StepPlan head_plan;
    head_plan.sequences.push_back({&pairs, next, WantedLogits::kAll});
    StepResult result =
        head_runner.run(head_plan, {.wants_hidden = true, .backbone_hidden = main.hidden});
    const double logits =
        relative_error(result.logits.span<float>(), golden_->floats(golden(".mtp_logits")));
    EXPECT_LT(logits, tolerance_of(*model_)) << prompt;
    EXPECT_LT(relative_error(result.hidden.span<float>(), golden_->floats(golden(".mtp_hidden"))),
              tolerance_of(*model_));
    RecordProperty(std::string(prompt) + "_mtp", fmt::format("{:.2e}", logits));

    std::vector<int32_t> drafts;
    std::vector<float> draft_logits;
    const size_t num_drafts = golden_->ints(golden(".draft_ids")).size();
    while (true) {
      const float* last = result.logits.row<float>(result.logits.dim(0) - 1);
      draft_logits.insert(draft_logits.end(), last, last + head.vocab_size());
      drafts.push_back(argmax({last, static_cast<size_t>(head.vocab_size())}));
      if (drafts.size() == num_drafts) break;
      const TensorView row = result.hidden.rows(result.hidden.dim(0) - 1, 1);
      Tensor carried(DType::kF32, row.shape());
      std::copy_n(row.row<float>(0), row.dim(1), carried.data<float>());
      const std::vector<int32_t> token = {drafts.back()};
      StepPlan step;
      step.sequences.push_back({&pairs, token, WantedLogits::kLast});
      result = head_runner.run(step, {.wants_hidden = true, .backbone_hidden = carried});
    }
    EXPECT_EQ(drafts, golden_->ints(golden(".draft_ids"))) << prompt;
    EXPECT_LT(relative_error(draft_logits, golden_->floats(golden(".draft_logits"))),
              tolerance_of(*model_));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, QwenGoldenTest, testing::ValuesIn(kCases), golden_case_name);

}  // namespace
}  // namespace braid
