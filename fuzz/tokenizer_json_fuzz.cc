// Any bytes as tokenizer.json: a working tokenizer or one Error. The input may carry a
// tokenizer_config.json behind a zero byte.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void use(const braid::Tokenizer& tokenizer, std::string_view text) {
  for (const auto special : {braid::SpecialTokens::kParse, braid::SpecialTokens::kPlainText}) {
    const auto ids = tokenizer.encode(text, {.add_bos = true, .special = special});
    for (const braid::TokenId id : ids) require(id >= 0 && id < tokenizer.vocab_size());
    for (const bool skip_special : {false, true}) {
      braid::StreamDecoder decoder(tokenizer, skip_special);
      std::string joined;
      for (const braid::TokenId id : ids) {
        const std::string piece = decoder.push(id);
        require(braid::utf8_is_valid(piece));
        joined += piece;
      }
      joined += decoder.flush();
      require(joined == tokenizer.decode(ids, skip_special));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view json(reinterpret_cast<const char*>(data), size);
  std::string_view config;
  if (const size_t zero = json.find('\0'); zero != std::string_view::npos) {
    config = json.substr(zero + 1);
    json = json.substr(0, zero);
  }
  try {
    const auto tokenizer = braid::make_tokenizer_from_json(json, config, "tokenizer.json");
    use(*tokenizer,
        "Hello  world, caf\xC3\xA9 123\n\n<bos> ab \xE2\x96\x81 \xF0\x9F\x98\x80 aaaaaaaa");
    use(*tokenizer, json.substr(0, 100));
    const int64_t last = tokenizer->vocab_size();
    for (const int64_t id : {int64_t{-1}, int64_t{0}, last - 1, last}) {
      const auto token = static_cast<braid::TokenId>(id);
      tokenizer->token_bytes(token, true);
      tokenizer->token_text(token);
    }
  } catch (const braid::Error&) {
  }
  return 0;
}
