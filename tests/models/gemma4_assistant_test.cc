#include "models/gemma4_assistant.h"

#include <gtest/gtest.h>

#include "models/golden_model_test.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/host_copy.h"
#include "tensor/tensor.h"

namespace braid {
namespace {

// Drafts against what transformers computes over the target's keys and values
// (tools/goldens/make_assistant.py).

struct AssistantCase {
  const char* target;     // below tests/data/models
  const char* assistant;  // likewise
  const char* golden;
  bool cuda = false;  // on the first device
};

std::ostream& operator<<(std::ostream& out, const AssistantCase& assistant_case) {
  return out << assistant_case.assistant << " for " << assistant_case.target
             << (assistant_case.cuda ? " on CUDA" : "");
}

const AssistantCase kCases[] = {
    {"gemma4_dense", "gemma4_assistant", "gemma4_assistant"},
    {"gemma4_e2b", "gemma4_assistant_ordered", "gemma4_assistant_ordered"},
    {"gemma4_dense", "gemma4_assistant/gemma4_assistant_bf16.gguf", "gemma4_assistant"},
    {"gemma4_dense", "gemma4_assistant", "gemma4_assistant", true},
    {"gemma4_e2b", "gemma4_assistant_ordered", "gemma4_assistant_ordered", true},
};

std::string case_name(const testing::TestParamInfo<AssistantCase>& info) {
  return golden_case_name({{info.param.assistant, ""}, info.index}) +
         (info.param.cuda ? "_cuda" : "");
}

constexpr int64_t kWindow = 16;  // of the tiny models
constexpr int64_t kSteps = 3;
constexpr int64_t kChunk = 8;

class Gemma4AssistantTest : public testing::TestWithParam<AssistantCase> {
 protected:
  // A row of a step: the newest token, its position, and what the draft starts from.
  struct Row {
    const SequenceState* sequence = nullptr;
    int32_t token = 0;
    int32_t position = 0;
    std::vector<float> hidden;
  };
  struct Drafts {
    std::vector<float> logits;  // [rows, vocabulary]
    std::vector<float> hidden;  // [rows, the target's hidden size]
  };

  static Device device() {
    return GetParam().cuda && cuda::num_devices() > 0 ? Device{DeviceKind::kCuda, 0} : Device{};
  }

  void SetUp() override {
    if (GetParam().cuda && stream_.is_cpu()) GTEST_SKIP() << "no CUDA device here";
    const std::string root = std::string(BRAID_TEST_DATA) + "/models/";
    target_files_ = std::make_unique<ModelFiles>(ModelFiles::open(root + GetParam().target));
    target_ = load_model(*target_files_);
    files_ = std::make_unique<ModelFiles>(ModelFiles::open(root + GetParam().assistant));
    assistant_ = load_assistant(*files_, *target_);
    if (!stream_.is_cpu()) {
      Placement placement(device());
      target_->place(placement);
      assistant_->place(placement);
    }
    golden_ = std::make_unique<GoldenFile>(root + GetParam().golden + "/golden.safetensors");
    open_cache();
  }

  void open_cache() {
    pool_ = std::make_unique<CachePool>(target_->cache_layout(),
                                        CacheOptions{.page_tokens = 8,
                                                     .max_tokens = 512,
                                                     .max_sequences = 16,
                                                     .max_sequence_tokens = 80,
                                                     .max_step_tokens = kChunk},
                                        device());
    runner_ = std::make_unique<Runner>(
        *target_, *pool_, stream_,
        RunnerOptions{
            .precision = precision_, .workspace_bytes = 1 << 28, .deterministic = GetParam().cuda});
  }

  // Lets the target compute `ids`; returns its hidden state of the last of them.
  std::vector<float> feed(SequenceState& sequence, std::span<const int32_t> ids) {
    std::vector<float> last;
    for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
      StepPlan plan;
      plan.sequences.push_back({&sequence,
                                ids.subspan(begin, std::min<size_t>(kChunk, ids.size() - begin)),
                                WantedLogits::kLast});
      const StepResult result = runner_->run(plan, {.wants_hidden = true});
      EXPECT_EQ(result.status, StepStatus::kDone);
      last = values(result.hidden.rows(result.hidden.dim(0) - 1, 1));
    }
    return last;
  }

