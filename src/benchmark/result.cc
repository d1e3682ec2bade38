#include "benchmark/result.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kKind = "braid bench";
constexpr int kVersion = 1;

Json operations_json(const std::array<double, kNumArithmetics>& values) {
  Json json = Json::object();
  for (int i = 0; i < kNumArithmetics; ++i) {
    json[std::string(arithmetic_name(static_cast<Arithmetic>(i)))] = values[i];
  }
  return json;
}

Json cost_json(const Profiler::Entry& cost) {
  return {{"calls", cost.calls},
          {"seconds", cost.seconds},
          {"weight_bytes", cost.weight_bytes},
          {"state_bytes", cost.state_bytes},
          {"activation_bytes", cost.activation_bytes},
          {"operations", operations_json(cost.operations)}};
}

Json row_json(const BenchRow& row, const BenchResult& result) {
  const RowBound bound = bound_of(row, result);
  Json json = {{"test", row.test},
               {"phase", row.phase},
               {"batch", row.batch},
               {"threads", row.threads},
               {"depth", row.depth},
               {"tokens", row.tokens},
               {"seconds", row.seconds},
               {"median_seconds", row.median_seconds()},
               {"min_seconds", row.min_seconds()},
               {"spread", row.spread()},
               {"per_second", row.rate()},
               {"min_per_second", row.min_rate()},
               {"work", cost_json(row.work)},
               {"bound", bound.what},
               {"share", bound.share}};
  json["ops"] = Json::array();
  for (const OpResult& op : row.ops) {
    Json entry = {{"op", op.op}, {"operand", op.operand}, {"layer", op.layer}};
    entry.update(cost_json(op.cost));
    json["ops"].push_back(std::move(entry));
  }
  return json;
}

// Fields of a JSON object, by name; what is wrong is said with its place.
class Reader {
 public:
  Reader(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) throw Error("{}: not an object", place_);
  }
  const Json& at(const char* name) const {
    const auto it = json_.find(name);
    if (it == json_.end()) throw Error("{}: no field '{}'", place_, name);
    return *it;
  }
  std::string text(const char* name) const {
    const Json& value = at(name);
    if (!value.is_string()) throw Error("{}: field '{}' is not a text", place_, name);
    return value.get<std::string>();
  }
  double number(const char* name) const { return number(at(name), name); }
  int64_t count(const char* name) const {
    const double value = number(name);
    if (!(value >= 0 && value < 9e15) || value != static_cast<double>(static_cast<int64_t>(value)))
      throw Error("{}: field '{}' is not a count", place_, name);
    return static_cast<int64_t>(value);
  }
  const Json& array(const char* name) const {
    const Json& value = at(name);
    if (!value.is_array()) throw Error("{}: field '{}' is not a list", place_, name);
    return value;
  }
  std::vector<double> numbers(const char* name) const {
    std::vector<double> values;
    for (const Json& value : array(name)) values.push_back(number(value, name));
    return values;
  }
  std::array<double, kNumArithmetics> operations(const char* name) const {
    const Reader fields(at(name), fmt::format("{}: {}", place_, name));
    std::array<double, kNumArithmetics> values{};
    for (int i = 0; i < kNumArithmetics; ++i) {
      values[i] = fields.number(std::string(arithmetic_name(static_cast<Arithmetic>(i))).c_str());
    }
    return values;
  }
  Profiler::Entry cost() const {
    return {.calls = count("calls"),
            .seconds = number("seconds"),
            .weight_bytes = number("weight_bytes"),
            .state_bytes = number("state_bytes"),
            .activation_bytes = number("activation_bytes"),
            .operations = operations("operations")};
  }

 private:
  double number(const Json& value, const char* name) const {
    if (!value.is_number()) throw Error("{}: field '{}' is not a number", place_, name);
    return value.get<double>();
  }

  const Json& json_;
  std::string place_;
};

BenchRow read_row(const Json& json, const std::string& place) {
  const Reader fields(json, place);
  BenchRow row;
  row.test = fields.text("test");
  row.phase = fields.text("phase");
  row.batch = fields.count("batch");
  row.threads = static_cast<int>(fields.count("threads"));
  row.depth = fields.count("depth");
  row.tokens = fields.count("tokens");
  row.seconds = fields.numbers("seconds");
  if (row.seconds.empty()) throw Error("{}: field 'seconds' is empty", place);
  for (const double seconds : row.seconds) {
    if (!(seconds > 0)) throw Error("{}: field 'seconds' holds {}", place, seconds);
  }
  row.work = Reader(fields.at("work"), place + ": work").cost();
  for (const Json& entry : fields.array("ops")) {
    const Reader op(entry, place + ": ops");
    row.ops.push_back({op.text("op"), op.text("operand"), op.text("layer"), op.cost()});
  }
  return row;
}

}  // namespace

