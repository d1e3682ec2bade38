#include "apps/chat_session.h"

#include <unistd.h>

#include <cstdio>
#include <vector>

#include "apps/interrupt.h"
#include "apps/prompt_line.h"
#include "apps/text_io.h"
#include "base/error.h"

namespace braid {
namespace {

constexpr const char* kHelp =
    "/help          this list\n"
    "/reset         forget the conversation\n"
    "/system TEXT   set the system message and forget the conversation\n"
    "/undo          forget the last question and its reply\n"
    "/exit          end (or Ctrl-D)\n"
    "Ctrl-C stops a reply; at the prompt it ends the session.\n";

class ChatSession {
 public:
  ChatSession(Engine& engine, const LoadedModel& loaded, const ChatOptions& options)
      : engine_(engine), loaded_(loaded), options_(options) {
    reset();
  }

  void run() {
    if (isatty(STDIN_FILENO)) std::fputs("Type a message; /help lists the commands.\n", stderr);
    while (const auto line = read_prompt_line("> ")) {
      if (is_blank(*line)) continue;
      if (line->front() == '/') {
        if (!command(*line)) return;
      } else {
        turn(*line);
      }
    }
  }

 private:
  void reset() { messages_ = first_messages(options_.settings); }

  // False: the session ends.
  bool command(const std::string& line) {
    constexpr std::string_view kSystem = "/system ";
    if (line == "/exit" || line == "/quit" || line == "/bye") return false;
    if (line == "/reset" || line == "/clear") {
      reset();
    } else if (line == "/undo") {
      const size_t kept = first_messages(options_.settings).size();
      for (int i = 0; i < 2 && messages_.size() > kept; ++i) messages_.pop_back();
    } else if (line.starts_with(kSystem)) {
      set_system(line.substr(kSystem.size()));
    } else {
      std::fputs(line == "/help" ? kHelp : "unknown command; /help lists them\n", stderr);
    }
    return true;
  }

  void set_system(const std::string& text) {
    ChatSettings changed = options_.settings;
    changed.system = text;
    try {
      check_chat_settings(changed);
    } catch (const Error& error) {
      std::fprintf(stderr, "error: %s\n", error.what());
      return;
    }
    options_.settings = changed;
    reset();
  }

  void turn(const std::string& text) {
    messages_.push_back({.role = "user", .content = text});
    try {
      reply();
    } catch (const Error& error) {
      std::fprintf(stderr, "error: %s\n", error.what());
      messages_.pop_back();
    }
  }

  void reply() {
    GenerationRequest request;
    request.prompt =
        encode_chat(loaded_, *options_.settings.chat,
                    {.messages = messages_, .enable_thinking = options_.settings.thinking});
    request.sampling = options_.sampling;
    request.stop = options_.stop;
    request.max_new_tokens = options_.max_new_tokens;
    const RequestId id = engine_.submit(std::move(request));

    InterruptGuard interrupt;
    std::vector<int32_t> output;
    std::optional<FinishReason> finish;
    std::string failure;
    while (!finish) {
      if (interrupt.interrupted()) engine_.cancel(id);
      for (const TokenEvent& event : engine_.step()) {
        write_out(event.text);
        if (event.token && event.finish != FinishReason::kStop)
          output.push_back(event.token->token);
        finish = event.finish;
        failure = event.error;
      }
    }
    write_out("\n");
    if (finish == FinishReason::kError) throw Error("{}", failure);
    if (finish == FinishReason::kCancelled) std::fputs("[stopped]\n", stderr);
    if (finish == FinishReason::kLength) {
      std::fputs("[length limit; /reset makes room in a full context]\n", stderr);
    }
    // With its special tokens: the template decides what of it (thoughts, say) stays in the
    // history.
    messages_.push_back({.role = "assistant", .content = loaded_.tokenizer().decode(output)});
  }

  Engine& engine_;
  const LoadedModel& loaded_;
  ChatOptions options_;
  std::vector<ChatMessage> messages_;
};

}  // namespace

void run_chat_session(Engine& engine, const LoadedModel& loaded, const ChatOptions& options) {
  ChatSession(engine, loaded, options).run();
}

}  // namespace braid
