#include "apps/batch_line.h"

#include <limits>

#include "apps/chat_messages.h"
#include "apps/json_fields.h"
#include "apps/strict_json.h"
#include "base/error.h"

namespace braid {
namespace {

using nlohmann::json;

std::vector<int32_t> parse_ids(const json& list, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const json& id : list) {
    if (!id.is_number_integer()) throw Error("\"ids\": expected a list of token ids");
    const bool fits =
        id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab_size);
    if (!fits) throw Error("\"ids\": {} is outside the vocabulary of {}", id.dump(), vocab_size);
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<int32_t> parse_prompt(const JsonFields& fields, const LoadedModel& loaded,
                                  const ChatSettings& settings) {
  if (fields.has("prompt") + fields.has("messages") + fields.has("ids") != 1) {
    throw Error("expected one of \"prompt\", \"messages\" and \"ids\"");
  }
  if (fields.has("ids")) return parse_ids(fields.list("ids"), loaded.model().vocab_size());
  if (fields.has("prompt")) return encode_turn(loaded, settings, fields.string("prompt"));
  const ChatTemplate& chat = settings.chat != nullptr ? *settings.chat : loaded.chat_template();
  ChatTemplateInputs inputs{.messages = parse_messages(fields.at("messages")),
                            .enable_thinking = settings.thinking};
  if (fields.has("tools")) {
    for (const json& tool : fields.list("tools")) inputs.tools_json.push_back(dump_json(tool));
  }
  if (inputs.messages.front().role != "system") {
    const std::vector<ChatMessage> first = first_messages(settings);
    inputs.messages.insert(inputs.messages.begin(), first.begin(), first.end());
  }
  return encode_chat(loaded, chat, inputs);
}

void parse_sampling(const JsonFields& fields, SamplingParams& sampling) {
  const auto number = [&](const char* key, float& value) {
    if (fields.has(key)) value = fields.number(key);
  };
  number("temperature", sampling.temperature);
  number("top_p", sampling.top_p);
  number("min_p", sampling.min_p);
  number("repetition_penalty", sampling.repetition_penalty);
  number("presence_penalty", sampling.presence_penalty);
  number("frequency_penalty", sampling.frequency_penalty);
  if (fields.has("top_k")) {
    sampling.top_k =
        static_cast<int32_t>(fields.integer("top_k", -1, std::numeric_limits<int32_t>::max()));
  }
  if (fields.has("seed")) sampling.seed = fields.unsigned_integer("seed");
}

void parse_stop(const JsonFields& fields, StopConditions& conditions) {
  if (!fields.has("stop")) return;
  const json& stop = fields.at("stop");
  for (const json& text : stop.is_array() ? stop : json::array({stop})) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      throw Error("\"stop\": expected a string or a list of strings, not empty");
    }
    conditions.strings.push_back(text.get<std::string>());
  }
}

std::string parse_id(const JsonFields& fields) {
  if (!fields.has("id")) return {};
  const json& id = fields.at("id");
  if (!id.is_string() && !id.is_number()) throw Error("\"id\": expected a string or a number");
  return dump_json(id);
}

}  // namespace

BatchLine parse_batch_line(std::string_view line, int64_t index, const LoadedModel& loaded,
                           const BatchDefaults& defaults) {
  BatchLine parsed;
  try {
    const json value = parse_strict_json(line);
    const JsonFields fields(value, "the line");
    parsed.id_json = parse_id(fields);
    fields.allow_only({"prompt", "messages", "ids", "id", "tools", "max_tokens", "temperature",
                       "top_k", "top_p", "min_p", "seed", "stop", "repetition_penalty",
                       "presence_penalty", "frequency_penalty"});
    GenerationRequest& request = parsed.request;
    request.sampling = defaults.sampling;
    request.stop = defaults.stop;
    request.max_new_tokens = defaults.max_new_tokens;
    request.sampling_stream = static_cast<uint64_t>(index);
    parse_sampling(fields, request.sampling);
    parse_stop(fields, request.stop);
    if (fields.has("max_tokens")) request.max_new_tokens = fields.integer("max_tokens");
    request.prompt = parse_prompt(fields, loaded, defaults.chat);
  } catch (const Error& error) {
    parsed.error = error.what();
  }
  return parsed;
}

std::string to_json_line(const BatchResult& result) {
  nlohmann::ordered_json line;
  line["index"] = result.index;
  if (!result.id_json.empty()) line["id"] = nlohmann::ordered_json::parse(result.id_json);
  if (!result.error.empty()) {
    line["error"] = result.error;
  } else {
    line["text"] = result.text;
    line["finish_reason"] = result.finish_reason;
    line["usage"] = {{"prompt_tokens", result.prompt_tokens},
                     {"completion_tokens", result.generated_tokens}};
  }
  return dump_json(line);
}

WrittenResult parse_json_line(std::string_view line) {
  const json value = parse_strict_json(line);
  const JsonFields fields(value, "the line");
  if (!fields.has("index") || fields.has("error") == fields.has("finish_reason")) {
    throw Error("not a result line");
  }
  WrittenResult result{.index = fields.integer("index", 0), .failed = fields.has("error")};
  result.cancelled = !result.failed &&
                     fields.string("finish_reason") == finish_reason_name(FinishReason::kCancelled);
  return result;
}

}  // namespace braid
