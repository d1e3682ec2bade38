// Speed of matrix products in the layer shapes of real models, by instruction set, threads, storage
// format and number of tokens, beside the ceilings of the machine measured in the same run.
//
//   linear_suite [--isa avx2,avx512] [--threads 1,2] [--filter TEXT] [--case-ms N] [--all]
//
// A line names its case and is shown if it contains TEXT. GB/s count each touched weight once,
// GOP/s multiplications and additions; the shares are of reading and of the arithmetic's peak.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "benchmark/ceiling_kernels.h"
#include "ops/linear/linear.h"
#include "quant/panels.h"
#include "tensor/tensor.h"

namespace {

using namespace braid;
using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<Isa> isas = supported_isas();
  std::vector<int> threads = {1, 2};
  std::string filter;
  int case_ms = 40;
  bool all = false;  // every number of tokens for every instruction set and layout
};

double seconds_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Best of at least two runs and `ms`.
double best_seconds(int ms, const std::function<void()>& body) {
  double best = 1e30;
  const auto end = Clock::now() + std::chrono::milliseconds(ms);
  for (int run = 0; run < 2 || Clock::now() < end; ++run) best = std::min(best, seconds_of(body));
  return best;
}

struct Peaks {
  double read, int8, bf16, f32;
};

Peaks measure_peaks(ThreadPool& pool, const Buffer& arena) {
  const CeilingKernels& kernels = BRAID_KERNELS(kCeilingKernels);
  std::vector<float> sinks(static_cast<size_t>(pool.num_threads()) * 16);
  constexpr int64_t kPiece = 4 << 20;
  const int64_t pieces = static_cast<int64_t>(arena.size_bytes()) / kPiece / 2;
  const double read = best_seconds(400, [&] {
    pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t, int thread) {
      kernels.read(arena.data() + begin * kPiece, kPiece, &sinks[thread * 16]);
    });
  });
  const auto compute = [&](void (*kernel)(int64_t, float*), int64_t operations) {
    constexpr int64_t kRounds = 1'000'000;
    const double seconds = best_seconds(
        100, [&] { pool.run([&](int thread) { kernel(kRounds, &sinks[thread * 16]); }); });
    return static_cast<double>(kRounds * operations * pool.num_threads()) / seconds;
  };
  return {
      static_cast<double>(pieces * kPiece) / read, compute(kernels.int8, kernels.int8_operations),
      compute(kernels.bf16, kernels.bf16_operations), compute(kernels.f32, kernels.f32_operations)};
}

struct Shape {
  int64_t experts, rows, cols;
  int64_t top;  // experts of a token; 0: a single matrix
  std::vector<int64_t> tokens;
  bool large;  // only the most usual formats
};
const std::vector<Shape> kShapes = {
    {1, 640, 2048, 0, {1, 2, 4, 8, 16, 64, 512}, false},
    {1, 3840, 4096, 0, {1, 2, 4, 8, 16, 64, 512}, false},
    {1, 15360, 3840, 0, {1, 2, 4, 8, 16, 64, 512}, false},
    {1, 262144, 640, 0, {1, 8}, true},
    {1, 262144, 3840, 0, {1, 8}, true},
    {128, 1408, 2816, 8, {1, 8, 64, 512}, false},
    {512, 1024, 2048, 10, {1, 8, 64, 512}, false},
};
constexpr int64_t kFewTokens[] = {1, 8, 512};  // what is measured where not all are

struct Layout {
  FormatId format;
  bool panels;
};
constexpr Layout kLayouts[] = {
    {FormatId::kQ4_0, true}, {FormatId::kQ8_0, true},  {FormatId::kQ4K, true},
    {FormatId::kQ6K, true},  {FormatId::kQ4_0, false}, {FormatId::kQ8_0, false},
    {FormatId::kQ4K, false}, {FormatId::kQ6K, false},  {FormatId::kBF16, false},
};

// Fills `bytes` of the arena with random weights of a format: 64 rows over and over.
void fill(Buffer& arena, const Layout& layout, int64_t cols, int64_t bytes) {
  const QuantFormat& format = quant_format(layout.format);
  constexpr int64_t kRows = 64;
  const int64_t row_bytes = format.row_bytes(cols);
  std::vector<std::byte> rows(static_cast<size_t>(kRows * row_bytes));
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < kRows; ++r) {
    std::byte* out = rows.data() + r * row_bytes;
    if (can_quantize(format)) {
      for (float& x : row) x = normal(engine);
      quantize(format, row.data(), cols, out);
    } else {
      for (int64_t i = 0; i < row_bytes; ++i) out[i] = static_cast<std::byte>(engine() & 0x3f);
    }
  }
  std::vector<std::byte> stored = rows;
  if (layout.panels) pack_panels(format, rows.data(), kRows, cols, stored.data());
  for (int64_t done = 0; done < bytes; done += kRows * row_bytes) {
    std::memcpy(arena.data() + done, stored.data(),
                static_cast<size_t>(std::min(kRows * row_bytes, bytes - done)));
  }
}

