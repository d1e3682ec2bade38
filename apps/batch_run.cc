#include "apps/batch_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <unordered_map>

#include "apps/interrupt.h"
#include "apps/text_io.h"
#include "base/error.h"

namespace braid {
namespace {

struct Prompt {
  int64_t index = 0;  // of the line in the file
  std::string_view line;
};

std::vector<Prompt> find_prompts(std::string_view text) {
  std::vector<Prompt> prompts;
  const std::vector<std::string_view> lines = split_lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!is_blank(lines[i])) prompts.push_back({static_cast<int64_t>(i), lines[i]});
  }
  return prompts;
}

const std::string& check_output(const std::string& prompts, const std::string& output) {
  std::error_code error;
  if (std::filesystem::equivalent(prompts, output, error) && !error) {
    throw Error("{}: the results cannot go to the file of the prompts", output);
  }
  return output;
}

// A line on a terminal that is written over again and again.
class Progress {
 public:
  explicit Progress(int64_t total) : total_(total), shown_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }

  void show(int64_t done, int64_t tokens) {
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    fmt::print(stderr, "\r\033[K{} of {} prompts, {:.1f} tokens/s", done, total_,
               static_cast<double>(tokens) / seconds);
    if (done > 0) {
      fmt::print(stderr, ", {:.0f} s left",
                 seconds / static_cast<double>(done) * static_cast<double>(total_ - done));
    }
    std::fflush(stderr);
  }

 private:
  int64_t total_;
  bool shown_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), last_;
};

class BatchRun {
 public:
  BatchRun(Engine& engine, const LoadedModel& loaded, BatchFiles& files,
           const BatchDefaults& defaults)
      : engine_(engine),
        loaded_(loaded),
        files_(files),
        defaults_(defaults),
        prompts_(find_prompts(files.text)) {}

  bool run(bool resume) {
    const int64_t num_kept = resume ? count_kept() : 0;
    files_.output.begin(num_kept);
    next_ = static_cast<size_t>(num_kept);
    Progress progress(static_cast<int64_t>(prompts_.size()) - num_kept);
    InterruptGuard interrupt;
    while (next_ < prompts_.size() || !engine_.idle()) {
      if (interrupt.interrupted() && !cancelled_) cancel();
      fill_queue();
      for (const TokenEvent& event : engine_.step()) take(event);
      write_ready();
      progress.show(num_written_, engine_.stats().generated_tokens);
    }
    return complete_;
  }

 private:
  // A prompt that is submitted or refused but not yet written.
  struct Entry {
    BatchResult result;
    bool finished = false;
  };

  // Results of an earlier run that need not be computed again.
  int64_t count_kept() {
    int64_t kept = 0;
    for (const std::string& line : files_.output.read_lines()) {
      try {
        const WrittenResult written = parse_json_line(line);
        if (written.cancelled) break;
        if (kept >= static_cast<int64_t>(prompts_.size()) ||
            written.index != prompts_[kept].index) {
          throw Error("it is of other prompts");
        }
        if (written.failed) complete_ = false;
      } catch (const Error& error) {
        throw Error("--resume: line {} of the output does not continue {}: {}", kept + 1,
                    files_.origin, error.what());
      }
      ++kept;
    }
    return kept;
  }

  void cancel() {
    cancelled_ = true;
    complete_ = false;
    for (const auto& [id, entry] : running_) engine_.cancel(id);
  }

  // Keeps a few prompts waiting, so that a long file is neither read into memory as tokens nor
  // delays the first result. After an interruption the rest is only marked.
  void fill_queue() {
    constexpr int64_t kWaiting = 32;
    while (next_ < prompts_.size() && (cancelled_ || engine_.num_waiting() < kWaiting)) {
      const Prompt& prompt = prompts_[next_++];
      BatchLine line = parse_batch_line(prompt.line, prompt.index, loaded_, defaults_);
      Entry& entry = entries_.emplace_back();
      entry.result.index = prompt.index;
      entry.result.id_json = line.id_json;
      entry.result.error = line.error;
      if (line.error.empty()) submit(entry, std::move(line.request));
      entry.finished = entry.finished || !entry.result.error.empty();
    }
  }

  void submit(Entry& entry, GenerationRequest request) {
    entry.result.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    if (cancelled_) {
      entry.result.finish_reason = finish_reason_name(FinishReason::kCancelled);
      entry.finished = true;
      return;
    }
    try {
      running_[engine_.submit(std::move(request))] = &entry;
    } catch (const Error& error) {
      entry.result.error = error.what();
    }
  }

  void take(const TokenEvent& event) {
    Entry& entry = *running_.at(event.request);
    entry.result.text += event.text;
    if (event.token) ++entry.result.generated_tokens;
    if (!event.finish) return;
    entry.result.finish_reason = finish_reason_name(*event.finish);
    entry.result.error = event.error;
    entry.finished = true;
    running_.erase(event.request);
  }

  void write_ready() {
    for (; !entries_.empty() && entries_.front().finished; entries_.pop_front()) {
      if (!entries_.front().result.error.empty()) complete_ = false;
      files_.output.write(to_json_line(entries_.front().result));
      ++num_written_;
    }
  }

  Engine& engine_;
  const LoadedModel& loaded_;
  BatchFiles& files_;
  const BatchDefaults& defaults_;
  std::vector<Prompt> prompts_;
  size_t next_ = 0;            // to be submitted
  std::deque<Entry> entries_;  // in input order; addresses stay while the ends change
  std::unordered_map<RequestId, Entry*> running_;
  int64_t num_written_ = 0;
  bool cancelled_ = false;
  bool complete_ = true;
};

}  // namespace

BatchFiles::BatchFiles(const std::string& prompts, const std::string& output_path)
    : origin(prompts == "-" ? "standard input" : prompts),
      text(read_input(prompts)),
      output(check_output(prompts, output_path)) {}

bool run_batch(Engine& engine, const LoadedModel& loaded, BatchFiles& files,
               const BatchDefaults& defaults, bool resume) {
  return BatchRun(engine, loaded, files, defaults).run(resume);
}

}  // namespace braid
