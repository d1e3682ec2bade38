#include "quantize/calibration_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/model_files.h"
#include "engine/model_tokenizer.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

class CalibrationTextTest : public ::testing::Test {
 protected:
  CalibrationTextTest() {
    const std::filesystem::path root =
        std::filesystem::path(BRAID_TEST_DATA).parent_path().parent_path();
    tokenizer_ =
        load_tokenizer(ModelFiles::open(root / "demo_models" / "gemma4", /*with_weights=*/false));
    text_ = read_file(std::filesystem::path(BRAID_TEST_DATA) / "tokenizer" / "sample.txt");
  }
  std::string error_of(std::string_view text, int64_t length) const {
    try {
      calibration_from_text(text, "some.txt", *tokenizer_, {.length = length});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::string text_;
};

TEST_F(CalibrationTextTest, PiecesFollowOneAnotherEachBehindBos) {
  const CalibrationTokens tokens =
      calibration_from_text(text_, "t", *tokenizer_, {.num_sequences = 1000, .length = 33});
  const std::vector<TokenId> ids = tokenizer_->encode(text_);
  ASSERT_EQ(tokens.sequences.size(), ids.size() / 32);
  for (size_t i = 0; i < tokens.sequences.size(); ++i) {
    ASSERT_EQ(tokens.sequences[i].size(), 33u);
    EXPECT_EQ(tokens.sequences[i][0], *tokenizer_->bos_id());
    EXPECT_TRUE(std::equal(tokens.sequences[i].begin() + 1, tokens.sequences[i].end(),
                           ids.begin() + static_cast<std::ptrdiff_t>(32 * i)));
  }
}

TEST_F(CalibrationTextTest, DrawsBySeed) {
  const CalibrationTextOptions options{.num_sequences = 5, .length = 17, .seed = 1};
  const auto first = calibration_from_text(text_, "t", *tokenizer_, options).sequences;
  EXPECT_EQ(first.size(), 5u);
  EXPECT_EQ(first, calibration_from_text(text_, "t", *tokenizer_, options).sequences);
  std::set<std::vector<std::vector<int32_t>>> draws;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    CalibrationTextOptions other = options;
    other.seed = seed;
    draws.insert(calibration_from_text(text_, "t", *tokenizer_, other).sequences);
  }
  EXPECT_GT(draws.size(), 4u);
}

TEST_F(CalibrationTextTest, LinesOfJson) {
  const auto tokens = calibration_from_text(
      "{\"text\": \"one two three four five\"}\n\n"
      "{\"id\": 1, \"text\": \"six seven eight\"}\n",
      "t", *tokenizer_, {.length = 4});
  const auto plain = calibration_from_text("one two three four five\n\nsix seven eight\n\n", "t",
                                           *tokenizer_, {.length = 4});
  EXPECT_EQ(tokens.sequences, plain.sequences);
  EXPECT_THAT(error_of("{\"text\": \"a\"}\nnot json\n", 4), HasSubstr("some.txt:2"));
  EXPECT_THAT(error_of("{\"texts\": \"a\"}\n", 4), HasSubstr("no field \"text\""));
}

TEST_F(CalibrationTextTest, TooLittleTextIsAnError) {
  EXPECT_THAT(error_of("", 4), HasSubstr("some.txt: the calibration text is empty"));
  EXPECT_THAT(error_of(" \n\t\n", 4), HasSubstr("is empty"));
  EXPECT_THAT(error_of("a few words", 64), HasSubstr("too few for one sequence of 64"));
}

}  // namespace
}  // namespace braid
