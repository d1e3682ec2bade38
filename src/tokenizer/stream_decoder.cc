#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_parts.h"

namespace braid {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : parts_(tokenizer.parts_.get()),
      skip_special_(skip_special),
      strip_left_(parts_->decoder.leading_strip().count) {}

std::string StreamDecoder::push(TokenId id) {
  if (!parts_->vocabulary.contains(id)) return {};
  if (skip_special_ && parts_->has_flag(id, TokenizerParts::kSpecial)) return {};
  const std::string bytes = parts_->decoder.bytes(parts_->vocabulary.text(id), first_,
                                                  parts_->has_flag(id, TokenizerParts::kAdded));
  first_ = false;
  return strip_leading(repairer_.push(bytes));
}

std::string StreamDecoder::flush() {
  std::string rest = strip_leading(repairer_.flush());
  first_ = true;
  strip_left_ = parts_->decoder.leading_strip().count;
  return rest;
}

std::string StreamDecoder::strip_leading(std::string text) {
  size_t dropped = 0;
  while (strip_left_ > 0 && dropped < text.size()) {
    const Utf8Step step = utf8_step(std::string_view(text).substr(dropped));
    if (step.code_point != parts_->decoder.leading_strip().content) {
      strip_left_ = 0;
      break;
    }
    dropped += step.length;
    --strip_left_;
  }
  return dropped == 0 ? std::move(text) : text.substr(dropped);
}

}  // namespace braid
