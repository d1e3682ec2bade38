#include "apps/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "checkpoint/json_error.h"

namespace braid {
namespace {

constexpr int kMaxDepth = 64;

// Follows the parser and remembers the keys of the objects that are open.
class KeyWatcher {
 public:
  using Event = nlohmann::json::parse_event_t;

  bool operator()(int depth, Event event, const nlohmann::json& parsed) {
    if (depth > kMaxDepth) throw Error("nested deeper than {} levels", kMaxDepth);
    if (event == Event::object_start) {
      open_.emplace_back();
    } else if (event == Event::object_end) {
      open_.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(key).second) throw Error("\"{}\" is given twice", printable(key));
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> open_;
};

}  // namespace

nlohmann::json parse_strict_json(std::string_view text) {
  KeyWatcher watcher;
  try {
    return nlohmann::json::parse(text, std::ref(watcher));
  } catch (const nlohmann::json::exception& error) {
    throw Error("not JSON: {}", json_reason(error));
  }
}

std::string dump_json(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string dump_json(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace braid