// Where tokens × `top` random experts begin in the list sorted by expert.
std::vector<int32_t> route(int64_t experts, int64_t top, int64_t tokens, std::mt19937& engine) {
  std::vector<int32_t> counts(static_cast<size_t>(experts));
  std::vector<int> all(static_cast<size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < top; ++i) {
      std::swap(all[i], all[std::uniform_int_distribution<int64_t>(i, experts - 1)(engine)]);
      ++counts[all[i]];
    }
  }
  std::vector<int32_t> offsets(1, 0);
  for (const int32_t count : counts) offsets.push_back(offsets.back() + count);
  return offsets;
}

class Suite {
 public:
  explicit Suite(const Options& options) : options_(options) {
    for (const int threads : options.threads) {
      pools_.push_back(std::make_unique<ThreadPool>(ThreadPoolOptions{.num_threads = threads}));
    }
  }

  void run() {
    std::memset(arena_.data(), 1, arena_.size_bytes());
    std::printf("case: isa, threads, shape, format, inputs, tokens\n");
    for (const Isa isa : options_.isas) {
      force_isa(isa);
      for (const auto& pool : pools_) {
        const Peaks peaks = measure_peaks(*pool, arena_);
        peaks_.push_back(peaks);
        std::printf("%s t%d: read %.1f GB/s; int8 %.0f, bf16 %.0f, f32 %.0f GOP/s\n",
                    std::string(isa_name(isa)).c_str(), pool->num_threads(), peaks.read / 1e9,
                    peaks.int8 / 1e9, peaks.bf16 / 1e9, peaks.f32 / 1e9);
      }
    }
    for (const Layout& layout : kLayouts) {
      for (const Shape& shape : kShapes) {
        const bool usual =
            layout.panels && (layout.format == FormatId::kQ4_0 || layout.format == FormatId::kQ8_0);
        if (!shape.large || usual) run_shape(layout, shape);
      }
    }
    prepare_inputs();
  }

 private:
  void run_shape(const Layout& layout, const Shape& shape) {
    const QuantFormat& plain = quant_format(layout.format);
    const QuantFormat& format = layout.panels ? *panel_format(plain) : plain;
    const int64_t cols = shape.cols - shape.cols % format.block_elements;
    const int64_t matrix_bytes = format.row_bytes(cols) * shape.rows;
    const std::string name =
        fmt::format("{}{}x{} {}", shape.top > 0 ? fmt::format("{}x", shape.experts) : "",
                    shape.rows, cols, format.name);
    if (matrix_bytes > static_cast<int64_t>(arena_.size_bytes())) return;
    // All there is room for, so that nothing stays in cache; experts are all different anyway.
    const int64_t matrices =
        std::clamp<int64_t>(static_cast<int64_t>(arena_.size_bytes() / 2) / matrix_bytes, 1,
                            shape.top > 0 ? shape.experts : 4096);
    bool filled = false;
    Weight w;
    w.format = &format;
    w.data = arena_.data();
    size_t peak = 0;
    for (const Isa isa : options_.isas) {
      force_isa(isa);
      for (const auto& pool : pools_) {
        const Peaks& peaks = peaks_[peak++];
        const bool brief =
            !options_.all && ((!layout.panels && !plain.plain()) || isa != options_.isas.back());
        for (const int64_t tokens : shape.tokens) {
          if (brief && std::find(std::begin(kFewTokens), std::end(kFewTokens), tokens) ==
                           std::end(kFewTokens)) {
            continue;
          }
          for (const ActivationPrecision precision :
               {ActivationPrecision::kInt8, ActivationPrecision::kF32,
                ActivationPrecision::kBF16}) {
            if ((precision == ActivationPrecision::kInt8) == plain.plain()) continue;
            const char* inputs = precision == ActivationPrecision::kInt8  ? "int8"
                                 : precision == ActivationPrecision::kF32 ? "f32"
                                                                          : "bf16";
            const std::string label = fmt::format("{} t{} {} {} n{}", isa_name(isa),
                                                  pool->num_threads(), name, inputs, tokens);
            if (label.find(options_.filter) == std::string::npos) continue;
            if (!filled) fill(arena_, layout, cols, matrices * matrix_bytes);
            filled = true;
            run_case(label, *pool, peaks, shape, w, cols, matrices, tokens, precision);
          }
        }
      }
    }
  }

