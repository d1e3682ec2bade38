// tokenize_jsonl [tokenize] FOLDER --jsonl FILE: what `braid tokenize` prints for the same
// arguments, from tokenizer.json and tokenizer_config.json alone. Reads {"text": ...} lines, prints
// {"ids": [...], "text": decoded} lines. Used by tools/goldens/check_tokenizer.py.
#include <chrono>
#include <cstdio>
#include <iostream>

#include "tokenizer_data.h"

int main(int argc, char** argv) try {
  std::vector<std::string> args(argv + 1, argv + argc);
  if (!args.empty() && args[0] == "tokenize") args.erase(args.begin());
  if (args.size() != 3 || args[1] != "--jsonl") {
    std::fprintf(stderr, "usage: tokenize_jsonl [tokenize] FOLDER --jsonl FILE\n");
    return 2;
  }
  const std::string path = args[0] + "/tokenizer.json";
  const std::string json = braid::read_text_file(path);
  const std::string config = braid::read_text_file(args[0] + "/tokenizer_config.json");
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = braid::make_tokenizer_from_json(json, config, path);
  const auto loaded = std::chrono::steady_clock::now();
  size_t bytes = 0, num_tokens = 0;
  std::chrono::duration<double> encoding{}, decoding{};
  std::ifstream lines(args[2]);
  for (std::string line; std::getline(lines, line);) {
    const std::string text = nlohmann::json::parse(line)["text"];
    const auto before = std::chrono::steady_clock::now();
    const auto ids = tokenizer->encode(text);
    const auto between = std::chrono::steady_clock::now();
    const std::string decoded = tokenizer->decode(ids);
    decoding += std::chrono::steady_clock::now() - between;
    encoding += between - before;
    bytes += text.size();
    num_tokens += ids.size();
    std::cout << nlohmann::json{{"ids", ids}, {"text", decoded}}.dump() << '\n';
  }
  std::fprintf(stderr,
               "loaded in %.0f ms; %zu bytes, %zu tokens: encoded %.1f MB/s, decoded %.1f MB/s\n",
               std::chrono::duration<double>(loaded - start).count() * 1e3, bytes, num_tokens,
               bytes / 1e6 / encoding.count(), bytes / 1e6 / decoding.count());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
