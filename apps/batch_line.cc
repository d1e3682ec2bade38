#include "apps/batch_line.h"

#include <nlohmann/json.hpp>

#include "apps/prompt.h"
#include "base/error.h"

namespace braid {
namespace {

using Json = nlohmann::json;

template <typename T>
T field(const Json& object, const char* key, bool (Json::*is_type)() const noexcept,
        const char* type) {
  const Json& value = object.at(key);
  if (!(value.*is_type)()) throw Error("\"{}\": expected {}", key, type);
  return value.get<T>();
}

bool given(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

ChatMessage parse_message(const Json& json) {
  if (!json.is_object()) throw Error("\"messages\": expected a list of objects");
  ChatMessage message;
  if (!given(json, "role")) throw Error("\"messages\": a message has no role");
  message.role = field<std::string>(json, "role", &Json::is_string, "a string");
  if (given(json, "content")) {
    message.content = field<std::string>(json, "content", &Json::is_string, "a string");
  }
  return message;
}

std::vector<int32_t> parse_prompt(const Json& json, const LoadedModel& loaded,
                                  const ChatTemplate* chat) {
  const int sources = given(json, "prompt") + given(json, "messages") + given(json, "ids");
  if (sources != 1) throw Error("expected one of \"prompt\", \"messages\" and \"ids\"");
  if (given(json, "prompt")) {
    const auto text = field<std::string>(json, "prompt", &Json::is_string, "a string");
    if (chat == nullptr) return encode_prompt(loaded, text);
    return encode_chat(loaded, *chat, {.messages = {{.role = "user", .content = text}}});
  }
  if (given(json, "messages")) {
    if (!json["messages"].is_array()) throw Error("\"messages\": expected a list");
    ChatTemplateInputs inputs;
    for (const Json& message : json["messages"]) inputs.messages.push_back(parse_message(message));
    return encode_chat(loaded, loaded.chat_template(), inputs);
  }
  if (!json["ids"].is_array()) throw Error("\"ids\": expected a list of token ids");
  std::vector<int32_t> ids;
  for (const Json& id : json["ids"]) {
    if (!id.is_number_integer()) throw Error("\"ids\": expected a list of token ids");
    const int64_t value = id.get<int64_t>();
    if (value < 0 || value >= loaded.model().vocab_size()) {
      throw Error("\"ids\": {} is outside the vocabulary of {}", value,
                  loaded.model().vocab_size());
    }
    ids.push_back(static_cast<int32_t>(value));
  }
  return ids;
}

void parse_settings(const Json& json, GenerationRequest& request) {
  constexpr const char* kKnown[] = {"prompt",     "messages",    "ids",   "id",
                                    "max_tokens", "temperature", "top_k", "top_p",
                                    "seed",       "min_p",       "stop"};
  for (const auto& [key, value] : json.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      throw Error("\"{}\": unknown field", key);
    }
  }
  SamplingParams& sampling = request.sampling;
  const auto number = [&](const char* key, float& value) {
    if (given(json, key)) value = field<float>(json, key, &Json::is_number, "a number");
  };
  number("temperature", sampling.temperature);
  number("top_p", sampling.top_p);
  number("min_p", sampling.min_p);
  if (given(json, "top_k")) {
    sampling.top_k = field<int32_t>(json, "top_k", &Json::is_number_integer, "an integer");
  }
  if (given(json, "seed")) {
    sampling.seed =
        field<uint64_t>(json, "seed", &Json::is_number_unsigned, "a non-negative integer");
  }
  if (given(json, "max_tokens")) {
    request.max_new_tokens =
        field<int64_t>(json, "max_tokens", &Json::is_number_integer, "an integer");
  }
  if (given(json, "stop")) {
    const Json& stop = json["stop"];
    for (const Json& text : stop.is_array() ? stop : Json::array({stop})) {
      if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
        throw Error("\"stop\": expected a string or a list of strings, not empty");
      }
      request.stop.strings.push_back(text.get<std::string>());
    }
  }
}

}  // namespace

BatchLine parse_batch_line(std::string_view line, int64_t index, const LoadedModel& loaded,
                           const ChatTemplate* chat, const BatchOptions& options) {
  BatchLine parsed;
  try {
    const Json json = Json::parse(line);
    if (!json.is_object()) throw Error("expected a JSON object");
    if (given(json, "id"))
      parsed.id_json = json["id"].dump(-1, ' ', false, Json::error_handler_t::replace);
    parsed.request.sampling = options.sampling;
    parsed.request.stop = options.stop;
    parsed.request.max_new_tokens = options.max_new_tokens;
    parsed.request.sampling_stream = static_cast<uint64_t>(index);
    parse_settings(json, parsed.request);
    parsed.request.prompt = parse_prompt(json, loaded, chat);
  } catch (const Json::exception& error) {
    parsed.error = error.what();
  } catch (const Error& error) {
    parsed.error = error.what();
  }
  return parsed;
}

std::string to_json_line(const BatchResult& result) {
  nlohmann::ordered_json json;
  json["index"] = result.index;
  if (!result.id_json.empty()) json["id"] = nlohmann::ordered_json::parse(result.id_json);
  if (!result.error.empty()) {
    json["error"] = result.error;
  } else {
    json["text"] = result.text;
    json["finish_reason"] = result.finish_reason;
    json["usage"] = {{"prompt_tokens", result.prompt_tokens},
                     {"completion_tokens", result.generated_tokens}};
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace braid
