#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace braid {

// Byte-pair encoding over code points: start from one symbol a code point, then repeatedly merge
// the adjacent pair of the smallest priority, the leftmost among equals, until none can be merged.
// Serves merge-ranked files (priority = place in the list) and score-based SentencePiece files
// (priority = place of the score) alike. Immutable and thread-safe; O(n log n) in the text.
class Bpe {
 public:
  struct Merge {
    TokenId left;
    TokenId right;
    TokenId result;
    uint32_t priority;
  };

  struct Options {
    std::optional<TokenId> unk;
    bool byte_fallback = false;       // code points without a token become <0xHH> tokens
    bool fuse_unk = false;            // neighbouring unknown code points become one unk
    bool ignore_merges = false;       // a piece that is itself a token is taken whole
    bool whole_newline_runs = false;  // the same, for pieces of newlines only
  };

  // Buffers reused between pieces; one a thread.
  struct Scratch {
    struct Node {
      TokenId symbol;
      int32_t previous;
      int32_t next;
    };
    struct Candidate {
      uint32_t priority;
      int32_t position;
      TokenId left;
      TokenId right;
      TokenId result;
    };
    std::vector<TokenId> symbols;
    std::vector<uint32_t> priorities;
    std::vector<TokenId> results;
    std::vector<Node> nodes;
    std::vector<Candidate> heap;
  };

  // vocabulary: the model's own tokens, without those added beside it. Of two merges of one pair
  // the later counts.
  Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const Options& options);

  // Score-based: any two neighbours merge when their concatenation is a mergeable token; the
  // highest score first. scores and mergeable have one entry an id. Throws Error when a score is
  // not a number or a mergeable token is longer than kMaxScoredTokenBytes.
  static Bpe from_scores(const Vocabulary& vocabulary, const std::vector<float>& scores,
                         const std::vector<bool>& mergeable, const Options& options);
  static constexpr size_t kMaxScoredTokenBytes = 1024;

  // Appends the ids of a piece of well-formed UTF-8.
  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;

 private:
  struct Slot {
    uint64_t pair = kNoPair;
    TokenId result = 0;
    uint32_t priority = 0;
  };
  static constexpr uint64_t kNoPair = UINT64_MAX;
  static constexpr TokenId kNoSymbol = -1;
  static constexpr size_t kFilterBits = size_t{1} << 20;

  Bpe(const Vocabulary& vocabulary, const Options& options);

  // Ids from num_tokens_ on stand for code points that only occur inside longer tokens.
  TokenId pseudo_symbol(char32_t code_point);
  TokenId symbol_of(char32_t code_point) const;
  void set_symbol(char32_t code_point, TokenId symbol);
  void index_characters(const Vocabulary& vocabulary, const std::vector<bool>* usable);
  void set_merges(const std::vector<Merge>& merges);
  void allow_junction(char32_t left, char32_t right);
  bool may_join(char32_t left, char32_t right) const;
  const Slot* find(TokenId left, TokenId right) const;

  void merge_and_emit(Scratch& scratch, std::vector<TokenId>& ids) const;
  void merge_short(Scratch& scratch, std::vector<TokenId>& ids) const;
  void merge_long(Scratch& scratch, std::vector<TokenId>& ids) const;
  void emit(TokenId symbol, std::vector<TokenId>& ids) const;
  bool bytes_of(std::string_view character, std::vector<TokenId>& symbols) const;

  Options options_;
  TokenId num_tokens_;
  std::array<TokenId, 256> byte_tokens_;
  std::vector<TokenId> low_symbols_;  // [65536] by code point
  std::unordered_map<char32_t, TokenId> high_symbols_;
  std::vector<char32_t> pseudo_characters_;
  std::vector<Slot> slots_;
  int slot_shift_ = 0;
  // Hashed set of code point pairs (a, b) such that some merge has a left part that ends in a and a
  // right part that begins with b. A text may be cut where its pair is absent: no merge crosses.
  std::vector<uint64_t> junctions_;
  bool fallback_merges_ = false;  // some merge takes a byte or unk token
  std::unordered_map<std::string, TokenId> whole_;
};

}  // namespace braid
