// Speed of matrix products: one token (reading the weights once, GB/s of stored bytes) and many
// (arithmetic, multiplications and additions counted, GOP/s), beside what the machine reads.
//
//   linear_bench [--threads N] [--rows N] [--cols N] [--tokens N] [--format NAME] [--int8]
//
// Block formats are measured as files have them and in panels (quant/panels.h).

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/cpu_features.h"
#include "ops/linear/linear.h"
#include "quant/panels.h"
#include "tensor/tensor.h"

namespace {

using namespace braid;

struct Options {
  int threads = 0;
  int64_t rows = 4096;
  int64_t cols = 4096;
  int64_t tokens = 256;
  // Copies of the matrix are used in turn, as many as fill this: none stays in cache by default.
  int64_t working_set_mib = 512;
  int rounds = 5;
  bool int8_only = false;
  std::string format;
};

// Best of several runs, in seconds.
double best_seconds(const std::function<void()>& body, int at_least_ms = 300) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30;
  const auto start = Clock::now();
  int runs = 0;
  do {
    const auto begin = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    ++runs;
  } while (runs < 3 || Clock::now() - start < std::chrono::milliseconds(at_least_ms));
  return best;
}

// A matrix [copies * rows, cols] of small random weights. Block formats that cannot be written get
// random bytes; a scale that is not a number does not change the time.
Weight make_weight(const QuantFormat& format, int64_t rows, int64_t cols, int64_t copies) {
  const auto storage = std::make_shared<Buffer>(
      static_cast<size_t>(format.row_bytes(cols) * rows * copies), Device{});
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, 0.02f);
  const size_t matrix_bytes = static_cast<size_t>(format.row_bytes(cols) * rows);
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    std::byte* out = storage->data() + r * format.row_bytes(cols);
    if (can_quantize(format) && r < 64) {
      for (float& x : row) x = normal(engine);
      quantize(format, row.data(), cols, out);
    } else if (can_quantize(format)) {
      std::memcpy(out, storage->data() + r % 64 * format.row_bytes(cols), format.row_bytes(cols));
    } else {
      for (int64_t i = 0; i < format.row_bytes(cols); ++i) {
        out[i] = static_cast<std::byte>(engine() & 0x3f);
      }
    }
  }
  for (int64_t copy = 1; copy < copies; ++copy) {
    std::memcpy(storage->data() + copy * matrix_bytes, storage->data(), matrix_bytes);
  }
  Weight w;
  w.format = &format;
  w.shape = {rows * copies, cols};
  w.data = storage->data();
  w.owner = storage;
  return w;
}

// Rows are a multiple of a panel's, so matrices stay one after the other.
Weight in_panels(const Weight& w) {
  const auto storage = std::make_shared<Buffer>(static_cast<size_t>(w.size_bytes()), Device{});
  pack_panels(*w.format, w.data, w.rows(), w.cols(), storage->data());
  Weight packed = w;
  packed.format = panel_format(*w.format);
  packed.data = storage->data();
  packed.owner = storage;
  return packed;
}

// GB/s at which all threads together read memory, several streams each.
double read_bandwidth(ThreadPool& pool) {
  Buffer buffer(size_t{1} << 30, Device{});
  std::memset(buffer.data(), 1, buffer.size_bytes());
  constexpr int64_t kPiece = 1 << 20;
  std::vector<uint64_t> sums(static_cast<size_t>(pool.num_threads()) * 8);
  const double seconds = best_seconds([&] {
    pool.parallel_for(static_cast<int64_t>(buffer.size_bytes()) / kPiece, 1,
                      [&](int64_t begin, int64_t, int thread) {
                        typedef uint64_t V __attribute__((vector_size(32), may_alias));
                        const std::byte* p = buffer.data() + begin * kPiece;
                        V sum[4] = {};
                        for (int64_t i = 0; i < kPiece / 4; i += 32) {
                          for (int s = 0; s < 4; ++s) {
                            V v;
                            std::memcpy(&v, p + s * (kPiece / 4) + i, sizeof(v));
                            sum[s] += v;
                          }
                        }
                        const V total = sum[0] + sum[1] + sum[2] + sum[3];
                        sums[thread * 8] += total[0] + total[1] + total[2] + total[3];
                      });
  });
  return static_cast<double>(buffer.size_bytes()) / seconds / 1e9;
}

constexpr int64_t kFew[] = {1, 2, 3, 4, 8};

// One layout of a format's matrices, with one kind of input.
struct Case {
  Weight weight;  // [copies * rows, cols]
  ActivationPrecision precision;
  const char* input;
  std::array<double, std::size(kFew)> seconds{};  // of a product of so many tokens
  double many_seconds = 1e30;

