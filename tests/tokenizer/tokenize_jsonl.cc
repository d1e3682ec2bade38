// tokenize_jsonl [tokenize] FOLDER --jsonl FILE [--no-bos]: what `braid tokenize` prints for the
// same arguments, from tokenizer.json and tokenizer_config.json alone. Reads {"text": ...} lines,
// prints
// {"ids": [...], "text": decoded} lines. Used by tools/goldens/check_tokenizer.py.
#include <cstdio>
#include <ctime>
#include <iostream>

#include "tokenizer_data.h"

int main(int argc, char** argv) try {
  std::vector<std::string> args(argv + 1, argv + argc);
  if (!args.empty() && args[0] == "tokenize") args.erase(args.begin());
  if (!args.empty() && args.back() == "--no-bos") args.pop_back();  // it never adds one
  if (args.size() != 3 || args[1] != "--jsonl") {
    std::fprintf(stderr, "usage: tokenize_jsonl [tokenize] FOLDER --jsonl FILE\n");
    return 2;
  }
  const std::string path = args[0] + "/tokenizer.json";
  const std::string json = braid::read_text_file(path);
  const std::string config = braid::read_text_file(args[0] + "/tokenizer_config.json");
  // Processor time: the figures do not depend on what else runs.
  const auto milliseconds = [](std::clock_t ticks) { return 1e3 * ticks / CLOCKS_PER_SEC; };
  const std::clock_t start = std::clock();
  const auto tokenizer = braid::make_tokenizer_from_json(json, config, path);
  const std::clock_t loading = std::clock() - start;
  size_t bytes = 0, num_tokens = 0;
  std::clock_t encoding = 0, decoding = 0;
  std::ifstream lines(args[2]);
  for (std::string line; std::getline(lines, line);) {
    const std::string text = nlohmann::json::parse(line)["text"];
    const std::clock_t before = std::clock();
    const auto ids = tokenizer->encode(text);
    const std::clock_t between = std::clock();
    const std::string decoded = tokenizer->decode(ids);
    decoding += std::clock() - between;
    encoding += between - before;
    bytes += text.size();
    num_tokens += ids.size();
    std::cout << nlohmann::json{{"ids", ids}, {"text", decoded}}.dump() << '\n';
  }
  std::fprintf(
      stderr, "loaded in %.0f ms; %zu bytes, %zu tokens: encoded in %.0f ms, decoded in %.0f ms\n",
      milliseconds(loading), bytes, num_tokens, milliseconds(encoding), milliseconds(decoding));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
