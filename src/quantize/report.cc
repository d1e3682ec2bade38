#include "quantize/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "quantize/text_file.h"

namespace braid {
namespace {

using nlohmann::ordered_json;

constexpr const char* kJsonName = "report.json";
constexpr const char* kMarkdownName = "report.md";
constexpr const char* kOrderNames[] = {"in place", "by size", "by group, then by size"};

double percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6);
}

double relative(double part, double whole) { return whole > 0 ? std::sqrt(part / whole) : 0; }

// What tensors of a kind add up to.
struct KindSum {
  int64_t tensors = 0, quantised = 0, parameters = 0, parameters_quantised = 0, bytes = 0;
};
std::map<ModuleKind, KindSum> sum_kinds(const QuantizeReport& report) {
  std::map<ModuleKind, KindSum> sums;
  for (const TensorPlan& plan : report.plans) {
    KindSum& sum = sums[plan.kind];
    ++sum.tensors;
    sum.parameters += plan.num_parameters();
    sum.bytes += plan.source_bytes;
    if (!plan.quantised()) continue;
    ++sum.quantised;
    sum.parameters_quantised += plan.num_parameters();
  }
  return sums;
}

const MatrixResult* result_of(const QuantizeReport& report, const TensorPlan& plan) {
  const auto found = report.results.find(plan.name);
  return found == report.results.end() ? nullptr : &found->second;
}

ordered_json tensor_json(const QuantizeReport& report, const TensorPlan& plan) {
  const auto sizes = plan.shape.sizes();
  ordered_json json = {{"name", plan.file_name},
                       {"kind", module_kind_name(plan.kind)},
                       {"shape", std::vector<int64_t>(sizes.begin(), sizes.end())},
                       {"from", plan.source_type},
                       {"bytes_before", plan.source_bytes},
                       {"to", plan.source_type}};
  if (!plan.kept_as.empty()) json["to"] = plan.kept_as;
  if (!plan.left_out.empty()) json["left_out"] = plan.left_out;
  if (!plan.targets.empty()) json["stored_in"] = plan.targets;
  if (!plan.note.empty()) json["note"] = plan.note;
  const MatrixResult* result = result_of(report, plan);
  if (result == nullptr) return json;
  json["to"] = result->format;
  json["method"] = result->method;
  json["weight_error"] = relative(result->weight_error, result->weight_square);
  if (result->stored) {
    json["inputs"] = result->num_inputs;
    json["output_error_rtn"] = result->nearest->relative();
    json["output_error"] = result->stored->relative();
    json["dead_columns"] = result->num_dead_columns;
    json["damping"] = result->damping;
  }
  for (const MatrixResult::Starved& one : result->starved) {
    json["starved"].push_back({{"expert", one.expert}, {"inputs", one.num_inputs}});
  }
  return json;
}

ordered_json to_json(const ScaleFit& fit) {
  return {{"scale", fit.scale},
          {"largest", fit.largest},
          {"values", fit.count},
          {"saturated", fit.saturated},
          {"relative_error", fit.relative_error()}};
}

ordered_json kv_json(const QuantizeReport& report) {
  ordered_json json = {{"storage", kv_recipe_name(report.options.recipe.kv)}};
  for (const KvLayerResult& layer : report.kv) {
    json["layers"].push_back(
        {{"layer", layer.layer}, {"keys", to_json(layer.key)}, {"values", to_json(layer.value)}});
  }
  return json;
}

// As the source's files call a tensor.
std::string file_name_of(const QuantizeReport& report, const std::string& name) {
  for (const TensorPlan& plan : report.plans) {
    if (plan.name == name) return plan.file_name;
  }
  return name;
}

std::vector<std::string> readers_of(const QuantizeReport& report, const BalancedGroup& group) {
  std::vector<std::string> names;
  for (const std::string& reader : group.readers) names.push_back(file_name_of(report, reader));
  return names;
}

