#include "apps/eval_input.h"

#include <algorithm>
#include <filesystem>

#include "apps/json_fields.h"
#include "apps/strict_json.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kQuantisationReport = "report.json";

void check_utf8(std::string_view text, const std::string& where) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.status != Utf8Status::kValid) {
      throw Error("{}: byte {} begins no UTF-8 character; convert the text to UTF-8", where, at);
    }
    at += static_cast<size_t>(step.length);
  }
}

// Calls use(line, number) for lines that are not blank; its errors get the place in front.
template <typename Use>
void for_each_line(const std::string& path, const std::string& text, const Use& use) {
  const std::vector<std::string_view> lines = split_lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (is_blank(lines[i])) continue;
    try {
      use(lines[i], i + 1);
    } catch (const Error& error) {
      throw Error("{}:{}: {}", path, i + 1, error.what());
    }
  }
}

std::string required_string(const JsonFields& fields, const char* key) {
  if (!fields.has(key)) throw Error("\"{}\": missing", key);
  return fields.string(key);
}

std::vector<std::string> strings(const JsonFields& fields, const char* key) {
  const json& value = fields.at(key);
  std::vector<std::string> list;
  for (const json& text : value.is_array() ? value : json::array({value})) {
    if (!text.is_string()) throw Error("\"{}\": expected a string or a list of strings", key);
    list.push_back(text.get<std::string>());
  }
  return list;
}

std::string item_id(const JsonFields& fields, size_t line) {
  if (!fields.has("id")) return std::to_string(line);
  const json& id = fields.at("id");
  return id.is_string() ? id.get<std::string>() : dump_json(id);
}

ChoiceItem parse_choice_item(const JsonFields& fields, size_t line) {
  fields.allow_only({"id", "query", "choices", "gold", "delimiter"});
  ChoiceItem item{.id = item_id(fields, line), .query = required_string(fields, "query")};
  item.choices = strings(fields, "choices");
  if (item.choices.size() < 2) throw Error("\"choices\": expected at least two");
  for (const std::string& choice : item.choices) {
    if (choice.empty()) throw Error("\"choices\": one is empty");
  }
  if (!fields.has("gold")) throw Error("\"gold\": missing");
  const auto most = static_cast<int64_t>(item.choices.size()) - 1;
  item.gold = static_cast<size_t>(fields.integer("gold", 0, most));
  if (fields.has("delimiter")) item.delimiter = fields.string("delimiter");
  return item;
}

GenerationItem parse_generation_item(const JsonFields& fields, size_t line) {
  fields.allow_only({"id", "prompt", "answer", "stop", "filter", "max_tokens"});
  GenerationItem item{.id = item_id(fields, line), .prompt = required_string(fields, "prompt")};
  item.answers = strings(fields, "answer");
  if (item.answers.empty()) throw Error("\"answer\": expected at least one");
  if (fields.has("stop")) item.stop = strings(fields, "stop");
  for (const std::string& stop : item.stop) {
    if (stop.empty()) throw Error("\"stop\": one is empty");
  }
  if (fields.has("filter")) item.filter = fields.string("filter");
  if (fields.has("max_tokens")) item.max_new_tokens = fields.integer("max_tokens", 1, 1 << 20);
  try {
    extract_answer("", item.filter);
  } catch (const Error& error) {
    throw Error("\"filter\": {}", error.what());
  }
  return item;
}

}  // namespace

std::vector<TextDocument> read_documents(const std::string& path, const std::string& field) {
  const std::string text = read_input(path);
  std::vector<TextDocument> documents;
  if (path.ends_with(".jsonl")) {
    for_each_line(path, text, [&](std::string_view line, size_t number) {
      const json value = parse_strict_json(line);
      const JsonFields fields(value, "the line");
      documents.push_back(
          {fmt::format("{}:{}", path, number), required_string(fields, field.c_str())});
    });
  } else {
    check_utf8(text, path);
    documents.push_back({path == "-" ? "standard input" : path, text});
  }
  const bool any = std::any_of(documents.begin(), documents.end(),
                               [](const TextDocument& document) { return !document.text.empty(); });
  if (!any) throw Error("{}: there is no text in it", path);
  return documents;
}

TaskFile read_task_file(const std::string& path) {
  TaskFile task{.name = fs::path(path).stem().string(), .path = path};
  const std::string text = read_input(path);
  for_each_line(path, text, [&](std::string_view line, size_t number) {
    const json value = parse_strict_json(line);
    const JsonFields fields(value, "the line");
    const bool choices = fields.has("choices");
    if (choices == fields.has("answer")) {
      throw Error("expected one of \"choices\" (multiple choice) and \"answer\" (generation)");
    }
    if (choices ? task.generation.has_value() : task.choices.has_value()) {
      throw Error("multiple choice and generation in one file; put them into two");
    }
    if (choices) {
      if (!task.choices) task.choices.emplace();
      task.choices->push_back(parse_choice_item(fields, number));
    } else {
      if (!task.generation) task.generation.emplace();
      task.generation->push_back(parse_generation_item(fields, number));
    }
  });
  if (!task.choices && !task.generation) throw Error("{}: there are no items in it", path);
  return task;
}

std::vector<NamedError> read_layer_errors(const std::string& model_folder) {
  const fs::path path = fs::path(model_folder) / kQuantisationReport;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  std::vector<NamedError> layers;
  const json report = json::parse(read_file(path.string()), nullptr, /*allow_exceptions=*/false);
  if (!report.is_object() || !report.contains("tensors") || !report["tensors"].is_array()) {
    spdlog::warn("{}: no list \"tensors\"; the errors of the layers are not shown", path.string());
    return {};
  }
  for (const json& tensor : report["tensors"]) {
    if (!tensor.is_object() || !tensor.contains("name") || !tensor["name"].is_string()) continue;
    for (const char* field : {"output_error", "weight_error"}) {
      if (!tensor.contains(field) || !tensor[field].is_number()) continue;
      layers.push_back({tensor["name"].get<std::string>(), tensor[field].get<double>()});
      break;
    }
  }
  return layers;
}

}  // namespace braid
