#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/generation_defaults.h"

namespace {

using braid::ConfigReader;

template <typename Action>
void attempt(const Action& action) {
  try {
    action();
  } catch (const braid::Error&) {
  }
}

// Asks for each field as every type, and enters objects.
void probe(const ConfigReader& reader) {
  for (const std::string& key : reader.keys()) {
    attempt([&] { reader.integer(key); });
    attempt([&] { reader.number(key); });
    attempt([&] { reader.string(key); });
    attempt([&] { reader.find_boolean(key); });
    attempt([&] { reader.find_strings(key); });
    attempt([&] { reader.find_integers(key); });
    attempt([&] {
      if (const auto object = reader.find_object(key)) probe(*object);
    });
    attempt([&] {
      const auto objects = reader.find_objects(key);
      for (const ConfigReader& object : objects.value_or(std::vector<ConfigReader>{})) {
        probe(object);
      }
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  attempt([&] {
    const ConfigReader reader(std::string_view(reinterpret_cast<const char*>(data), size), "input");
    probe(reader);
    braid::read_generation_defaults(reader, reader);
  });
  return 0;
}