  Case(Weight weight, ActivationPrecision precision, const char* input)
      : weight(std::move(weight)), precision(precision), input(input) {
    seconds.fill(1e30);
  }
};

void run(const Options& options) {
  ThreadPool pool({.num_threads = options.threads});
  Stream stream(pool);
  Workspace workspace(size_t{2} << 30);
  std::printf("%s, %d threads, %ld x %ld\n", std::string(isa_name(active_isa())).c_str(),
              pool.num_threads(), options.rows, options.cols);
  std::printf("time of 2, 3, 4, 8 tokens by that of one\n");
  std::printf("%-9s %-5s %12s %8s %5s %5s %5s %5s %10s\n", "format", "input", "1 token GB/s",
              "of read", "2", "3", "4", "8", "many GOP/s");
  for (int id = 0; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    if (!options.format.empty() && options.format != format.name) continue;
    const int64_t matrix_bytes = format.row_bytes(options.cols) * options.rows;
    const int64_t copies = std::max<int64_t>(1, (options.working_set_mib << 20) / matrix_bytes);
    Tensor x(DType::kF32, {std::max<int64_t>(options.tokens, 8), options.cols});
    std::mt19937 engine(2);
    std::normal_distribution<float> normal;
    for (float& value : x.view().span<float>()) value = normal(engine);

    const Weight w = make_weight(format, options.rows, options.cols, copies);
    std::vector<Case> cases;
    if (!options.int8_only || format.plain()) {
      cases.emplace_back(w, ActivationPrecision::kF32, "f32");
      cases.emplace_back(w, ActivationPrecision::kBF16, "bf16");
    }
    if (!format.plain()) {
      cases.emplace_back(w, ActivationPrecision::kInt8, "int8");
      if (options.rows % kPanelRows == 0) {
        const Weight panels = in_panels(w);
        if (!options.int8_only) cases.emplace_back(panels, ActivationPrecision::kF32, "f32");
        cases.emplace_back(panels, ActivationPrecision::kInt8, "int8");
      }
    }
    const auto multiply = [&](const Case& c, int64_t tokens, int64_t times) {
      Workspace::Scope scope(workspace);
      const LinearInput input = prepare_linear_input(
          stream, workspace, x.view().rows(0, tokens), c.precision,
          {.per_block = !format.has_row_header(), .per_token = format.has_row_header()});
      const TensorView y = workspace.take(DType::kF32, {tokens, options.rows});
      for (int64_t i = 0; i < times; ++i) {
        linear(stream, c.weight.slice_rows(i * options.rows, options.rows), input, y);
      }
    };
    // In turn, so that a slow spell of the machine meets all of them.
    double bandwidth = 0;
    for (int round = 0; round < options.rounds; ++round) {
      bandwidth = std::max(bandwidth, read_bandwidth(pool));
      for (Case& c : cases) {
        for (size_t i = 0; i < std::size(kFew); ++i) {
          c.seconds[i] =
              std::min(c.seconds[i], best_seconds([&] { multiply(c, kFew[i], copies); }, 60) /
                                         static_cast<double>(copies));
        }
        c.many_seconds =
            std::min(c.many_seconds, best_seconds([&] { multiply(c, options.tokens, 1); }, 100));
      }
    }
    for (const Case& c : cases) {
      const double one = c.seconds[0];
      const double operations = 2.0 * static_cast<double>(options.rows * options.cols);
      const double gb_per_s = static_cast<double>(matrix_bytes) / one / 1e9;
      std::printf("%-9s %-5s %12.1f %7.0f%% %5.2f %5.2f %5.2f %5.2f %10.1f\n",
                  std::string(c.weight.format->name).c_str(), c.input, gb_per_s,
                  100 * gb_per_s / bandwidth, c.seconds[1] / one, c.seconds[2] / one,
                  c.seconds[3] / one, c.seconds[4] / one,
                  static_cast<double>(options.tokens) * operations / c.many_seconds / 1e9);
    }
    std::printf("          memory is read at %.1f GB/s\n", bandwidth);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of matrix products by storage format");
  app.add_option("--threads", options.threads, "0: all processors")->check(CLI::NonNegativeNumber);
  app.add_option("--rows", options.rows)->check(CLI::PositiveNumber);
  app.add_option("--cols", options.cols)->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens)->check(CLI::PositiveNumber);
  app.add_option("--working-set", options.working_set_mib, "MiB of matrices used in turn")
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_flag("--int8", options.int8_only, "block formats with int8 inputs only");
  app.add_option("--format", options.format, "one format only, for example q4_0");
  CLI11_PARSE(app, argc, argv);
  run(options);
  return 0;
}
