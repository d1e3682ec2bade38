#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace braid {

// A new folder that no other run has; the caller removes it.
inline std::filesystem::path make_fresh_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "braid_test_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  return pattern;
}

}  // namespace braid
