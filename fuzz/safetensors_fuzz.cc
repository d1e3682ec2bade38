#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/safetensors.h"
#include "weights_probe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    braid::fuzz::probe_weights(
        braid::parse_safetensors(std::as_bytes(std::span(data, size)), nullptr, "input"));
  } catch (const braid::Error&) {
  }
  return 0;
}
