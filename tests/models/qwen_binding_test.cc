#include "models/binding_test.h"
#include "models/weight_rows.h"

namespace braid {
namespace {

// One tensor an expert, interleaved projections, an MTP head.
class QwenBindingTest : public BindingTest {
 protected:
  QwenBindingTest() : BindingTest("qwen3_next") {}
};

TEST_F(QwenBindingTest, CompleteCheckpointIsConsumedWhole) {
  write_weights([](auto&) {});
  ModelFiles files = ModelFiles::open(folder_);
  const auto model = load_model(files);
  EXPECT_EQ(model->load_report().num_consumed, model->load_report().num_tensors);
  EXPECT_EQ(model->load_report().num_ignored, 0);
  EXPECT_NE(model->draft_head(), nullptr);
}

TEST_F(QwenBindingTest, WithoutMtpTensorsThereIsNoDraftHead) {
  write_weights([](auto& tensor) {
    if (tensor.name.starts_with("mtp.")) tensor.name.clear();
  });
  ModelFiles files = ModelFiles::open(folder_);
  EXPECT_EQ(load_model(files)->draft_head(), nullptr);
}

TEST_F(QwenBindingTest, HalfAnMtpHeadIsRefused) {
  write_weights([](auto& tensor) {
    if (tensor.name == "mtp.layers.0.mlp.shared_expert_gate.weight") tensor.name.clear();
  });
  EXPECT_THAT(load_error(), ::testing::HasSubstr("mtp.layers.0.mlp.shared_expert_gate.weight"));
}

TEST_F(QwenBindingTest, MissingTensorsAreAllNamed) {
  write_weights([](auto& tensor) {
    for (const char* name :
         {"layers.0.linear_attn.in_proj_qkvz.weight", "layers.1.linear_attn.A_log",
          "layers.2.mlp.experts.5.up_proj.weight", "layers.3.self_attn.q_proj.weight"}) {
      if (tensor.name.ends_with(name)) return tensor.name.clear();
    }
  });
  const std::string error = load_error();
  EXPECT_THAT(error, ::testing::HasSubstr("layers.0.linear_attn.in_proj_qkvz.weight"));
  EXPECT_THAT(error, ::testing::HasSubstr("layers.1.linear_attn.A_log"));
  EXPECT_THAT(error, ::testing::HasSubstr("layers.2.mlp.experts.5.up_proj.weight"));
  EXPECT_THAT(error, ::testing::HasSubstr("layers.3.self_attn.q_proj.weight"));
}

TEST_F(QwenBindingTest, UnknownTensorIsNamed) {
  write_weights([](auto&) {}, {{"model.layers.0.linear_attn.out_proj.bias", DType::kBF16, {32}}});
  EXPECT_THAT(load_error(), ::testing::HasSubstr("linear_attn.out_proj.bias"));
}

TEST_F(QwenBindingTest, OneExpertMoreIsRefused) {
  write_weights([](auto&) {},
                {{"model.layers.0.mlp.experts.8.up_proj.weight", DType::kBF16, {8, 32}}});
  EXPECT_THAT(load_error(), ::testing::HasSubstr("mlp.experts.8.up_proj.weight"));
}

TEST_F(QwenBindingTest, ExpertsOfALayerShareOneFormat) {
  write_weights(
      [](auto& tensor) {
        if (tensor.name.ends_with("layers.1.mlp.experts.3.down_proj.weight")) tensor.name.clear();
      },
      {{"model.layers.1.mlp.experts.3.down_proj.weight", DType::kF32, {32, 8}}});
  EXPECT_THAT(load_error(),
              ::testing::AllOf(::testing::HasSubstr("layers.1.mlp.experts.3.down_proj"),
                               ::testing::HasSubstr("f32")));
}

TEST_F(QwenBindingTest, LayersTellWhatTheyAre) {
  ModelFiles files = ModelFiles::open(source_);
  const auto model = load_model(files);
  EXPECT_EQ(model->layer_info(0).attention, "gdn 2+4 heads 16/8, conv 4");
  EXPECT_EQ(model->layer_info(3).attention, "full 2 x 32, gated");
  EXPECT_EQ(model->layer_info(0).feed_forward, "moe 3 of 8 x 8 + shared 24");
  // Every matrix of the layer in bfloat16, but 3 of 8 experts only.
  const int64_t hidden = 32, experts = 3 * 3 * 8 * hidden, shared = 3 * 24 * hidden;
  const int64_t mixer = (2 * 32 + 2 * 32 + 2 * 4) * hidden + hidden * 32;
  const int64_t gates = (8 + 1) * hidden;
  EXPECT_EQ(model->layer_info(0).bytes_read_per_token, 2 * (experts + shared + mixer + gates));
}

TEST(VisionTowers, AreIgnoredWithTheReason) {
  ModelFiles files = ModelFiles::open(std::string(BRAID_TEST_DATA) + "/models/qwen3_5_nested");
  const auto model = load_model(files);
  const LoadReport& report = model->load_report();
  EXPECT_GT(report.num_ignored_because.at("text only"), 0);
  EXPECT_EQ(report.num_consumed + report.num_ignored, report.num_tensors);
}

TEST(WeightRows, SelectAndStackMoveWholeRowsInAnyFormat) {
  const QuantFormat& format = quant_format(FormatId::kQ8_0);
  std::vector<float> values(6 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) - 48;
  std::vector<std::byte> blocks(format.row_bytes(static_cast<int64_t>(values.size())));
  quantize(format, values.data(), static_cast<int64_t>(values.size()), blocks.data());
  const Weight matrix{.format = &format, .shape = {6, 64}, .data = blocks.data()};
  const auto row = [&](const std::byte* data) {
    return std::vector<std::byte>(data, data + matrix.row_bytes());
  };

  const std::vector<RowRange> ranges = {{4, 2}, {0, 1}};
  const Weight selected = select_rows(matrix, ranges);
  ASSERT_EQ(selected.shape, Shape({3, 64}));
  EXPECT_EQ(row(selected.row(0)), row(matrix.row(4)));
  EXPECT_EQ(row(selected.row(1)), row(matrix.row(5)));
  EXPECT_EQ(row(selected.row(2)), row(matrix.row(0)));

  const std::vector<Weight> parts = {matrix.slice_rows(3, 3), selected};
  const Weight stack = stack_matrices(parts);
  ASSERT_EQ(stack.shape, Shape({2, 3, 64}));
  EXPECT_EQ(row(stack.row(0)), row(matrix.row(3)));
  EXPECT_EQ(row(stack.row(3)), row(matrix.row(4)));
}

}  // namespace
}  // namespace braid
