#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

constexpr size_t kMaxGrowth = 256;  // no rewritten text is longer than its source by more
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Part {
  TextRange range;
  bool matched;
};

void append_split(std::vector<Part>& parts, SplitBehavior behavior, std::vector<TextRange>& out) {
  std::vector<TextRange> split;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) split.push_back(part.range);
      break;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.matched) split.push_back(part.range);
      }
      break;
    case SplitBehavior::kContiguous:
      for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0 && parts[i].matched == parts[i - 1].matched) {
          split.back().end = parts[i].range.end;
        } else {
          split.push_back(parts[i].range);
        }
      }
      break;
    case SplitBehavior::kMergedWithPrevious: {
      bool previous = false;
      for (const Part& part : parts) {
        if (part.matched && !previous && !split.empty()) {
          split.back().end = part.range.end;
        } else {
          split.push_back(part.range);
        }
        previous = part.matched;
      }
      break;
    }
    case SplitBehavior::kMergedWithNext: {
      bool next = false;
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->matched && !next && !split.empty()) {
          split.back().begin = part->range.begin;
        } else {
          split.push_back(part->range);
        }
        next = part->matched;
      }
      std::reverse(split.begin(), split.end());
      break;
    }
  }
  for (const TextRange& range : split) {
    if (range.begin < range.end) out.push_back(range);
  }
}

// Splits by a function that lists the matches in a text.
template <typename FindAll>
class Splitter final : public PreTokenizer {
 public:
  Splitter(FindAll find_all, SplitBehavior behavior, bool invert)
      : find_all_(std::move(find_all)), behavior_(behavior), invert_(invert) {}

  void apply(TextPieces& pieces) const override {
    std::vector<TextRange> out;
    std::vector<Part> parts;
    for (const TextRange& range : pieces.ranges) {
      const auto text = std::string_view(pieces.text).substr(range.begin, range.end - range.begin);
      parts.clear();
      size_t done = 0;
      const auto add = [&](size_t begin, size_t end, bool matched) {
        parts.push_back({{range.begin + begin, range.begin + end}, matched != invert_});
      };
      for (const TextRange& match : find_all_(text)) {
        if (done < match.begin) add(done, match.begin, false);
        add(match.begin, match.end, true);
        done = match.end;
      }
      if (done < text.size()) add(done, text.size(), false);
      append_split(parts, behavior_, out);
    }
    pieces.ranges = std::move(out);
  }

 private:
  FindAll find_all_;
  SplitBehavior behavior_;
  bool invert_;
};

template <typename FindAll>
PreTokenizerPtr make_splitter(FindAll find_all, SplitBehavior behavior, bool invert = false) {
  return std::make_unique<Splitter<FindAll>>(std::move(find_all), behavior, invert);
}

// One match a code point of the class.
PreTokenizerPtr make_class_splitter(bool (*in_class)(char32_t), SplitBehavior behavior) {
  return make_splitter(
      [in_class](std::string_view text) {
        std::vector<TextRange> matches;
        for (size_t at = 0; at < text.size();) {
          const Utf8Step step = utf8_step(text.substr(at));
          if (in_class(step.code_point)) matches.push_back({at, at + step.length});
          at += step.length;
        }
        return matches;
      },
      behavior);
}

// Rewrites every piece into a new text.
template <typename Rewrite>
void rewrite_pieces(TextPieces& pieces, Rewrite rewrite) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 2);
  for (TextRange& range : pieces.ranges) {
    const size_t begin = text.size();
    const std::string_view piece =
        std::string_view(pieces.text).substr(range.begin, range.end - range.begin);
    rewrite(piece, pieces.starts_input && range.begin == 0, text);
    range = {begin, text.size()};
  }
  pieces.text = std::move(text);
}

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, PreTokenizerPtr split)
      : add_prefix_space_(add_prefix_space), split_(std::move(split)) {}

  void apply(TextPieces& pieces) const override {
    if (add_prefix_space_) {
      rewrite_pieces(pieces, [](std::string_view piece, bool, std::string& text) {
        if (!piece.starts_with(' ')) text += ' ';
        text += piece;
      });
    }
    if (split_) split_->apply(pieces);
    rewrite_pieces(pieces, [](std::string_view piece, bool, std::string& text) {
      append_byte_level(text, piece);
    });
  }

 private:
  bool add_prefix_space_;
  PreTokenizerPtr split_;
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme) {
    if (split) {
      split_ = make_split(Regex::literal(replacement_), SplitBehavior::kMergedWithNext, false);
    }
  }

  void apply(TextPieces& pieces) const override {
    rewrite_pieces(pieces, [&](std::string_view piece, bool first, std::string& text) {
      const bool prepend =
          scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && first);
      if (prepend && !piece.starts_with(' ') && !piece.starts_with(replacement_)) {
        text += replacement_;
      }
      for (const char c : piece) {
        if (c == ' ') {
          text += replacement_;
        } else {
          text += c;
        }
      }
    });
    if (split_) split_->apply(pieces);
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  PreTokenizerPtr split_;
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<PreTokenizerPtr> steps) : steps_(std::move(steps)) {}
  void apply(TextPieces& pieces) const override {
    const size_t limit = kMaxGrowth * (pieces.text.size() + kMaxGrowth);
    for (const PreTokenizerPtr& step : steps_) {
      step->apply(pieces);
      if (pieces.text.size() > limit) {
        throw Error("the tokenizer's pre_tokenizer makes {} bytes of a text", pieces.text.size());
      }
    }
  }

 private:
  std::vector<PreTokenizerPtr> steps_;
};

}  // namespace

PreTokenizerPtr make_split(Regex pattern, SplitBehavior behavior, bool invert) {
  return make_splitter(
      [pattern = std::move(pattern)](std::string_view text) { return pattern.find_all(text); },
      behavior, invert);
}

PreTokenizerPtr make_whitespace_split() {
  return make_class_splitter(is_whitespace, SplitBehavior::kRemoved);
}

PreTokenizerPtr make_digits(bool individual) {
  return make_class_splitter(is_numeric,
                             individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

PreTokenizerPtr make_punctuation(SplitBehavior behavior) {
  return make_class_splitter(is_punctuation, behavior);
}

PreTokenizerPtr make_byte_level(bool add_prefix_space, bool use_regex) {
  PreTokenizerPtr split;
  if (use_regex) split = make_split(Regex(kGpt2Pattern), SplitBehavior::kIsolated, false);
  return std::make_unique<ByteLevel>(add_prefix_space, std::move(split));
}

PreTokenizerPtr make_metaspace(std::string replacement, PrependScheme scheme, bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme, split);
}

PreTokenizerPtr make_pre_tokenizer_sequence(std::vector<PreTokenizerPtr> steps) {
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace braid