ordered_json balance_json(const QuantizeReport& report) {
  ordered_json json = {{"strength", report.options.balance}, {"groups", ordered_json::array()}};
  for (const BalancedGroup& group : report.balanced) {
    json["groups"].push_back({{"before", file_name_of(report, group.before)},
                              {"readers", readers_of(report, group)},
                              {"channels", group.channels},
                              {"scaled", group.scaled},
                              {"smallest", std::ldexp(1.0, group.smallest)},
                              {"largest", std::ldexp(1.0, group.largest)}});
  }
  return json;
}

ordered_json to_json(const QuantizeReport& report) {
  ordered_json json = {{"model", report.model.filename().string()},
                       {"scheme", report.options.recipe.scheme},
                       {"method", report.options.method == QuantizeMethod::kGptq ? "gptq" : "rtn"},
                       {"calibration",
                        {{"sequences", report.calibration.sequences.size()},
                         {"length", report.calibration.length},
                         {"tokens", report.calibration.num_tokens()}}}};
  json.update(result_json(report.result));
  if (report.options.balance > 0) json["balance"] = balance_json(report);
  json["kv"] = kv_json(report);
  json["tensors"] = ordered_json::array();
  for (const TensorPlan& plan : report.plans) json["tensors"].push_back(tensor_json(report, plan));
  return json;
}

std::string summary(const QuantizeReport& report) {
  const QuantizeResult& r = report.result;
  const QuantizeOptions& options = report.options;
  std::string text =
      fmt::format("# {} as {}\n\n", report.model.filename().string(), options.recipe.scheme);
  text += "| | |\n|---|---|\n";
  const auto row = [&](std::string_view name, const std::string& value) {
    text += fmt::format("| {} | {} |\n", name, value);
  };
  row("method",
      r.num_quantised == 0 ? std::string("none: all matrices are as they were")
      : options.method == QuantizeMethod::kGptq
          ? fmt::format("GPTQ, damping {}, columns {}, scales {}, {} refinements, {}",
                        options.gptq.damping, kOrderNames[static_cast<int>(options.gptq.order)],
                        options.gptq.search_scales ? "searched" : "by range",
                        options.gptq.refinements,
                        options.one_pass ? "a layer at once" : "stage by stage")
          : fmt::format("round to nearest, scales {}",
                        options.search_scales ? "searched" : "by range"));
  row("calibration",
      report.calibration.sequences.empty()
          ? "none"
          : fmt::format("{} sequences of {} tokens", report.calibration.sequences.size(),
                        report.calibration.length));
  if (options.balance > 0) row("balancing", fmt::format("strength {}", options.balance));
  if (options.recipe.kv != KvRecipe::kUnspecified) {
    row("keys and values", options.recipe.kv == KvRecipe::kInt8
                               ? "int8, a scale for each token and head as they come"
                               : "int8, a scale for each layer's keys and one for its values");
  }
  row("tensors quantised", fmt::format("{} of {}", r.num_quantised, r.num_tensors));
  row("parameters quantised",
      fmt::format("{} of {} ({:.1f} %)", r.num_parameters_quantised, r.num_parameters,
                  percent(r.num_parameters_quantised, r.num_parameters)));
  row("bytes before", megabytes(r.bytes_before));
  row("bytes predicted", megabytes(r.bytes_predicted));
  row("bytes after", fmt::format("{} ({:.1f} %)", megabytes(r.bytes_after),
                                 percent(r.bytes_after, r.bytes_before)));
  row("starved experts", std::to_string(r.num_starved));
  return text;
}

std::string kinds_table(const QuantizeReport& report) {
  std::string text =
      "\n## By kind\n\n| kind | tensors | quantised | parameters | quantised | bytes before |\n"
      "|---|---|---|---|---|---|\n";
  for (const auto& [kind, sum] : sum_kinds(report)) {
    text += fmt::format("| {} | {} | {} | {} | {:.1f} % | {} |\n", module_kind_name(kind),
                        sum.tensors, sum.quantised, sum.parameters,
                        percent(sum.parameters_quantised, sum.parameters), sum.bytes);
  }
  return text;
}

