#include "evaluate/nll.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"
#include "base/error.h"

namespace braid {
namespace {

constexpr int64_t kMostPositions = 64;  // points of the loss by position

struct Chunk {
  size_t document = 0;
  int64_t offset = 0;           // of its first token in the document
  std::vector<int32_t> tokens;  // BOS included
};

struct BucketChunks {
  int64_t length = 0;
  int64_t num_left_out = 0;
  std::vector<Chunk> chunks;
};

class Chunker {
 public:
  explicit Chunker(const NllOptions& options)
      : options_(options), num_bos_(options.bos ? 1 : 0), buckets_(options.buckets) {
    std::sort(buckets_.begin(), buckets_.end());
    buckets_.erase(std::unique(buckets_.begin(), buckets_.end()), buckets_.end());
    BRAID_CHECK(!buckets_.empty() && buckets_.front() >= 2, "buckets of at least 2 tokens");
  }

  // Documents cut where max_tokens is reached.
  std::vector<std::span<const int32_t>> used(std::span<const Document> documents) const {
    std::vector<std::span<const int32_t>> used;
    int64_t left = options_.max_tokens;
    for (const Document& document : documents) {
      std::span<const int32_t> ids = document.ids;
      if (options_.max_tokens > 0) {
        ids = ids.first(static_cast<size_t>(std::min<int64_t>(left, std::ssize(ids))));
        left -= std::ssize(ids);
      }
      used.push_back(ids);
    }
    return used;
  }

  std::vector<BucketChunks> cut(std::span<const std::span<const int32_t>> documents) const {
    std::vector<BucketChunks> all;
    BucketChunks shorts;
    for (size_t d = 0; d < documents.size(); ++d) {
      if (is_short(documents[d])) shorts.chunks.push_back(chunk(d, documents[d], 0));
    }
    if (!shorts.chunks.empty()) all.push_back(std::move(shorts));
    for (const int64_t length : buckets_) {
      BucketChunks bucket{.length = length};
      for (size_t d = 0; d < documents.size(); ++d) cut(d, documents[d], bucket);
      all.push_back(std::move(bucket));
    }
    return all;
  }

  // Whether a token can be scored at all.
  bool is_scorable(std::span<const int32_t> ids) const { return std::ssize(ids) + num_bos_ >= 2; }

 private:
  bool is_short(std::span<const int32_t> ids) const {
    return is_scorable(ids) && std::ssize(ids) + num_bos_ < buckets_.front();
  }

  void cut(size_t document, std::span<const int32_t> ids, BucketChunks& bucket) const {
    const int64_t size = bucket.length - num_bos_;
    int64_t begin = 0;
    for (; begin + size <= std::ssize(ids); begin += size) {
      bucket.chunks.push_back(chunk(
          document, ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(size)), begin));
    }
    if (!is_short(ids)) bucket.num_left_out += std::ssize(ids) - begin;
  }

  Chunk chunk(size_t document, std::span<const int32_t> ids, int64_t offset) const {
    Chunk chunk{.document = document, .offset = offset};
    chunk.tokens.reserve(ids.size() + 1);
    if (options_.bos) chunk.tokens.push_back(*options_.bos);
    chunk.tokens.insert(chunk.tokens.end(), ids.begin(), ids.end());
    return chunk;
  }

  const NllOptions& options_;
  int64_t num_bos_;
  std::vector<int64_t> buckets_;
};

struct ChunkSums {
  double tokens = 0, nll = 0, reference_nll = 0, kl = 0, agreed = 0;
  int64_t bytes = 0;

