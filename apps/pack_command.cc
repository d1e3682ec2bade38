#include <fmt/format.h>

#include <memory>
#include <string>

#include "apps/command.h"
#include "apps/device_options.h"
#include "apps/interrupt.h"
#include "apps/progress_bar.h"
#include "apps/table.h"
#include "base/error.h"
#include "checkpoint/pack_file.h"
#include "checkpoint/pack_writer.h"
#include "engine/demo_models.h"

namespace braid {
namespace {

struct PackCommandOptions {
  std::string model;
  std::string out;
  int num_threads = 0;
  bool verify = false;
};

void verify(const std::filesystem::path& path) {
  const std::filesystem::path file = path / kPackFileName;
  const PackFile pack = PackFile::open(file);
  pack.verify();
  fmt::print("{}: {} tensors as written\n", file.string(), pack.entries.size());
}

void pack(const PackCommandOptions& options, const std::filesystem::path& path) {
  const ModelFiles files = ModelFiles::open(path);
  ThreadPool pool({.num_threads = options.num_threads});
  const InterruptGuard interrupt;
  PackResult result;
  {
    ProgressBar bar;
    const auto show = [&](int64_t done, int64_t total) {
      if (interrupt.interrupted()) throw Error("interrupted; {} was not written", options.out);
      bar.show(done >> 20, total >> 20, -1, "MiB packed");
    };
    result = pack_model(path, files, options.out, pool, {.progress = show});
  }
  fmt::print("{}: {} tensors, {} in panels, {}\n", options.out, result.num_tensors,
             result.num_panels, format_bytes(result.bytes));
}

}  // namespace

void add_pack_command(CLI::App& app) {
  auto options = std::make_shared<PackCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "pack", "Write a model with its weights as the kernels want them, for fast starts");
  command
      ->add_option("MODEL", options->model,
                   "Hugging Face folder, .gguf file, or demo:NAME (a bundled model)")
      ->option_text(" ")
      ->required();
  CLI::Option* out =
      command->add_option("-o,--output", options->out, "Folder to write; must not exist yet")
          ->option_text("OUT");
  command
      ->add_flag("--verify", options->verify,
                 "Write nothing: compare all data of the packed MODEL with their checksums")
      ->excludes(out);
  command->add_option("-t,--threads", options->num_threads, "Threads (0: one per processor)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->footer(
      "Examples:\n  braid pack model.gguf -o model-packed\n  braid run model-packed -p "
      "\"Hello\"\n  braid pack --verify model-packed");
  command->callback([options] {
    const std::filesystem::path path = resolve_model(options->model);
    if (options->verify) return verify(path);
    if (options->out.empty())
      throw UsageError("--output is required (a folder that does not exist)");
    pack(*options, path);
  });
}

}  // namespace braid
