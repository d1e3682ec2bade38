#pragma once

#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/tokenizer.h"

namespace braid {

inline std::string tokenizer_data_path(const std::string& name) {
  return std::string(BRAID_TEST_DATA "/tokenizer/") + name;
}

inline std::string read_text_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json read_tokenizer_json(const std::string& name) {
  return nlohmann::json::parse(read_text_file(tokenizer_data_path(name)));
}

// A tokenizer of tests/data/tokenizer by the name of its folder.
inline std::unique_ptr<Tokenizer> load_test_tokenizer(const std::string& form) {
  const std::string path = tokenizer_data_path(form + "/tokenizer.json");
  return make_tokenizer_from_json(
      read_text_file(path), read_text_file(tokenizer_data_path(form + "/tokenizer_config.json")),
      path);
}

// The same vocabulary as GGUF metadata would hold it; model and pre are left to the caller.
inline GgufVocabulary gguf_from_json(const nlohmann::json& file) {
  GgufVocabulary vocabulary;
  const auto put = [&](const std::string& text, size_t id, int32_t type) {
    if (vocabulary.tokens.size() <= id) {
      vocabulary.tokens.resize(id + 1);
      vocabulary.types.resize(id + 1, 5);
    }
    vocabulary.tokens[id] = text;
    vocabulary.types[id] = type;
  };
  for (const auto& [text, id] : file["model"]["vocab"].items()) {
    const bool is_byte = text.size() == 6 && text.starts_with("<0x");
    put(text, id.get<size_t>(), is_byte ? 6 : 1);
  }
  for (const auto& token : file["added_tokens"]) {
    put(token["content"], token["id"].get<size_t>(), token["special"].get<bool>() ? 3 : 4);
  }
  for (const auto& merge : file["model"]["merges"]) {
    vocabulary.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return vocabulary;
}

}  // namespace braid