std::string errors_table(const QuantizeReport& report) {
  // Experts stored one by one would fill pages: a row for those of a layer.
  std::string text =
      "\n## Errors\n\nRelative error of outputs, ‖(W − Q)·X‖ / ‖W·X‖ over the calibration (rounded "
      "to nearest, and as stored), and of weights, ‖W − Q‖ / ‖W‖.\n\n"
      "| tensor | stored as | method | inputs | outputs, nearest | outputs, stored | weights |\n"
      "|---|---|---|---|---|---|---|\n";
  struct Row {
    std::string name, format, method;
    int64_t inputs = 0, count = 0, starved = 0;
    double nearest = 0, stored = 0, output = 0, weight_error = 0, weight_square = 0;
  };
  std::vector<Row> rows;
  for (const TensorPlan& plan : report.plans) {
    const MatrixResult* result = result_of(report, plan);
    if (result == nullptr) continue;
    std::string name = plan.file_name;
    if (const auto one = expert_name(plan.file_name)) {
      name = std::string(one->stem) + "*" + std::string(one->rest);
    }
    auto at =
        std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.name == name; });
    if (at == rows.end()) at = rows.insert(rows.end(), Row{name, result->format, result->method});
    ++at->count;
    at->starved += static_cast<int64_t>(result->starved.size());
    if (at->method != result->method) at->method = "gptq and rtn";
    at->inputs += result->num_inputs;
    at->weight_error += result->weight_error;
    at->weight_square += result->weight_square;
    if (result->stored) {
      at->nearest += result->nearest->error;
      at->stored += result->stored->error;
      at->output += result->stored->output;
    }
  }
  for (const Row& row : rows) {
    text += fmt::format("| {} | {} | {} | {} | ", row.name, row.format, row.method, row.inputs);
    text += row.output > 0 ? fmt::format("{:.5f} | {:.5f} | ", relative(row.nearest, row.output),
                                         relative(row.stored, row.output))
                           : std::string("– | – | ");
    text += fmt::format("{:.5f} |\n", relative(row.weight_error, row.weight_square));
  }
  return text;
}

std::string balance_table(const QuantizeReport& report) {
  if (report.balanced.empty()) return {};
  std::string text =
      "\n## Balancing\n\nColumns of the matrices that were multiplied by powers of two, and what "
      "makes "
      "their inputs, which was divided by them.\n\n"
      "| columns of | divided | channels | scaled | scales |\n|---|---|---|---|---|\n";
  for (const BalancedGroup& group : report.balanced) {
    text += fmt::format("| {} | {} | {} | {} | {:g} to {:g} |\n",
                        fmt::join(readers_of(report, group), ", "),
                        file_name_of(report, group.before), group.channels, group.scaled,
                        std::ldexp(1.0, group.smallest), std::ldexp(1.0, group.largest));
  }
  return text;
}

std::string kv_table(const QuantizeReport& report) {
  if (report.kv.empty()) return {};
  std::string text =
      "\n## Keys and values\n\nAs the calibration has shown them: the scale, the share of codes "
      "clamped to ±127, and the relative error, ‖x − scale · code‖ / ‖x‖.\n\n"
      "| layer | scale of keys | clamped | error | scale of values | clamped | error |\n"
      "|---|---|---|---|---|---|---|\n";
  const auto cells = [](const ScaleFit& fit) {
    return fmt::format("{:.6g} | {:.4f} % | {:.5f} |", fit.scale, percent(fit.saturated, fit.count),
                       fit.relative_error());
  };
  for (const KvLayerResult& layer : report.kv) {
    text += fmt::format("| {} | {} {}\n", layer.layer, cells(layer.key), cells(layer.value));
  }
  return text;
}

std::string starved_list(const QuantizeReport& report) {
  if (report.result.num_starved == 0) return {};
  std::string text = fmt::format(
      "\n## Starved experts\n\nCalibration showed these fewer inputs than {} of their width; they "
      "are rounded to nearest.\n\n| tensor | experts (inputs) |\n|---|---|\n",
      report.options.min_inputs_per_column);
  for (const auto& [name, result] : report.results) {
    if (result.starved.empty()) continue;
    std::string experts;
    for (const MatrixResult::Starved& one : result.starved) {
      experts += fmt::format("{}{} ({})", experts.empty() ? "" : ", ", one.expert, one.num_inputs);
    }
    text += fmt::format("| {} | {} |\n", name, experts);
  }
  return text;
}