  void run_case(const std::string& label, ThreadPool& pool, const Peaks& peaks, const Shape& shape,
                Weight w, int64_t cols, int64_t matrices, int64_t tokens,
                ActivationPrecision precision) {
    Stream stream(pool);
    Workspace::Scope scope(workspace_);
    const int64_t rows_of_x = tokens * std::max<int64_t>(shape.top, 1);
    const TensorView x = workspace_.take(DType::kF32, {rows_of_x, cols});
    std::mt19937 engine(2);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& value : x.span<float>()) value = uniform(engine);
    const LinearInput input = prepare_linear_input(stream, workspace_, x, precision);
    const TensorView y = workspace_.take(DType::kF32, {rows_of_x, shape.rows});
    double seconds = 0, bytes = 0;
    if (shape.top == 0) {
      // As many in turn as take a few milliseconds.
      const int64_t times = std::clamp<int64_t>(
          (int64_t{48} << 20) / (w.format->row_bytes(cols) * shape.rows * tokens), 1, matrices);
      int64_t next = 0;
      seconds = best_seconds(options_.case_ms,
                             [&] {
                               for (int64_t i = 0; i < times; ++i) {
                                 w.shape = {shape.rows, cols};
                                 w.data = arena_.data() + next * w.matrix_bytes();
                                 linear(stream, w, input, y);
                                 next = (next + 1) % matrices;
                               }
                             }) /
                static_cast<double>(times);
      bytes = static_cast<double>(w.matrix_bytes());
    } else {
      w.shape = {matrices, shape.rows, cols};
      // Means of all routings: each reads what it reads.
      constexpr int kRoutings = 8;
      std::vector<std::vector<int32_t>> routings;
      for (int i = 0; i < kRoutings; ++i) {
        routings.push_back(route(matrices, shape.top, tokens, engine));
        for (int64_t e = 0; e < matrices; ++e) {
          if (routings.back()[e + 1] > routings.back()[e]) {
            bytes += static_cast<double>(w.matrix_bytes()) / kRoutings;
          }
        }
      }
      seconds = best_seconds(options_.case_ms,
                             [&] {
                               for (const auto& offsets : routings)
                                 grouped_linear(stream, w, input, offsets, y);
                             }) /
                kRoutings;
    }
    const double operations = 2.0 * static_cast<double>(rows_of_x * shape.rows * cols);
    const bool pairs = input.packed.rank() == 2;
    const double peak = precision == ActivationPrecision::kInt8 ? peaks.int8
                        : pairs                                 ? peaks.bf16
                                                                : peaks.f32;
    std::printf("%-48s %10.1f us %7.1f GB/s %4.0f%% %8.1f GOP/s %4.0f%%\n", label.c_str(),
                1e6 * seconds, bytes / seconds / 1e9, 100 * bytes / seconds / peaks.read,
                operations / seconds / 1e9, 100 * operations / seconds / peak);
    std::fflush(stdout);
  }

  void prepare_inputs() {
    for (const Isa isa : options_.isas) {
      force_isa(isa);
      for (const auto& pool : pools_) {
        for (const ActivationPrecision precision :
             {ActivationPrecision::kInt8, ActivationPrecision::kBF16}) {
          const std::string label =
              fmt::format("{} t{} prepare_input 512x3840 {}", isa_name(isa), pool->num_threads(),
                          precision == ActivationPrecision::kInt8 ? "int8" : "bf16");
          if (label.find(options_.filter) == std::string::npos) continue;
          Stream stream(*pool);
          Workspace::Scope scope(workspace_);
          const TensorView x = workspace_.take(DType::kF32, {512, 3840});
          std::mt19937 engine(2);
          std::uniform_real_distribution<float> uniform(-1, 1);
          for (float& value : x.span<float>()) value = uniform(engine);
          const double seconds = best_seconds(options_.case_ms, [&] {
            Workspace::Scope inner(workspace_);
            prepare_linear_input(stream, workspace_, x, precision);
          });
          std::printf("%-48s %10.1f us %7.1f GB/s of input\n", label.c_str(), 1e6 * seconds,
                      512 * 3840 * 4 / seconds / 1e9);
        }
      }
    }
  }

  Options options_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<Peaks> peaks_;  // by instruction set and pool
  Workspace workspace_{size_t{1} << 30};
  Buffer arena_{size_t{1100} << 20, Device{}};
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--all") {
      options.all = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "%s needs a value\n", flag.c_str());
      return 2;
    }
    const std::string value = argv[++i];
    if (flag == "--isa") {
      options.isas.clear();
      for (const std::string& isa : split(value)) options.isas.push_back(parse_isa(isa));
    } else if (flag == "--threads") {
      options.threads.clear();
      for (const std::string& threads : split(value)) options.threads.push_back(std::stoi(threads));
    } else if (flag == "--filter") {
      options.filter = value;
    } else if (flag == "--case-ms") {
      options.case_ms = std::stoi(value);
    } else {
      std::fprintf(stderr, "%s is not known\n", flag.c_str());
      return 2;
    }
  }
  Suite(options).run();
  return 0;
}
