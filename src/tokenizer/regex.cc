#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
constexpr uint32_t kMatchSteps = 10'000'000;  // PCRE2's default, for short texts
constexpr uint32_t kHeapKib = 256 * 1024;

// White_Space. PCRE2's own \s also takes U+180E, which Oniguruma's does not.
constexpr std::string_view kSpaceSet =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr std::string_view kHexSet = "0-9a-fA-F";

// Rewrites the escapes whose meaning differs between Oniguruma and PCRE2.
std::string to_pcre2(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      const bool negated = escaped == 'S' || escaped == 'H';
      const bool space = escaped == 's' || escaped == 'S';
      if ((space || escaped == 'h' || escaped == 'H') && !(in_class && negated)) {
        const std::string_view set = space ? kSpaceSet : kHexSet;
        if (in_class) {
          out += set;
        } else {
          out += negated ? "[^" : "[";
          out += set;
          out += ']';
        }
      } else {
        out += c;
        out += escaped;
      }
      continue;
    }
    if (in_class) {
      if (c == '[' && pattern.substr(i, 2) != "[:") {
        throw Error("a character class inside another one is not supported");
      }
      if (pattern.substr(i, 2) == "&&") {
        throw Error("an intersection of character classes (&&) is not supported");
      }
      if (c == '[') {  // [:name:]
        const size_t close = pattern.find(":]", i + 2);
        if (close != std::string_view::npos) {
          out += pattern.substr(i, close + 2 - i);
          i = close + 1;
          continue;
        }
      }
      if (c == ']') in_class = false;
    } else if (c == '[') {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];  // literal here
      continue;
    }
    out += c;
  }
  return out;
}

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>> code;
  bool jit = false;
};

Regex::Regex() = default;
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Regex(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    throw Error("a pattern of {} bytes is too long", pattern.size());
  }
  const std::string translated = to_pcre2(pattern);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
                    &offset, context.get()));
  if (!compiled->code) throw Error("{}", message_of(code));
  compiled->jit = pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE) == 0;
  compiled_ = std::move(compiled);
}

Regex Regex::literal(std::string_view text) {
  Regex regex;
  regex.literal_ = text;
  return regex;
}

std::vector<TextRange> Regex::find_all(std::string_view text) const {
  std::vector<TextRange> matches;
  if (!compiled_) {
    if (literal_.empty()) return matches;
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      matches.push_back({at, at + literal_.size()});
    }
    return matches;
  }

  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  if (!data || !context) throw std::bad_alloc();
  // A run of n blanks legitimately costs a few steps a blank.
  const uint64_t steps = kMatchSteps + uint64_t{16} * text.size();
  pcre2_set_match_limit(context.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), kHeapKib);

  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  // Capture groups beyond the whole match are of no interest: "too many groups" (0) is fine.
  const auto match_at = [&](size_t start) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (compiled_->jit) {
      rc = pcre2_match(compiled_->code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK,
                       data.get(), context.get());
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(compiled_->code.get(), subject, text.size(), start,
                       PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), context.get());
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
      throw Error("the tokenizer's pattern fails on this text: {}", message_of(rc));
    }
    return rc >= 0;
  };

  size_t start = 0;
  size_t last_end = SIZE_MAX;
  while (start <= text.size() && match_at(start)) {
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data.get());
    const TextRange match{found[0], found[1]};
    if (match.begin > match.end || match.begin < start) {
      throw Error("the tokenizer's pattern moves a match's start (\\K), which is not supported");
    }
    if (match.begin == match.end) {
      start = match.end < text.size() ? match.end + utf8_length(text[match.end]) : match.end + 1;
      if (match.end == last_end) continue;  // an empty match right behind another does not count
    } else {
      start = match.end;
    }
    last_end = match.end;
    matches.push_back(match);
  }
  return matches;
}

}  // namespace braid
