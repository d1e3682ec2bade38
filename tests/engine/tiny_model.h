#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "support/temp_folder.h"

namespace braid::testing {

inline std::filesystem::path model_path(const std::string& name) {
  return std::filesystem::path(BRAID_TEST_DATA) / "models" / name;
}

// Float32 throughout. One thread: these models are too small to share among several.
inline EngineOptions exact_options() {
  return {.threads = {.num_threads = 1},
          .precision = ActivationPrecision::kF32,
          .kv_dtype = DType::kF32,
          .max_context = 256};
}

struct Reply {
  std::vector<int32_t> tokens;
  std::string text;
  std::optional<FinishReason> finish;
  std::string error;
  bool operator==(const Reply&) const = default;
};

inline void take(const TokenEvent& event, Reply& reply) {
  if (event.token) reply.tokens.push_back(event.token->token);
  reply.text += event.text;
  if (event.finish) reply.finish = event.finish;
  if (!event.error.empty()) reply.error = event.error;
}

// Runs one request on an engine with nothing else to do.
inline Reply run_alone(Engine& engine, GenerationRequest request) {
  Reply reply;
  const RequestId id = engine.submit(std::move(request));
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) {
      if (event.request == id) take(event, reply);
    }
  }
  return reply;
}

inline GenerationRequest greedy_request(std::vector<int32_t> prompt, int64_t max_new_tokens) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0},
          .max_new_tokens = max_new_tokens};
}

}  // namespace braid::testing
