#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

constexpr size_t kShortRun = 48;  // symbols up to which a plain scan beats the heap
constexpr uint32_t kNoMerge = UINT32_MAX;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

uint64_t pair_key(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

uint64_t junction_hash(char32_t left, char32_t right) {
  return ((uint64_t{left} << 21 | right) * kGolden) >> 44;  // 20 bits
}

struct LaterFirst {  // std heaps keep the largest on top
  bool operator()(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) const {
    return a.priority != b.priority ? a.priority > b.priority : a.position > b.position;
  }
};

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, const Options& options)
    : options_(options), num_tokens_(vocabulary.size()), low_symbols_(0x10000, kNoSymbol) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_tokens_[byte] = options.byte_fallback
                             ? vocabulary.find(fmt::format("<0x{:02X}>", byte)).value_or(kNoSymbol)
                             : kNoSymbol;
  }
}

Bpe::Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const Options& options)
    : Bpe(vocabulary, options) {
  index_characters(vocabulary, nullptr);
  junctions_.assign(kFilterBits / 64, 0);
  std::vector<bool> is_fallback(num_tokens_, false);
  for (const TokenId id : byte_tokens_) {
    if (id != kNoSymbol) is_fallback[id] = true;
  }
  if (options.unk) is_fallback[*options.unk] = true;
  for (const Merge& merge : merges) {
    const std::string_view left = vocabulary.text(merge.left);
    const std::string_view right = vocabulary.text(merge.right);
    if (is_fallback[merge.left] || is_fallback[merge.right]) fallback_merges_ = true;
    if (left.empty() || right.empty()) continue;
    allow_junction(utf8_last(left), utf8_first(right));
  }
  set_merges(merges);

  if (options.ignore_merges) {
    for (TokenId id = 0; id < num_tokens_; ++id) {
      if (vocabulary.contains(id)) whole_.emplace(vocabulary.text(id), id);
    }
  } else if (options.whole_newline_runs) {
    for (TokenId id = 0; id < num_tokens_; ++id) {
      const std::string_view text = vocabulary.text(id);
      if (!text.empty() && text.find_first_not_of('\n') == std::string_view::npos) {
        whole_.emplace(text, id);
      }
    }
  }
}

Bpe Bpe::from_scores(const Vocabulary& vocabulary, const std::vector<float>& scores,
                     const std::vector<bool>& mergeable, const Options& options) {
  Bpe bpe(vocabulary, options);
  bpe.index_characters(vocabulary, &mergeable);
  bpe.junctions_.assign(kFilterBits / 64, 0);

  std::vector<TokenId> order;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (!mergeable[id] || !vocabulary.contains(id)) continue;
    if (std::isnan(scores[id])) throw Error("the score of token {} is not a number", id);
    if (vocabulary.text(id).size() > kMaxScoredTokenBytes) {
      throw Error("token {} is longer than {} bytes", id, kMaxScoredTokenBytes);
    }
    if (utf8_is_valid(vocabulary.text(id)) && vocabulary.find(vocabulary.text(id)) == id) {
      order.push_back(id);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return scores[a] > scores[b]; });

  std::vector<Merge> merges;
  const auto part = [&](std::string_view text) -> TokenId {
    const auto id = vocabulary.find(text);
    if (id && mergeable[*id]) return *id;
    if (text.size() == static_cast<size_t>(utf8_length(text[0]))) {
      return bpe.pseudo_symbol(utf8_first(text));
    }
    return kNoSymbol;
  };
  uint32_t priority = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && scores[order[i]] != scores[order[i - 1]]) ++priority;
    const std::string_view text = vocabulary.text(order[i]);
    for (size_t cut = text.empty() ? 0 : utf8_length(text[0]); cut < text.size();
         cut += utf8_length(text[cut])) {
      const TokenId left = part(text.substr(0, cut));
      if (left == kNoSymbol) continue;
      const TokenId right = part(text.substr(cut));
      if (right == kNoSymbol) continue;
      merges.push_back({left, right, order[i], priority});
      bpe.allow_junction(utf8_last(text.substr(0, cut)), utf8_first(text.substr(cut)));
    }
  }
  bpe.set_merges(merges);
  return bpe;
}

