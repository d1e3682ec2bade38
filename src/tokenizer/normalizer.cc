#include "tokenizer/normalizer.h"

#include <utility>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

constexpr size_t kMaxGrowth = 256;  // no text form is longer than its source by more

template <typename Function>
class FunctionNormalizer final : public Normalizer {
 public:
  explicit FunctionNormalizer(Function function) : function_(std::move(function)) {}
  std::string apply(std::string_view text) const override { return function_(text); }

 private:
  Function function_;
};

template <typename Function>
NormalizerPtr make_normalizer(Function function) {
  return std::make_unique<FunctionNormalizer<Function>>(std::move(function));
}

}  // namespace

std::string replace_all(std::string_view text, const Regex& pattern, std::string_view content) {
  std::string result;
  result.reserve(text.size());
  size_t done = 0;
  for (const TextRange& match : pattern.find_all(text)) {
    result += text.substr(done, match.begin - done);
    result += content;
    done = match.end;
  }
  result += text.substr(done);
  return result;
}

NormalizerPtr make_replace_normalizer(Regex pattern, std::string content) {
  return make_normalizer(
      [pattern = std::move(pattern), content = std::move(content)](std::string_view text) {
        return replace_all(text, pattern, content);
      });
}

NormalizerPtr make_prepend_normalizer(std::string prefix) {
  return make_normalizer([prefix = std::move(prefix)](std::string_view text) {
    return text.empty() ? std::string() : prefix + std::string(text);
  });
}

NormalizerPtr make_unicode_normalizer(NormalForm form) {
  return make_normalizer([form](std::string_view text) { return normalize_unicode(text, form); });
}

NormalizerPtr make_lowercase_normalizer() {
  return make_normalizer([](std::string_view text) { return lowercase(text); });
}

NormalizerPtr make_strip_accents_normalizer() {
  return make_normalizer([](std::string_view text) { return remove_marks(text); });
}

NormalizerPtr make_strip_normalizer(bool left, bool right) {
  return make_normalizer([left, right](std::string_view text) {
    size_t first = std::string_view::npos, last_end = 0;  // what is not white space
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = utf8_step(text.substr(at));
      if (!is_whitespace(step.code_point)) {
        if (first == std::string_view::npos) first = at;
        last_end = at + step.length;
      }
      at += step.length;
    }
    if (first == std::string_view::npos) return left || right ? std::string() : std::string(text);
    const size_t begin = left ? first : 0;
    return std::string(text.substr(begin, (right ? last_end : text.size()) - begin));
  });
}

NormalizerPtr make_byte_level_normalizer() {
  return make_normalizer([](std::string_view text) {
    std::string mapped;
    append_byte_level(mapped, text);
    return mapped;
  });
}

NormalizerPtr make_normalizer_sequence(std::vector<NormalizerPtr> steps) {
  return make_normalizer([steps = std::move(steps)](std::string_view text) {
    std::string result(text);
    for (const NormalizerPtr& step : steps) {
      result = step->apply(result);
      if (result.size() > kMaxGrowth * (text.size() + kMaxGrowth)) {
        throw Error("the tokenizer's normalizer makes {} bytes from {}", result.size(),
                    text.size());
      }
    }
    return result;
  });
}

}  // namespace braid
