#include "apps/chat_session.h"

#include <unistd.h>

#include <cstdio>
#include <vector>

#include "apps/interrupt.h"
#include "apps/prompt.h"
#include "apps/prompt_line.h"
#include "base/error.h"

namespace braid {
namespace {

constexpr const char* kHelp =
    "/help          this list\n"
    "/reset         forget the conversation\n"
    "/system TEXT   set the system message and forget the conversation\n"
    "/undo          forget the last question and its reply\n"
    "/exit          end (or Ctrl-D)\n"
    "Ctrl-C stops a reply.\n";

class ChatSession {
 public:
  ChatSession(Engine& engine, const LoadedModel& loaded, const ChatTemplate& chat,
              const ChatOptions& options)
      : engine_(engine), loaded_(loaded), chat_(chat), options_(options) {
    reset();
  }

  void run() {
    if (isatty(STDIN_FILENO)) std::fputs("Type a message; /help lists the commands.\n", stderr);
    while (const auto line = read_prompt_line("> ")) {
      if (line->empty()) continue;
      if (line->front() == '/') {
        if (!command(*line)) return;
      } else {
        turn(*line);
      }
    }
  }

 private:
  void reset() {
    messages_.clear();
    if (!options_.system.empty()) {
      messages_.push_back({.role = "system", .content = options_.system});
    }
  }

  // False: the session ends.
  bool command(const std::string& line) {
    constexpr std::string_view kSystem = "/system ";
    if (line == "/exit" || line == "/quit" || line == "/bye") return false;
    if (line == "/reset" || line == "/clear") {
      reset();
    } else if (line == "/undo") {
      const size_t kept = options_.system.empty() ? 0 : 1;
      for (int i = 0; i < 2 && messages_.size() > kept; ++i) messages_.pop_back();
    } else if (line.starts_with(kSystem)) {
      options_.system = line.substr(kSystem.size());
      reset();
    } else {
      std::fputs(line == "/help" ? kHelp : "unknown command; /help lists them\n", stderr);
    }
    return true;
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
        encode_chat(loaded_, chat_, {.messages = messages_, .enable_thinking = options_.thinking});
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
        std::fputs(event.text.c_str(), stdout);
        std::fflush(stdout);
        if (event.token && event.finish != FinishReason::kStop)
          output.push_back(event.token->token);
        finish = event.finish;
        failure = event.error;
      }
    }
    std::fputs("\n", stdout);
    std::fflush(stdout);
    if (finish == FinishReason::kError) throw Error("{}", failure);
    if (finish == FinishReason::kCancelled) std::fputs("[stopped]\n", stderr);
    if (finish == FinishReason::kLength) std::fputs("[length limit]\n", stderr);
    // With its special tokens: the template decides what of it (thoughts, say) stays in the
    // history.
    messages_.push_back({.role = "assistant", .content = loaded_.tokenizer().decode(output)});
  }

  Engine& engine_;
  const LoadedModel& loaded_;
  const ChatTemplate& chat_;
  ChatOptions options_;
  std::vector<ChatMessage> messages_;
};

}  // namespace

void run_chat_session(Engine& engine, const LoadedModel& loaded, const ChatTemplate& chat,
                      const ChatOptions& options) {
  ChatSession(engine, loaded, chat, options).run();
}

}  // namespace braid