void Bpe::index_characters(const Vocabulary& vocabulary, const std::vector<bool>* usable) {
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.text(id);
    if (text.empty() || text.size() > 4 || (usable && !(*usable)[id])) continue;
    const Utf8Step step = utf8_step(text);
    if (step.status != Utf8Status::kValid || static_cast<size_t>(step.length) != text.size()) {
      continue;
    }
    if (symbol_of(step.code_point) == kNoSymbol) set_symbol(step.code_point, id);
  }
}

void Bpe::set_symbol(char32_t code_point, TokenId symbol) {
  if (code_point < low_symbols_.size()) {
    low_symbols_[code_point] = symbol;
  } else {
    high_symbols_[code_point] = symbol;
  }
}

TokenId Bpe::symbol_of(char32_t code_point) const {
  if (code_point < low_symbols_.size()) return low_symbols_[code_point];
  const auto found = high_symbols_.find(code_point);
  return found == high_symbols_.end() ? kNoSymbol : found->second;
}

TokenId Bpe::pseudo_symbol(char32_t code_point) {
  TokenId symbol = symbol_of(code_point);
  if (symbol == kNoSymbol) {
    symbol = num_tokens_ + static_cast<TokenId>(pseudo_characters_.size());
    pseudo_characters_.push_back(code_point);
    set_symbol(code_point, symbol);
  }
  return symbol;
}

void Bpe::set_merges(const std::vector<Merge>& merges) {
  const size_t size = std::bit_ceil(std::max<size_t>(merges.size(), 16) * 2);
  slots_.assign(size, {});
  slot_shift_ = 64 - std::countr_zero(size);
  for (const Merge& merge : merges) {
    const uint64_t key = pair_key(merge.left, merge.right);
    size_t at = (key * kGolden) >> slot_shift_;
    while (slots_[at].pair != kNoPair && slots_[at].pair != key) at = (at + 1) & (size - 1);
    slots_[at] = {key, merge.result, merge.priority};
  }
}

const Bpe::Slot* Bpe::find(TokenId left, TokenId right) const {
  const uint64_t key = pair_key(left, right);
  size_t at = (key * kGolden) >> slot_shift_;
  while (slots_[at].pair != key) {
    if (slots_[at].pair == kNoPair) return nullptr;
    at = (at + 1) & (slots_.size() - 1);
  }
  return &slots_[at];
}

void Bpe::allow_junction(char32_t left, char32_t right) {
  const uint64_t bit = junction_hash(left, right);
  junctions_[bit / 64] |= uint64_t{1} << (bit % 64);
}

bool Bpe::may_join(char32_t left, char32_t right) const {
  const uint64_t bit = junction_hash(left, right);
  return junctions_[bit / 64] >> (bit % 64) & 1;
}

bool Bpe::bytes_of(std::string_view character, std::vector<TokenId>& symbols) const {
  if (!options_.byte_fallback) return false;
  for (const char c : character) {
    if (byte_tokens_[static_cast<unsigned char>(c)] == kNoSymbol) return false;
  }
  for (const char c : character) symbols.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
  return true;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  if (piece.empty()) return;
  if (options_.ignore_merges || (options_.whole_newline_runs && piece[0] == '\n')) {
    if (const auto found = whole_.find(std::string(piece)); found != whole_.end()) {
      ids.push_back(found->second);
      return;
    }
  }

  scratch.symbols.clear();
  bool pending_unk = false;  // an unk not yet written, so that its neighbours can fuse with it
  bool last_is_fallback = false;
  char32_t last = 0;
  const auto cut_unless = [&](bool joins) {
    if (joins || scratch.symbols.empty()) return;
    merge_and_emit(scratch, ids);
    scratch.symbols.clear();
  };
  const auto flush_unk = [&] {
    if (!pending_unk) return;
    cut_unless(fallback_merges_);
    scratch.symbols.push_back(*options_.unk);
    pending_unk = false;
    last_is_fallback = true;
  };

  for (size_t at = 0; at < piece.size();) {
    const Utf8Step step = utf8_step(piece.substr(at));
    const std::string_view character = piece.substr(at, step.length);
    at += step.length;
    const TokenId symbol = symbol_of(step.code_point);
    if (symbol != kNoSymbol) {
      flush_unk();
      cut_unless(last_is_fallback ? fallback_merges_ : may_join(last, step.code_point));
      scratch.symbols.push_back(symbol);
      last_is_fallback = false;
      last = step.code_point;
      continue;
    }
    if (bytes_of(character, scratch.symbols)) {
      last_is_fallback = true;
      continue;
    }
    if (options_.unk) {
      if (!options_.fuse_unk) flush_unk();
      pending_unk = true;
    }
  }
  flush_unk();
  merge_and_emit(scratch, ids);
}

