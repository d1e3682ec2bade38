#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// No code point below U+0300 changes under NFC, alone or beside another such.
bool surely_nfc(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0xCC) return false;  // lead byte of U+0300 and above
  }
  return true;
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

}  // namespace

bool is_whitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Other_Alphabetic symbols (circled and squared letters) and Join_Control.
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C ||
             c == 0x200D;
  }
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

std::string normalize_unicode(std::string_view text, NormalForm form) {
  if (form == NormalForm::kNfc ? surely_nfc(text) : is_ascii(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &mapped, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(mapped, std::free);
  if (length < 0) throw Error("cannot normalise text: {}", utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
}

std::string lowercase(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    text.remove_prefix(step.length);
    if (step.code_point == 0x130) {  // the only code point whose lower case has two
      lower += "i\xCC\x87";
    } else {
      utf8_append(lower, static_cast<char32_t>(
                             utf8proc_tolower(static_cast<utf8proc_int32_t>(step.code_point))));
    }
  }
  return lower;
}

std::string remove_marks(std::string_view text) {
  std::string kept;
  kept.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const utf8proc_category_t kind = category(step.code_point);
    if (kind < UTF8PROC_CATEGORY_MN || kind > UTF8PROC_CATEGORY_ME) {
      kept += text.substr(0, step.length);
    }
    text.remove_prefix(step.length);
  }
  return kept;
}

}  // namespace braid
