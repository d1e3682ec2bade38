#pragma once

#include <optional>
#include <string>
#include <vector>

#include "evaluate/exact_match.h"
#include "evaluate/multiple_choice.h"

namespace braid {

struct TextDocument {
  std::string name;  // "book.txt", "texts.jsonl:12"
  std::string text;  // well-formed UTF-8
};

// A file whose name ends with .jsonl holds a document in the field `field` of the object on each
// line (blank lines are passed over); any other, and standard input ("-"), is one document. Throws
// Error naming file, line and field; also for text that is no UTF-8, and for a file that holds no
// document or none but empty ones.
std::vector<TextDocument> read_documents(const std::string& path, const std::string& field);

// One kind of items.
struct TaskFile {
  std::string name;  // the file's, without folders and ending
  std::string path;
  std::optional<std::vector<ChoiceItem>> choices;
  std::optional<std::vector<GenerationItem>> generation;
};

// JSON Lines, all with "choices" (query, choices, gold, delimiter, id) or all with "answer"
// (prompt, answer, stop, filter, max_tokens, id). Throws Error naming file, line and field.
TaskFile read_task_file(const std::string& path);

// Of the report.json that the quantiser left in a model's folder, the tensors with an error: that
// of the layer's output, else that of the weight. Empty if there is no report.
struct NamedError {
  std::string name;
  double error = 0;
};
std::vector<NamedError> read_layer_errors(const std::string& model_folder);

}  // namespace braid