void Bpe::merge_and_emit(Scratch& scratch, std::vector<TokenId>& ids) const {
  if (scratch.symbols.size() == 1) {
    emit(scratch.symbols[0], ids);
  } else if (scratch.symbols.size() <= kShortRun) {
    merge_short(scratch, ids);
  } else {
    merge_long(scratch, ids);
  }
}

void Bpe::merge_short(Scratch& scratch, std::vector<TokenId>& ids) const {
  auto& symbols = scratch.symbols;
  auto& priorities = scratch.priorities;  // of the pair (i, i + 1)
  auto& results = scratch.results;
  if (symbols.empty()) return;
  size_t n = symbols.size();
  priorities.resize(n);
  results.resize(n);
  const auto look_up = [&](size_t i) {
    const Slot* slot = find(symbols[i], symbols[i + 1]);
    priorities[i] = slot ? slot->priority : kNoMerge;
    results[i] = slot ? slot->result : kNoSymbol;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (priorities[i] < priorities[best]) best = i;
    }
    if (results[best] == kNoSymbol) break;
    symbols[best] = results[best];
    std::copy(symbols.begin() + best + 2, symbols.begin() + n, symbols.begin() + best + 1);
    std::copy(priorities.begin() + best + 1, priorities.begin() + n, priorities.begin() + best);
    std::copy(results.begin() + best + 1, results.begin() + n, results.begin() + best);
    --n;
    if (best > 0) look_up(best - 1);
    if (best + 1 < n) look_up(best);
  }
  for (size_t i = 0; i < n; ++i) emit(symbols[i], ids);
}

void Bpe::merge_long(Scratch& scratch, std::vector<TokenId>& ids) const {
  auto& nodes = scratch.nodes;
  auto& heap = scratch.heap;
  const auto n = static_cast<int32_t>(scratch.symbols.size());
  nodes.resize(n);
  heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    nodes[i] = {scratch.symbols[i], i - 1, i + 1 < n ? i + 1 : -1};
  }
  const auto candidate = [&](int32_t position) {
    const int32_t next = nodes[position].next;
    if (next < 0) return false;
    const TokenId left = nodes[position].symbol, right = nodes[next].symbol;
    const Slot* slot = find(left, right);
    if (!slot) return false;
    heap.push_back({slot->priority, position, left, right, slot->result});
    return true;
  };
  for (int32_t i = 0; i + 1 < n; ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end(), LaterFirst());

  while (!heap.empty()) {
    const Scratch::Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), LaterFirst());
    heap.pop_back();
    auto& node = nodes[best.position];
    // Stale when either side has been merged meanwhile.
    if (node.symbol != best.left || node.next < 0 || nodes[node.next].symbol != best.right) {
      continue;
    }
    auto& eaten = nodes[node.next];
    node.symbol = best.result;
    node.next = eaten.next;
    if (eaten.next >= 0) nodes[eaten.next].previous = best.position;
    eaten.symbol = kNoSymbol;
    if (candidate(best.position)) std::push_heap(heap.begin(), heap.end(), LaterFirst());
    if (node.previous >= 0 && candidate(node.previous)) {
      std::push_heap(heap.begin(), heap.end(), LaterFirst());
    }
  }
  for (int32_t at = 0; at >= 0; at = nodes[at].next) emit(nodes[at].symbol, ids);
}

void Bpe::emit(TokenId symbol, std::vector<TokenId>& ids) const {
  if (symbol < num_tokens_) {
    ids.push_back(symbol);
    return;
  }
  std::string character;
  utf8_append(character, pseudo_characters_[symbol - num_tokens_]);
  if (!bytes_of(character, ids) && options_.unk) ids.push_back(*options_.unk);
}

}  // namespace braid
