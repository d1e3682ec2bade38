#include "apps/batch_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <map>
#include <unordered_map>
#include <vector>

#include "apps/batch_line.h"
#include "apps/interrupt.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace braid {
namespace {

std::vector<std::string> read_lines(const std::filesystem::path& path) {
  const std::string text =
      path == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : read_file(path);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// The JSONL output: lines in order, each flushed when written.
class OutputFile {
 public:
  OutputFile(const std::filesystem::path& path, bool resume) : path_(path) {
    if (path.empty()) {
      file_ = stdout;
      return;
    }
    int64_t kept_bytes = 0;
    if (resume && std::filesystem::exists(path)) {
      const std::string content = read_file(path);
      num_kept_ = std::count(content.begin(), content.end(), '\n');
      const size_t last = content.rfind('\n');
      kept_bytes = last == std::string::npos ? 0 : static_cast<int64_t>(last) + 1;
    }
    file_ = std::fopen(path.c_str(), resume ? "ab" : "wb");
    if (file_ == nullptr) throw Error("{}: cannot write: {}", path.string(), std::strerror(errno));
    // Half a line at the end is what an interruption left.
    if (resume && ftruncate(fileno(file_), kept_bytes) != 0) {
      throw Error("{}: cannot truncate: {}", path.string(), std::strerror(errno));
    }
  }
  ~OutputFile() {
    if (file_ != stdout) std::fclose(file_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  int64_t num_kept() const { return num_kept_; }
  void write(const std::string& line) {
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() ||
        std::fputc('\n', file_) == EOF || std::fflush(file_) != 0) {
      throw Error("{}: cannot write: {}", path_.empty() ? "standard output" : path_.string(),
                  std::strerror(errno));
    }
  }

 private:
  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
  int64_t num_kept_ = 0;
};

class BatchRun {
 public:
  BatchRun(Engine& engine, const LoadedModel& loaded, const ChatTemplate* chat,
           const BatchOptions& options)
      : engine_(engine),
        loaded_(loaded),
        chat_(chat),
        options_(options),
        lines_(read_lines(options.prompts)),
        output_(options.output, options.resume) {}

  bool run() {
    next_to_write_ = output_.num_kept();
    for (int64_t i = next_to_write_; i < num_lines(); ++i) submit(i);
    InterruptGuard interrupt;
    bool cancelled = false;
    while (!engine_.idle()) {
      if (interrupt.interrupted() && !cancelled) {
        cancelled = true;
        for (const auto& [id, index] : index_of_) engine_.cancel(id);
      }
      for (const TokenEvent& event : engine_.step()) take(event);
      write_ready();
      show_progress();
    }
    write_ready();
    if (isatty(STDERR_FILENO)) std::fputs("\n", stderr);
    return num_failed_ == 0 && !cancelled;
  }

 private:
  int64_t num_lines() const { return static_cast<int64_t>(lines_.size()); }

  void submit(int64_t index) {
    BatchLine line = parse_batch_line(lines_[index], index, loaded_, chat_, options_);
    BatchResult& result = results_[index];
    result.index = index;
    result.id_json = line.id_json;
    result.error = line.error;
    if (result.error.empty()) {
      result.prompt_tokens = static_cast<int64_t>(line.request.prompt.size());
      try {
        index_of_[engine_.submit(std::move(line.request))] = index;
      } catch (const Error& error) {
        result.error = error.what();
      }
    }
    if (!result.error.empty()) finished_[index] = true;
  }

  void take(const TokenEvent& event) {
    const int64_t index = index_of_.at(event.request);
    BatchResult& result = results_[index];
    result.text += event.text;
    if (event.token) ++result.generated_tokens;
    if (!event.finish) return;
    result.finish_reason = finish_reason_name(*event.finish);
    result.error = event.error;
    finished_[index] = true;
  }

  void write_ready() {
    for (auto next = results_.begin(); next != results_.end() && finished_[next->first];
         next = results_.erase(next)) {
      if (!next->second.error.empty()) ++num_failed_;
      output_.write(to_json_line(next->second));
      ++next_to_write_;
    }
  }

  void show_progress() {
    if (!isatty(STDERR_FILENO)) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_shown_ < std::chrono::milliseconds(200)) return;
    last_shown_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const int64_t done = next_to_write_ - output_.num_kept();
    const int64_t left = num_lines() - next_to_write_;
    const EngineStats& stats = engine_.stats();
    fmt::print(stderr, "\r\033[K{} of {} prompts, {:.1f} tokens/s", next_to_write_, num_lines(),
               static_cast<double>(stats.generated_tokens) / seconds);
    if (done > 0) {
      fmt::print(stderr, ", {:.0f} s left",
                 seconds / static_cast<double>(done) * static_cast<double>(left));
    }
    std::fflush(stderr);
  }

  Engine& engine_;
  const LoadedModel& loaded_;
  const ChatTemplate* chat_;
  const BatchOptions& options_;
  std::vector<std::string> lines_;
  OutputFile output_;
  std::map<int64_t, BatchResult> results_;  // not yet written, by line
  std::unordered_map<int64_t, bool> finished_;
  std::unordered_map<RequestId, int64_t> index_of_;
  int64_t next_to_write_ = 0;
  int64_t num_failed_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_shown_;
};

}  // namespace

bool run_batch(Engine& engine, const LoadedModel& loaded, const ChatTemplate* chat,
               const BatchOptions& options) {
  return BatchRun(engine, loaded, chat, options).run();
}

}  // namespace braid
