#include "evaluate/nll.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "evaluate/plain_likelihood.h"

namespace braid {
namespace {

using testing::exact;
using testing::kTiny;
using testing::model_path;

class NllTest : public ::testing::Test {
 protected:
  NllResult evaluate(std::span<const Document> documents, const NllOptions& options,
                     const LoadedModel* reference = nullptr) {
    LikelihoodScorer scorer({.model = exact(loaded_),
                             .reference = reference == nullptr ? ScorerModel{} : exact(*reference),
                             .threads = {.num_threads = 1},
                             .max_sequence_tokens = 256});
    computed_ = 0;
    NllResult result = evaluate_nll(scorer, documents, loaded_.tokenizer(), options,
                                    [&](int64_t count) { computed_ += count; });
    EXPECT_EQ(computed_, num_nll_tokens(documents, options));
    return result;
  }

  Document document(int64_t size) {
    return {"d", testing::random_ids(random_, size, loaded_.model().vocab_size())};
  }

  testing::FreshRandom random_;
  LoadedModel loaded_ = LoadedModel::load(model_path("gguf/gemma4_moe_bf16.gguf").string());
  int64_t computed_ = 0;
};

TEST_F(NllTest, EqualsAPlainComputation) {
  const std::vector<Document> documents = {document(130), document(47)};
  const std::optional<int32_t> bos = random_.coin() ? std::optional<int32_t>(2) : std::nullopt;
  const int64_t length = random_.integer(2, 47);
  const NllResult result =
      evaluate(documents, {.buckets = {length}, .bos = bos, .keep_tokens = true});
  ASSERT_EQ(result.buckets.size(), 1u);

  double sum = 0;
  std::vector<double> losses;
  int64_t bytes = 0, chunks = 0, left_out = 0;
  const int64_t text_tokens = length - (bos ? 1 : 0);
  for (const Document& each : documents) {
    int64_t begin = 0;
    for (; begin + text_tokens <= std::ssize(each.ids); begin += text_tokens, ++chunks) {
      std::vector<int32_t> chunk;
      if (bos) chunk.push_back(*bos);
      chunk.insert(chunk.end(), each.ids.begin() + begin, each.ids.begin() + begin + text_tokens);
      const auto rows = testing::plain_logits(loaded_.model(), chunk);
      for (size_t t = 1; t < chunk.size(); ++t) {
        losses.push_back(testing::plain_nll(rows[t - 1], chunk[t]));
        sum += losses.back();
        bytes += std::ssize(loaded_.tokenizer().token_bytes(chunk[t], true));
      }
    }
    left_out += std::ssize(each.ids) - begin;
  }
  const NllBucket& bucket = result.buckets[0];
  const auto n = static_cast<double>(losses.size());
  EXPECT_EQ(bucket.num_chunks, chunks);
  EXPECT_EQ(bucket.num_tokens, std::ssize(losses));
  EXPECT_EQ(bucket.num_left_out, left_out);
  EXPECT_EQ(bucket.num_bytes, bytes);
  EXPECT_NEAR(bucket.nll.mean, sum / n, kTiny);
  EXPECT_NEAR(bucket.perplexity, std::exp(sum / n), kTiny * bucket.perplexity);
  EXPECT_NEAR(bucket.bits_per_byte, sum / std::log(2.0) / static_cast<double>(bytes), kTiny);
  EXPECT_EQ(bucket.nll.num_units, chunks);

  // Token by token, and where each stands.
  ASSERT_EQ(result.tokens.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    const ScoredToken& token = result.tokens[i];
    EXPECT_NEAR(token.score.nll, losses[i], kTiny);
    EXPECT_EQ(documents[token.document].ids[static_cast<size_t>(token.offset)], token.token);
    EXPECT_EQ(token.position, token.offset % text_tokens + (bos ? 1 : 0));
  }
  // By position, with the right weights.
  double by_position = 0;
  int64_t next = 1, counted = 0;
  for (const PositionLoss& point : result.positions) {
    EXPECT_EQ(point.begin, next);
    next = point.end;
    by_position += point.nll * static_cast<double>(point.num_tokens);
    counted += point.num_tokens;
  }
  EXPECT_EQ(next, length);
  EXPECT_EQ(counted, std::ssize(losses));
  EXPECT_NEAR(by_position, sum, kTiny * n);
}

struct EdgeCase {
  int64_t size;    // of the document
  int64_t chunks;  // of the bucket of 8
  int64_t left_out;
  int64_t shorter;  // tokens scored in the row of shorter documents
};

TEST_F(NllTest, EdgesOfABucketWithBos) {
  for (const EdgeCase& edge : {EdgeCase{1, 0, 0, 1},
                               {6, 0, 0, 6},
                               {7, 1, 0, 0},
                               {8, 1, 1, 0},
                               {13, 1, 6, 0},
                               {14, 2, 0, 0},
                               {15, 2, 1, 0}}) {
    const std::vector<Document> documents = {document(edge.size)};
    const NllResult result = evaluate(documents, {.buckets = {8}, .bos = 2});
    std::map<int64_t, NllBucket> rows;
    for (const NllBucket& bucket : result.buckets) rows[bucket.length] = bucket;
    EXPECT_EQ(rows[8].num_chunks, edge.chunks) << edge.size;
    EXPECT_EQ(rows[8].num_tokens, 7 * edge.chunks) << edge.size;
    EXPECT_EQ(rows[8].num_left_out, edge.left_out) << edge.size;
    EXPECT_EQ(rows.count(0), edge.shorter > 0 ? 1u : 0u) << edge.size;
    EXPECT_EQ(rows[0].num_tokens, edge.shorter) << edge.size;
    EXPECT_EQ(result.num_empty_documents, 0);
    EXPECT_EQ(result.position_bucket, edge.chunks > 0 ? 8 : 0);
  }
}

TEST_F(NllTest, EdgesOfABucketWithoutBos) {
  for (const EdgeCase& edge :
       {EdgeCase{2, 0, 0, 1}, {7, 0, 0, 6}, {8, 1, 0, 0}, {9, 1, 1, 0}, {16, 2, 0, 0}}) {
    const std::vector<Document> documents = {document(edge.size), document(1), document(0)};
    const NllResult result = evaluate(documents, {.buckets = {8}});
    std::map<int64_t, NllBucket> rows;
    for (const NllBucket& bucket : result.buckets) rows[bucket.length] = bucket;
    EXPECT_EQ(rows[8].num_chunks, edge.chunks) << edge.size;
    EXPECT_EQ(rows[8].num_tokens, 7 * edge.chunks) << edge.size;
    EXPECT_EQ(rows[0].num_tokens, edge.shorter) << edge.size;
    EXPECT_EQ(result.num_empty_documents, 2);
  }
}

TEST_F(NllTest, NothingToScoreIsAnError) {
  const std::vector<Document> empty = {document(0)};
  EXPECT_THROW(evaluate(empty, {.bos = 2}), Error);
  const std::vector<Document> single = {document(1), document(0)};
  EXPECT_THROW(evaluate(single, {}), Error);
}

TEST_F(NllTest, MaxTokensCutsTheDocumentsInTheirOrder) {
  const std::vector<Document> documents = {document(20), document(20), document(20)};
  const NllResult result =
      evaluate(documents, {.buckets = {4}, .max_tokens = 27, .keep_tokens = true});
  EXPECT_EQ(result.num_tokens, 27);
  EXPECT_EQ(result.num_empty_documents, 1);
  EXPECT_EQ(result.buckets[0].num_chunks, 5 + 1);
  EXPECT_EQ(result.buckets[0].num_left_out, 3);
  // What follows a text does not change its losses.
  const NllResult whole = evaluate(documents, {.buckets = {4}, .keep_tokens = true});
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    EXPECT_EQ(result.tokens[i].score.nll, whole.tokens[i].score.nll);
  }
}

TEST_F(NllTest, AModelDoesNotDifferFromItself) {
  const std::vector<Document> documents = {document(100), document(33)};
  const NllResult result = evaluate(documents, {.buckets = {8, 32}, .bos = 2}, &loaded_);
  for (const NllBucket& bucket : result.buckets) {
    EXPECT_EQ(bucket.delta.mean, 0);
    EXPECT_EQ(bucket.delta.half_width, 0);
    EXPECT_EQ(bucket.kl.mean, 0);
    EXPECT_EQ(bucket.kl_max, 0);
    EXPECT_EQ(bucket.agreement.mean, 1);
    EXPECT_EQ(bucket.nll.mean, bucket.reference_nll.mean);
  }
  EXPECT_TRUE(result.worst.empty());
  EXPECT_GT(result.kl_histogram.num_zero, 0);
  EXPECT_THAT(result.kl_histogram.counts, ::testing::Each(0));
}

TEST_F(NllTest, AnotherModelDiffersByWhatThePlainFormulasSay) {
  const LoadedModel other = LoadedModel::load(model_path("gguf/gemma3_f32.gguf").string());
  const std::vector<Document> documents = {document(90)};
  const NllResult result =
      evaluate(documents, {.buckets = {16, 30}, .num_worst = 7, .keep_tokens = true}, &other);
  double delta = 0, kl = 0, agreed = 0, largest = 0;
  std::map<int64_t, double> by_offset;  // the largest KL of each place
  for (const ScoredToken& token : result.tokens) {
    double& known = by_offset[token.offset];
    known = std::max(known, token.score.kl);
    if (token.bucket != 30) continue;
    delta += token.score.nll - token.score.reference_nll;
    kl += token.score.kl;
    largest = std::max(largest, token.score.kl);
    agreed += token.score.top == token.score.reference_top ? 1 : 0;
  }
  const NllBucket& bucket = result.buckets.back();
  const auto n = static_cast<double>(bucket.num_tokens);
  EXPECT_EQ(bucket.num_tokens, 3 * 29);
  EXPECT_NEAR(bucket.delta.mean, delta / n, kTiny);
  EXPECT_NEAR(bucket.kl.mean, kl / n, kTiny);
  EXPECT_NEAR(bucket.agreement.mean, agreed / n, kTiny);
  EXPECT_FLOAT_EQ(static_cast<float>(bucket.kl_max), static_cast<float>(largest));
  EXPECT_LE(bucket.kl_median, bucket.kl_99);
  EXPECT_LE(bucket.kl_99, bucket.kl_max);

  std::vector<double> expected;
  for (const auto& [offset, value] : by_offset) expected.push_back(value);
  std::sort(expected.rbegin(), expected.rend());
  ASSERT_EQ(result.worst.size(), 7u);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(result.worst[i].score.kl, expected[i]);

  int64_t in_histogram = result.kl_histogram.num_zero;
  for (const int64_t count : result.kl_histogram.counts) in_histogram += count;
  EXPECT_EQ(in_histogram, bucket.num_tokens);
}

TEST_F(NllTest, ManyDocumentsAreTheUnits) {
  std::vector<Document> documents;
  for (int i = 0; i < kFewDocuments; ++i) documents.push_back(document(17));
  const NllResult result = evaluate(documents, {.buckets = {8}, .bos = 2});
  EXPECT_TRUE(result.units_are_documents);
  EXPECT_EQ(result.buckets[0].num_chunks, 2 * kFewDocuments);
  EXPECT_EQ(result.buckets[0].nll.num_units, kFewDocuments);
  documents.pop_back();
  const NllResult fewer = evaluate(documents, {.buckets = {8}, .bos = 2});
  EXPECT_FALSE(fewer.units_are_documents);
  EXPECT_EQ(fewer.buckets[0].nll.num_units, 2 * (kFewDocuments - 1));
}

TEST(KlHistogram, BinsHoldTheirValues) {
  for (int i = 0; i < KlHistogram::kNumBins; ++i) {
    KlHistogram histogram;
    const double power = KlHistogram::kFirstPower + (i + 0.5) / KlHistogram::kPartsPerPower;
    histogram.add(std::pow(10.0, power));
    EXPECT_EQ(histogram.counts[static_cast<size_t>(i)], 1);
  }
  KlHistogram histogram;
  for (const double kl : {0.0, 1e-30, 1e30}) histogram.add(kl);
  EXPECT_EQ(histogram.num_zero, 1);
  EXPECT_EQ(histogram.counts.front(), 1);
  EXPECT_EQ(histogram.counts.back(), 1);
}

}  // namespace
}  // namespace braid
