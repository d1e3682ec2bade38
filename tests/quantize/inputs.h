#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "quantize/calibration_pass.h"
#include "support/fresh_seed.h"

// What tests of quantising start from, and what they compare.
namespace braid::testing {

inline std::filesystem::path tiny(const std::string& name) {
  return std::filesystem::path(BRAID_TEST_DATA) / "models" / name;
}

inline std::filesystem::path demo(const std::string& name) {
  return std::filesystem::path(BRAID_TEST_DATA).parent_path().parent_path() / "demo_models" / name;
}

inline std::vector<int32_t> random_ids(int64_t vocab, int64_t count, FreshRandom& random) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(random.integer(0, vocab - 1)));
  }
  return ids;
}

inline CalibrationTokens random_tokens(int64_t vocab, int64_t sequences, int64_t length,
                                       FreshRandom& random) {
  CalibrationTokens tokens{.length = length, .sequences = {}};
  for (int64_t i = 0; i < sequences; ++i) {
    tokens.sequences.push_back(random_ids(vocab, length, random));
  }
  return tokens;
}

// By name, without reports, which tell times.
inline std::map<std::string, std::string> bytes_of_folder(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("report.")) files[name] = read_file(entry.path());
  }
  return files;
}

}  // namespace braid::testing
