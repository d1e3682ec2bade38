#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/likelihood_scorer.h"
#include "evaluate/statistics.h"
#include "tokenizer/tokenizer.h"

namespace braid {

// A text of which no other is to be seen.
struct Document {
  std::string name;          // "book.txt", "texts.jsonl:12"
  std::vector<int32_t> ids;  // without BOS
};

// The mean of the negative log-likelihood of tokens, by length. For each length L of `buckets`,
// every document is cut into chunks of L tokens (BOS included, if there is one), each computed from
// an empty cache; all tokens of a chunk but the first are scored. What is left over at the end of
// a document is left out of that bucket. Documents shorter than every bucket are scored whole in a
// row of their own, length 0.
struct NllOptions {
  std::vector<int64_t> buckets = {128, 256, 512, 1024, 2048};  // each at least 2
  std::optional<int32_t> bos;                                  // put before each chunk
  int64_t max_tokens = 0;  // of the documents together, in their order; 0: all
  size_t num_worst = 10;
  bool keep_tokens = false;  // fill NllResult::tokens
};

// With a reference, half of the fields mean something.
struct NllBucket {
  int64_t length = 0;  // 0: documents shorter than every bucket
  int64_t num_chunks = 0;
  int64_t num_documents = 0;
  int64_t num_tokens = 0;    // scored
  int64_t num_left_out = 0;  // tokens of documents of which this bucket has no chunk or a rest
  int64_t num_bytes = 0;     // of the text of the scored tokens
  Estimate nll;              // nats a token
  double perplexity = 0;     // exp(nll)
  double bits_per_byte = 0;
  Estimate reference_nll;
  Estimate delta;      // nll − reference's, paired token by token
  Estimate kl;         // KL(reference ‖ model), nats
  Estimate agreement;  // share of tokens for which both have the same likeliest token
  double kl_median = 0, kl_99 = 0, kl_max = 0;
};

struct ScoredToken {
  int64_t bucket = 0;  // length
  size_t document = 0;
  int64_t offset = 0;    // in the document's ids
  int64_t position = 0;  // in the chunk, BOS included
  int32_t token = 0;
  TokenScore score;
};

// Mean loss of the tokens at positions [begin, end) of the chunks of one bucket.
struct PositionLoss {
  int64_t begin = 0, end = 0;
  int64_t num_tokens = 0;
  double nll = 0;
  double reference_nll = 0;
};

// KL values by their power of ten; below the first edge and above the last counts too.
struct KlHistogram {
  static constexpr int kFirstPower = -12, kLastPower = 2, kPartsPerPower = 2;
  static constexpr int kNumBins = (kLastPower - kFirstPower) * kPartsPerPower;
  int64_t num_zero = 0;  // exactly
  std::array<int64_t, kNumBins> counts{};
  void add(double kl);
};

struct NllResult {
  bool has_reference = false;
  bool units_are_documents = false;  // else chunks: what the intervals take as independent
  int64_t num_documents = 0;
  int64_t num_empty_documents = 0;  // too short to score a token
  int64_t num_tokens = 0;           // of the documents, up to max_tokens
  std::vector<NllBucket> buckets;   // length 0 first, if there is one; some may have no chunks
  int64_t position_bucket = 0;      // the longest with chunks
  std::vector<PositionLoss> positions;
  KlHistogram kl_histogram;        // of that bucket
  std::vector<ScoredToken> worst;  // largest KL first, each place of a text once
  std::vector<ScoredToken> tokens;
};

// Fewer documents than this with chunks in a bucket: its intervals take chunks as independent.
inline constexpr int64_t kFewDocuments = 20;

// How many tokens evaluate_nll will compute, for progress.
int64_t num_nll_tokens(std::span<const Document> documents, const NllOptions& options);

// Throws Error if no token of the documents can be scored.
NllResult evaluate_nll(LikelihoodScorer& scorer, std::span<const Document> documents,
                       const Tokenizer& tokenizer, const NllOptions& options,
                       const LikelihoodScorer::Progress& progress = nullptr);

}  // namespace braid