  void add(const ChunkSums& other) {
    tokens += other.tokens;
    nll += other.nll;
    reference_nll += other.reference_nll;
    kl += other.kl;
    agreed += other.agreed;
    bytes += other.bytes;
  }
};

Estimate estimate(std::span<const ChunkSums> units, double (*value)(const ChunkSums&)) {
  std::vector<UnitSum> sums;
  for (const ChunkSums& unit : units) sums.push_back({value(unit), unit.tokens});
  return estimate_ratio(sums);
}

double quantile(std::vector<float>& values, double p) {
  const auto index = static_cast<size_t>(p * static_cast<double>(values.size() - 1) + 0.5);
  const auto at = values.begin() + static_cast<int64_t>(index);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// The places with the largest KL, as far as there is a difference.
class WorstTokens {
 public:
  explicit WorstTokens(size_t count) : count_(count) {}

  void add(const ScoredToken& token) {
    if (count_ == 0 || token.score.kl == 0) return;
    if (tokens_.size() == count_ && token.score.kl <= tokens_.back().score.kl) return;
    const auto same = std::find_if(tokens_.begin(), tokens_.end(), [&](const ScoredToken& known) {
      return known.document == token.document && known.offset == token.offset;
    });
    if (same != tokens_.end()) {
      if (same->score.kl >= token.score.kl) return;
      tokens_.erase(same);
    }
    const auto place = std::upper_bound(
        tokens_.begin(), tokens_.end(), token,
        [](const ScoredToken& a, const ScoredToken& b) { return a.score.kl > b.score.kl; });
    tokens_.insert(place, token);
    if (tokens_.size() > count_) tokens_.pop_back();
  }
  std::vector<ScoredToken> take() { return std::move(tokens_); }

 private:
  size_t count_;
  std::vector<ScoredToken> tokens_;  // worst first
};

class NllEvaluation {
 public:
  NllEvaluation(LikelihoodScorer& scorer, std::span<const Document> documents,
                const Tokenizer& tokenizer, const NllOptions& options)
      : scorer_(scorer),
        documents_(documents),
        tokenizer_(tokenizer),
        options_(options),
        worst_(options.num_worst) {}

  NllResult run(const LikelihoodScorer::Progress& progress) {
    const Chunker chunker(options_);
    const auto used = chunker.used(documents_);
    result_.has_reference = scorer_.has_reference();
    result_.num_documents = std::ssize(documents_);
    for (const auto ids : used) {
      result_.num_tokens += std::ssize(ids);
      if (!chunker.is_scorable(ids)) ++result_.num_empty_documents;
    }
    if (result_.num_empty_documents == result_.num_documents) {
      throw Error("no document has a token to score: the texts are empty or of a single token");
    }
    const std::vector<BucketChunks> buckets = chunker.cut(used);
    for (const BucketChunks& bucket : buckets) {
      if (!bucket.chunks.empty()) result_.position_bucket = bucket.length;
    }
    for (const BucketChunks& bucket : buckets) evaluate(bucket, progress);
    if (result_.has_reference) result_.worst = worst_.take();
    return std::move(result_);
  }

 private:
  void evaluate(const BucketChunks& bucket, const LikelihoodScorer::Progress& progress) {
    std::vector<ScoredSequence> sequences;
    for (const Chunk& chunk : bucket.chunks) sequences.push_back({chunk.tokens, 1});
    const bool last = bucket.length == result_.position_bucket;
    std::vector<std::vector<TokenScore>> scores(sequences.size());
    scorer_.run(
        sequences,
        [&](size_t i, std::span<const TokenScore> s) { scores[i].assign(s.begin(), s.end()); },
        progress, [&](size_t i) { return documents_[bucket.chunks[i].document].name; });

    std::vector<ChunkSums> by_chunk(sequences.size());
    std::map<size_t, ChunkSums> by_document;
    std::vector<float> kls;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const Chunk& chunk = bucket.chunks[i];
      sum_up(bucket, chunk, scores[i], by_chunk[i], kls);
      by_document[chunk.document].add(by_chunk[i]);
    }
    if (last) fill_positions(scores);
    summarise(bucket, by_chunk, by_document, kls);
  }

  void sum_up(const BucketChunks& bucket, const Chunk& chunk, std::span<const TokenScore> scores,
              ChunkSums& sums, std::vector<float>& kls) {
    const int64_t num_bos = options_.bos ? 1 : 0;
    for (size_t t = 0; t < scores.size(); ++t) {
      const TokenScore& score = scores[t];
      const auto position = static_cast<int64_t>(t) + 1;
      const ScoredToken token{.bucket = bucket.length,
                              .document = chunk.document,
                              .offset = chunk.offset + position - num_bos,
                              .position = position,
                              .token = chunk.tokens[static_cast<size_t>(position)],
                              .score = score};
      sums.tokens += 1;
      sums.nll += score.nll;
      sums.bytes += std::ssize(tokenizer_.token_bytes(token.token, /*render_special=*/true));
      if (options_.keep_tokens) result_.tokens.push_back(token);
      if (!result_.has_reference) continue;
      sums.reference_nll += score.reference_nll;
      sums.kl += score.kl;
      sums.agreed += score.top == score.reference_top ? 1 : 0;
      kls.push_back(static_cast<float>(score.kl));
      if (bucket.length == result_.position_bucket) result_.kl_histogram.add(score.kl);
      worst_.add(token);
    }
  }

  void summarise(const BucketChunks& bucket, std::span<const ChunkSums> by_chunk,
                 const std::map<size_t, ChunkSums>& by_document, std::vector<float>& kls) {
    NllBucket row{.length = bucket.length,
                  .num_chunks = std::ssize(bucket.chunks),
                  .num_documents = std::ssize(by_document),
                  .num_left_out = bucket.num_left_out};
    std::vector<ChunkSums> units(by_chunk.begin(), by_chunk.end());
    if (row.num_documents >= kFewDocuments) {
      result_.units_are_documents = true;
      units.clear();
      for (const auto& [document, sums] : by_document) units.push_back(sums);
    }
    ChunkSums total;
    for (const ChunkSums& unit : units) total.add(unit);
    row.num_tokens = static_cast<int64_t>(total.tokens);
    row.num_bytes = total.bytes;
    row.nll = estimate(units, [](const ChunkSums& u) { return u.nll; });
    row.perplexity = std::exp(row.nll.mean);
    row.bits_per_byte = total.nll / std::log(2.0) / static_cast<double>(total.bytes);
    if (result_.has_reference) {
      row.reference_nll = estimate(units, [](const ChunkSums& u) { return u.reference_nll; });
      row.delta = estimate(units, [](const ChunkSums& u) { return u.nll - u.reference_nll; });
      row.kl = estimate(units, [](const ChunkSums& u) { return u.kl; });
      row.agreement = estimate(units, [](const ChunkSums& u) { return u.agreed; });
      if (!kls.empty()) {
        row.kl_median = quantile(kls, 0.5);
        row.kl_99 = quantile(kls, 0.99);
        row.kl_max = quantile(kls, 1);
      }
    }
    result_.buckets.push_back(row);
  }

  void fill_positions(std::span<const std::vector<TokenScore>> scores) {
    size_t longest = 0;
    for (const auto& chunk : scores) longest = std::max(longest, chunk.size());
    const int64_t width =
        std::max<int64_t>(1, (static_cast<int64_t>(longest) + kMostPositions - 1) / kMostPositions);
    for (int64_t begin = 0; begin < static_cast<int64_t>(longest); begin += width) {
      // The first scored token is at position 1.
      PositionLoss point{.begin = begin + 1,
                         .end = std::min(begin + width, static_cast<int64_t>(longest)) + 1};
      for (const auto& chunk : scores) {
        const auto size = static_cast<int64_t>(chunk.size());
        for (int64_t t = begin; t < std::min(begin + width, size); ++t) {
          ++point.num_tokens;
          point.nll += chunk[static_cast<size_t>(t)].nll;
          point.reference_nll += chunk[static_cast<size_t>(t)].reference_nll;
        }
      }
      point.nll /= static_cast<double>(point.num_tokens);
      point.reference_nll /= static_cast<double>(point.num_tokens);
      result_.positions.push_back(point);
    }
  }

  LikelihoodScorer& scorer_;
  std::span<const Document> documents_;
  const Tokenizer& tokenizer_;
  const NllOptions& options_;
  WorstTokens worst_;
  NllResult result_;
};

}  // namespace

void KlHistogram::add(double kl) {
  if (kl == 0) {
    ++num_zero;
    return;
  }
  const double place = (std::log10(kl) - kFirstPower) * kPartsPerPower;
  ++counts[static_cast<size_t>(std::clamp(place, 0.0, kNumBins - 1.0))];
}

int64_t num_nll_tokens(std::span<const Document> documents, const NllOptions& options) {
  const Chunker chunker(options);
  int64_t count = 0;
  for (const BucketChunks& bucket : chunker.cut(chunker.used(documents))) {
    for (const Chunk& chunk : bucket.chunks) count += std::ssize(chunk.tokens) - 1;
  }
  return count;
}

NllResult evaluate_nll(LikelihoodScorer& scorer, std::span<const Document> documents,
                       const Tokenizer& tokenizer, const NllOptions& options,
                       const LikelihoodScorer::Progress& progress) {
  return NllEvaluation(scorer, documents, tokenizer, options).run(progress);
}

}  // namespace braid
