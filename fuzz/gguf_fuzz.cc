#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/generation_defaults.h"
#include "checkpoint/gguf.h"
#include "weights_probe.h"

namespace {

using braid::GgufMetadata;

template <typename Action>
void attempt(const Action& action) {
  try {
    action();
  } catch (const braid::Error&) {
  }
}

// Asks for each key as every type.
void probe_metadata(const GgufMetadata& metadata) {
  for (const auto& [name, value] : metadata.values) {
    const std::string_view key = name;
    attempt([&] { metadata.integer(key); });
    attempt([&] { metadata.number(key); });
    attempt([&] { metadata.string(key); });
    attempt([&] { metadata.find_boolean(key); });
    attempt([&] { metadata.find_strings(key); });
    attempt([&] { metadata.find_numbers(key); });
    attempt([&] { metadata.find_integers(key); });
    attempt([&] { metadata.find_integers_per_layer(key, 3); });
    attempt([&] { metadata.find_booleans_per_layer(key, 3); });
  }
  attempt([&] { braid::read_generation_defaults(metadata); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  attempt([&] {
    const braid::GgufFile file =
        braid::GgufFile::parse(std::as_bytes(std::span(data, size)), nullptr, "input");
    probe_metadata(file.metadata);
    braid::fuzz::probe_weights(file.tensors);
  });
  return 0;
}