  Drafts draft(const std::vector<Row>& rows) {
    std::vector<int32_t> tokens, positions, wanted;
    std::vector<float> hidden;
    for (const Row& row : rows) {
      wanted.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(row.token);
      positions.push_back(row.position);
      hidden.insert(hidden.end(), row.hidden.begin(), row.hidden.end());
    }
    std::vector<std::vector<SequenceRows>> sequences(assistant_->num_layers());
    std::vector<StepContext::LayerKv> layer_kv;
    for (int64_t layer = 0; layer < assistant_->num_layers(); ++layer) {
      const int64_t donor = assistant_->donor_layer(layer);
      for (size_t i = 0; i < rows.size(); ++i) {
        const SequenceState& sequence = *rows[i].sequence;
        sequences[layer].push_back({static_cast<int64_t>(i), 1, sequence.length() - 1,
                                    sequence.pages(pool_->layer_group(donor))});
      }
      layer_kv.push_back({pool_->layer_kv(donor), sequences[layer]});
    }
    Workspace workspace(1 << 26, device());
    const Shape shape{static_cast<int64_t>(rows.size()), target_->hidden_size()};
    TensorView backbone(hidden.data(), DType::kF32, shape);
    Tensor there;
    if (!stream_.is_cpu()) {
      stream_.cuda().set_deterministic(true);
      there = Tensor(DType::kF32, shape, device());
      cuda::copy_to_device(static_cast<std::byte*>(there.view().raw()), hidden.data(),
                           hidden.size() * sizeof(float), 0);
      backbone = there.view();
    }
    StepContext step{.stream = stream_,
                     .workspace = workspace,
                     .precision = precision_,
                     .token_ids = tokens,
                     .positions = positions,
                     .logits_rows = wanted,
                     .layer_kv = layer_kv,
                     .backbone_hidden = backbone,
                     .wants_hidden = true};
    const TensorView logits = assistant_->forward(step);
    return {values(logits), values(step.hidden)};
  }

  std::vector<float> values(const TensorView& view) const {
    HostCopy copy;
    const std::span<float> span = copy.fetch(stream_, view).span<float>();
    return {span.begin(), span.end()};
  }

  // The golden's row of draft `step` (0 to 2).
  Row golden_row(const std::string& prompt, int64_t step, const SequenceState& sequence) const {
    return {&sequence, golden_->ints(prompt + ".tokens")[step],
            golden_->ints(prompt + ".position")[0], golden_row_of(prompt + ".hidden", step)};
  }
  std::vector<float> golden_row_of(const std::string& name, int64_t row) const {
    const std::vector<float> values = golden_->floats(name);
    const int64_t width = golden_->dim(name, 1);
    return {values.begin() + row * width, values.begin() + (row + 1) * width};
  }

  // Keys and values carry the target's error, the rest is the assistant's own.
  double tolerance() const {
    // As for the models themselves on either side (gemma_golden_test.cc, cuda_golden_test.cc).
    const double stages_per_layer = GetParam().cuda ? 18 : 12;
    const double longest_dot = GetParam().cuda ? 200 : 160;  // 160: of the pre-projection
    return std::hypot(float32_tolerance(*target_, stages_per_layer, longest_dot),
                      float32_tolerance(*assistant_, stages_per_layer, longest_dot));
  }