std::string notes(const QuantizeReport& report) {
  std::string text;
  for (const TensorPlan& plan : report.plans) {
    if (!plan.note.empty()) text += fmt::format("- {}: {}\n", plan.file_name, plan.note);
  }
  return text.empty() ? text : "\n## Formats replaced\n\n" + text;
}

std::string times_table(const PhaseTimes& times) {
  std::string text = "\n## Time\n\n| phase | seconds |\n|---|---|\n";
  const std::pair<const char*, double> phases[] = {{"loading weights", times.load},
                                                   {"layers on the calibration", times.forward},
                                                   {"Hessians", times.hessian},
                                                   {"their factors", times.factor},
                                                   {"rounding", times.round},
                                                   {"errors", times.compare},
                                                   {"packing", times.pack},
                                                   {"writing", times.write},
                                                   {"all", times.total}};
  for (const auto& [name, seconds] : phases)
    text += fmt::format("| {} | {:.2f} |\n", name, seconds);
  if (times.hessian > 0) {
    text += fmt::format("\nHessians: {:.1f} GFLOP/s.\n",
                        times.hessian_operations / times.hessian / 1e9);
  }
  if (times.layers_resumed > 0) {
    text += fmt::format("\n{} layers were done by an earlier run.\n", times.layers_resumed);
  }
  return text;
}

std::string what_became_of(const TensorPlan& plan, const MatrixResult* result) {
  if (!plan.left_out.empty()) return fmt::format("not in the file: {}", plan.left_out);
  std::string text = result != nullptr       ? result->format
                     : !plan.kept_as.empty() ? plan.kept_as
                                             : std::string("as it was");
  if (!plan.targets.empty()) text += fmt::format(", {}", fmt::join(plan.targets, " and "));
  return text;
}

std::string tensors_table(const QuantizeReport& report) {
  std::string text = "\n## All tensors\n\n| tensor | shape | from | to |\n|---|---|---|---|\n";
  for (const TensorPlan& plan : report.plans) {
    const MatrixResult* result = result_of(report, plan);
    text += fmt::format("| {} | {} | {} | {} |\n", plan.file_name, to_string(plan.shape),
                        plan.source_type, what_became_of(plan, result));
  }
  for (const std::string& name : report.result.added) {
    text += fmt::format("| – | | | {} (added) |\n", name);
  }
  return text;
}

}  // namespace

ordered_json result_json(const QuantizeResult& r) {
  const PhaseTimes& t = r.times;
  ordered_json seconds = {{"load", t.load},     {"forward", t.forward}, {"hessian", t.hessian},
                          {"factor", t.factor}, {"round", t.round},     {"compare", t.compare},
                          {"pack", t.pack},     {"write", t.write},     {"total", t.total}};
  ordered_json json = {
      {"tensors_total", r.num_tensors}, {"tensors_quantised", r.num_quantised},
      {"parameters", r.num_parameters}, {"parameters_quantised", r.num_parameters_quantised},
      {"bytes_before", r.bytes_before}, {"bytes_predicted", r.bytes_predicted},
      {"bytes_after", r.bytes_after},   {"starved_experts", r.num_starved},
      {"seconds", std::move(seconds)},  {"layers_resumed", t.layers_resumed}};
  if (!r.added.empty()) json["tensors_added"] = r.added;
  if (r.device_peak_bytes > 0) json["device_peak_bytes"] = r.device_peak_bytes;
  if (t.hessian > 0) json["hessian_gflops"] = t.hessian_operations / t.hessian / 1e9;
  return json;
}

std::filesystem::path gguf_report_path(const std::filesystem::path& gguf, const char* extension) {
  std::filesystem::path path = gguf;
  path.replace_extension();
  path += std::string(".report") + extension;
  return path;
}

void write_reports(const std::filesystem::path& folder, const QuantizeReport& report) {
  write_text_file(folder / kJsonName, to_json(report).dump(2) + "\n");
  write_text_file(folder / kMarkdownName,
                  summary(report) + kinds_table(report) + errors_table(report) +
                      balance_table(report) + kv_table(report) + starved_list(report) +
                      notes(report) + times_table(report.result.times) + tensors_table(report));
}

}  // namespace braid