double median(std::vector<double> values) {
  BRAID_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string BenchRow::key() const {
  return fmt::format("{} b{} t{} d{}", test, batch, threads, depth);
}
double BenchRow::median_seconds() const { return median(seconds); }
double BenchRow::min_seconds() const { return *std::min_element(seconds.begin(), seconds.end()); }
double BenchRow::spread() const {
  return (*std::max_element(seconds.begin(), seconds.end()) - min_seconds()) / median_seconds();
}
double BenchRow::rate() const {
  return static_cast<double>(std::max<int64_t>(tokens, 1)) / median_seconds();
}
double BenchRow::min_rate() const {
  return static_cast<double>(std::max<int64_t>(tokens, 1)) /
         *std::max_element(seconds.begin(), seconds.end());
}

const Ceilings* BenchResult::ceilings_for(int threads) const {
  for (const Ceilings& each : ceilings) {
    if (each.threads == threads) return &each;
  }
  return nullptr;
}

RowBound bound_of(const BenchRow& row, const BenchResult& result) {
  const Ceilings* ceilings = result.ceilings_for(row.threads);
  if (ceilings == nullptr) return {"unknown", 0};
  const Bound bound = bound_of(row.work, *ceilings);
  return {bound.what, bound.seconds / row.median_seconds()};
}

std::vector<OpResult> op_results(const Profiler& profiler) {
  std::vector<OpResult> ops;
  for (const Profiler::Entry& entry : profiler.entries()) {
    OpResult op{std::string(entry.op), std::string(entry.operand), std::string(entry.layer), {}};
    op.cost.add(entry);
    ops.push_back(std::move(op));
  }
  std::stable_sort(ops.begin(), ops.end(), [](const OpResult& a, const OpResult& b) {
    return a.cost.seconds > b.cost.seconds;
  });
  return ops;
}

std::string to_json(const BenchResult& result) {
  const Environment& e = result.environment;
  Json json = {{"kind", kKind},
               {"version", kVersion},
               {"model", result.model},
               {"family", result.family},
               {"weights", result.weights},
               {"compute", result.compute},
               {"environment",
                {{"cpu", e.cpu},
                 {"isa", e.isa},
                 {"processors", e.processors},
                 {"commit", e.commit},
                 {"compiler", e.compiler},
                 {"date", e.date},
                 {"command", e.command}}}};
  json["ceilings"] = Json::array();
  for (const Ceilings& c : result.ceilings) {
    json["ceilings"].push_back(
        {{"threads", c.threads},
         {"read_bytes_per_second", c.read_bytes_per_second},
         {"operations_per_second", operations_json(c.operations_per_second)}});
  }
  json["rows"] = Json::array();
  for (const BenchRow& row : result.rows) json["rows"].push_back(row_json(row, result));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

BenchResult bench_result_from_json(const std::string& text, const std::string& origin) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw Error("{}: not JSON", origin);
  if (!json.is_object() || !json.contains("kind") || json["kind"] != kKind) {
    throw Error("{}: not a result of braid bench --json", origin);
  }
  const Reader fields(json, origin);
  if (const int64_t version = fields.count("version"); version != kVersion) {
    throw Error("{}: version {}, this program reads {}", origin, version, kVersion);
  }
  BenchResult result;
  result.model = fields.text("model");
  result.family = fields.text("family");
  result.weights = fields.text("weights");
  result.compute = fields.text("compute");
  const Reader environment(fields.at("environment"), origin + ": environment");
  result.environment = {.cpu = environment.text("cpu"),
                        .isa = environment.text("isa"),
                        .processors = static_cast<int>(environment.count("processors")),
                        .commit = environment.text("commit"),
                        .compiler = environment.text("compiler"),
                        .date = environment.text("date"),
                        .command = environment.text("command")};
  for (const Json& entry : fields.array("ceilings")) {
    const Reader ceilings(entry, origin + ": ceilings");
    result.ceilings.push_back({static_cast<int>(ceilings.count("threads")),
                               ceilings.number("read_bytes_per_second"),
                               ceilings.operations("operations_per_second")});
  }
  const Json& rows = fields.array("rows");
  for (size_t i = 0; i < rows.size(); ++i) {
    result.rows.push_back(read_row(rows[i], fmt::format("{}: rows[{}]", origin, i)));
  }
  return result;
}

}  // namespace braid