  ThreadPool threads_{{.num_threads = 2}};
  Stream stream_{threads_, device()};
  ActivationPrecision precision_ = ActivationPrecision::kF32;
  std::unique_ptr<ModelFiles> target_files_, files_;
  std::unique_ptr<Model> target_;
  std::unique_ptr<Gemma4Assistant> assistant_;
  std::unique_ptr<GoldenFile> golden_;
  std::unique_ptr<CachePool> pool_;
  std::unique_ptr<Runner> runner_;
};

TEST_P(Gemma4AssistantTest, EveryDraftAgrees) {
  ASSERT_FALSE(golden_->prompts().empty());
  for (const Isa isa : supported_isas()) {
    force_isa(isa);
    double worst = 0;
    for (const std::string& prompt : golden_->prompts()) {
      SequenceState sequence(*pool_);
      const std::vector<float> hidden = feed(sequence, golden_->ints(prompt + ".ids"));
      EXPECT_LT(relative_error(hidden, golden_row_of(prompt + ".hidden", 0)), tolerance());
      for (int64_t step = 0; step < kSteps; ++step) {
        const Drafts drafts = draft({golden_row(prompt, step, sequence)});
        const double logits_error =
            relative_error(drafts.logits, golden_row_of(prompt + ".logits", step));
        const double hidden_error =
            relative_error(drafts.hidden, golden_row_of(prompt + ".hidden", step + 1));
        EXPECT_LT(logits_error, tolerance()) << prompt << ", draft " << step + 1;
        EXPECT_LT(hidden_error, tolerance()) << prompt << ", draft " << step + 1;
        worst = std::max({worst, logits_error, hidden_error});
      }
    }
    RecordProperty(std::string(isa_name(isa)), fmt::format("{:.2e}", worst));
  }
}

TEST_P(Gemma4AssistantTest, ChainsOfDraftsAreTheReferences) {
  for (const std::string& prompt : golden_->prompts()) {
    SequenceState sequence(*pool_);
    Row row = golden_row(prompt, 0, sequence);
    row.hidden = feed(sequence, golden_->ints(prompt + ".ids"));
    std::vector<int32_t> ids;
    for (int64_t step = 0; step < kSteps; ++step) {
      Drafts drafts = draft({row});
      ids.push_back(argmax(drafts.logits));
      row.token = ids.back();
      row.hidden = std::move(drafts.hidden);
    }
    EXPECT_EQ(ids, golden_->ints(prompt + ".drafts")) << prompt;
  }
}

TEST_P(Gemma4AssistantTest, BatchMatesChangeNothing) {
  std::vector<SequenceState> sequences;
  std::vector<Row> rows;
  for (const std::string& prompt : golden_->prompts()) {
    feed(sequences.emplace_back(*pool_), golden_->ints(prompt + ".ids"));
  }
  std::vector<float> logits, hidden;
  for (size_t i = 0; i < sequences.size(); ++i) {
    rows.push_back(golden_row(golden_->prompts()[i], i % kSteps, sequences[i]));
    const Drafts alone = draft({rows.back()});
    logits.insert(logits.end(), alone.logits.begin(), alone.logits.end());
    hidden.insert(hidden.end(), alone.hidden.begin(), alone.hidden.end());
  }
  const Drafts together = draft(rows);
  EXPECT_EQ(together.logits, logits);
  EXPECT_EQ(together.hidden, hidden);
}

// The window of the drafts is one row longer than the target's; tokens that the target computed and
// did not keep must not have taken the place of any row of it, nor be seen.
TEST_P(Gemma4AssistantTest, RejectedTokensLeaveNoTrace) {
  for (const std::string& prompt : golden_->prompts()) {
    SequenceState sequence(*pool_);
    feed(sequence, golden_->ints(prompt + ".ids"));
    const Drafts before = draft({golden_row(prompt, 0, sequence)});
    const std::vector<int32_t> rejected(kChunk, 7);
    StepPlan plan;
    plan.sequences.push_back({&sequence, rejected, WantedLogits::kLast, false});
    ASSERT_EQ(runner_->run(plan).status, StepStatus::kDone);
    sequence.commit(0);
    const Drafts after = draft({golden_row(prompt, 0, sequence)});
    EXPECT_EQ(after.logits, before.logits) << prompt;
    EXPECT_EQ(after.hidden, before.hidden) << prompt;
  }
}

// The row W before the newest is seen, the one before it is not: in a full store of another model's
// shape the prompts of W + 1 and W + 2 tokens would not tell by themselves.
TEST_P(Gemma4AssistantTest, SlidingLayersSeeOneRowMoreThanTheWindow) {
  if (GetParam().cuda) GTEST_SKIP() << "writes into the store from the host";
  const std::string prompt = "p65";
  SequenceState sequence(*pool_);
  feed(sequence, golden_->ints(prompt + ".ids"));
  const Drafts before = draft({golden_row(prompt, 0, sequence)});
  const auto disturb = [&](int64_t position) {
    for (int64_t layer = 0; layer < assistant_->num_layers(); ++layer) {
      const int64_t donor = assistant_->donor_layer(layer);
      const PagedKv store = pool_->layer_kv(donor);
      if (std::holds_alternative<FullKv>(target_->cache_layout().layers[donor])) continue;
      const std::span<const int32_t> pages = sequence.pages(pool_->layer_group(donor));
      const int64_t page = pages[position / store.page_tokens() % pages.size()];
      for (int64_t head = 0; head < store.num_kv_heads(); ++head) {
        float* values =
            store.values.row<float>(page) +
            (head * store.page_tokens() + position % store.page_tokens()) * store.head_dim();
        for (int64_t i = 0; i < store.head_dim(); ++i) values[i] += 1;
      }
    }
  };
  disturb(sequence.length() - 2 - kWindow);
  EXPECT_EQ(draft({golden_row(prompt, 0, sequence)}).logits, before.logits);
  disturb(sequence.length() - 1 - kWindow);
  EXPECT_NE(draft({golden_row(prompt, 0, sequence)}).logits, before.logits);
}

TEST_P(Gemma4AssistantTest, Bf16ModeStaysWithinItsBound) {
  precision_ = ActivationPrecision::kBF16;
  open_cache();
  SequenceState sequence(*pool_);
  feed(sequence, golden_->ints("p65.ids"));
  const double error = relative_error(draft({golden_row("p65", 0, sequence)}).logits,
                                      golden_row_of("p65.logits", 0));
  constexpr double kRoundedInputsPerLayer = 5;
  EXPECT_LT(error, std::hypot(bf16_tolerance(*target_, kRoundedInputsPerLayer),
                              bf16_tolerance(*assistant_, kRoundedInputsPerLayer)));
  EXPECT_GT(error, 0x1p-16) << "bf16 mode seems to round nothing";
}

TEST_P(Gemma4AssistantTest, StoresNothingAndNamesItsDonors) {
  const CacheLayout layout = target_->cache_layout();
  for (const LayerCache& cache : assistant_->cache_layout().layers) {
    EXPECT_TRUE(std::holds_alternative<NoCache>(cache));
  }
  for (int64_t layer = 0; layer < assistant_->num_layers(); ++layer) {
    const int64_t donor = assistant_->donor_layer(layer);
    const bool full = std::holds_alternative<FullKv>(layout.layers.at(donor));
    EXPECT_EQ(full, layer == assistant_->num_layers() - 1);
    for (size_t later = donor + 1; later < layout.layers.size(); ++later) {
      EXPECT_NE(layout.layers[later].index(), layout.layers[donor].index());
    }
  }
  EXPECT_EQ(assistant_->load_report().num_consumed, assistant_->load_report().num_tensors);
}

INSTANTIATE_TEST_SUITE_P(Models, Gemma4AssistantTest, testing::ValuesIn(kCases), case_name);

}  // namespace
}  // namespace braid
