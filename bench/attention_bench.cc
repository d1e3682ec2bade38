// Speed of attention, one thread unless told, in seconds of the processor: prefill as GFLOP/s of
// the products with visible keys, decode as GB/s of the keys and values read, the caches of all
// sequences together beyond the processor's. The fastest of several rounds over all cases, so that
// a slow spell of the machine meets all of them.
//
//   attention_bench [--kv f32,bf16,int8] [--filter TEXT] [--prefill 0,2048] [--decode 4096,16384]
//                   [--rounds N] [--threads N] [--working-set-mib N]

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "ops/attention/attention.h"
#include "tensor/tensor.h"

namespace {

using namespace braid;

struct Shape4 {
  const char* name;
  int64_t heads, kv_heads, head_dim, window;
};
constexpr Shape4 kShapes[] = {
    {"gemma3-270m full", 4, 1, 256, 0}, {"gemma3-270m sliding", 4, 1, 256, 512},
    {"gemma4-12b full", 16, 1, 512, 0}, {"gemma4-12b sliding", 16, 8, 256, 1024},
    {"gemma4-26b full", 16, 2, 512, 0}, {"qwen3-next full", 16, 2, 256, 0},
    {"no groups of 128", 8, 8, 128, 0}};

double now() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Tensor random_tensor(const Shape& shape, uint32_t seed) {
  Tensor tensor(DType::kF32, shape);
  std::minstd_rand engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& x : tensor.view().span<float>()) x = uniform(engine);
  return tensor;
}

// `rows` new rows of a sequence after `context` tokens. Sequences in number enough that decoding
// reads memory take turns.
struct Case {
  static constexpr int64_t kPageTokens = 32;

  Case(const Shape4& shape, DType dtype, int64_t rows, int64_t context, double working_set)
      : name(shape.name),
        dtype(dtype),
        rows(rows),
        context(context),
        options{.scale = 0.06f, .window = shape.window},
        q(random_tensor({rows, shape.heads, shape.head_dim}, 1)),
        out(DType::kF32, q.shape()) {
    const int64_t tokens = context + rows;
    const double first = options.window > 0 ? std::max<int64_t>(0, tokens - options.window) : 0;
    const double seen = rows == 1 ? static_cast<double>(tokens) - first : 0;
    double met = 0;
    for (int64_t p = context; p < tokens; ++p) {
      met += static_cast<double>(options.window > 0 ? std::min(options.window, p + 1) : p + 1);
    }
    operations = 4 * met * static_cast<double>(shape.heads * shape.head_dim);
    const double token_bytes =
        2.0 * static_cast<double>(shape.kv_heads) *
        static_cast<double>(shape.head_dim * dtype_bytes(dtype) + (dtype == DType::kI8 ? 4 : 0));
    bytes = token_bytes * seen;
    const int64_t pages_each = (tokens + kPageTokens - 1) / kPageTokens;
    copies = rows > 1 ? 1 : 1 + static_cast<int64_t>(working_set / bytes);
    const Shape pages{copies * pages_each, shape.kv_heads, kPageTokens, shape.head_dim};
    keys = Tensor(dtype, pages);
    values = Tensor(dtype, pages);
    if (dtype == DType::kI8) {
      const Shape scales{copies * pages_each, shape.kv_heads, kPageTokens};
      key_scales = Tensor(DType::kF32, scales);
      value_scales = Tensor(DType::kF32, scales);
    }
    page_ids.resize(static_cast<size_t>(copies * pages_each));
    for (size_t i = 0; i < page_ids.size(); ++i) page_ids[i] = static_cast<int32_t>(i);
    std::shuffle(page_ids.begin(), page_ids.end(), std::minstd_rand(7));
    for (int64_t s = 0; s < copies; ++s) {
      sequences.push_back({0, rows, context,
                           std::span(page_ids).subspan(static_cast<size_t>(s * pages_each),
                                                       static_cast<size_t>(pages_each))});
    }
    const Tensor kv = random_tensor({tokens, shape.kv_heads, shape.head_dim}, 2);
    ThreadPool pool({.num_threads = 1});
    Stream stream(pool);
    for (const SequenceRows& s : sequences) {
      const SequenceRows all{0, tokens, 0, s.pages};
      write_kv(stream, kv, kv, {&all, 1}, cache());
    }
  }

  PagedKv cache() const {
    PagedKv kv{keys, values};
#ifndef BRAID_BENCH_WITHOUT_SCALES
    if (dtype == DType::kI8) kv.key_scales = key_scales, kv.value_scales = value_scales;
#endif
    return kv;
  }

  double seconds_of_call(Stream& stream, Workspace& workspace) {
    const double start = now();
    int calls = 0;
    double spent = 0;
    do {
      attention(stream, workspace, q, cache(), {&sequences[next++ % sequences.size()], 1}, options,
                out);
      ++calls;
    } while ((spent = now() - start) < 0.03);
    return spent / calls;
  }

  const char* name;
  DType dtype;
  int64_t rows, context;
  AttentionOptions options;
  Tensor q, out, keys, values, key_scales, value_scales;
  std::vector<int32_t> page_ids;
  std::vector<SequenceRows> sequences;
  int64_t copies = 1;
  size_t next = 0;
  double operations = 0, bytes = 0;
  double best = 1e30;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> kinds = {"f32", "bf16"};
  std::string filter;
  int rounds = 7, threads = 1;
  int64_t working_set_mib = 96;
  std::vector<int64_t> prefill = {0, 2048}, decode = {4096, 16384};
  CLI::App app("Speed of attention");
  app.add_option("--kv", kinds)->delimiter(',')->capture_default_str();
  app.add_option("--filter", filter);
  app.add_option("--rounds", rounds)->capture_default_str();
  app.add_option("--threads", threads)->capture_default_str();
  app.add_option("--prefill", prefill, "Tokens before 512 new ones")->delimiter(',');
  app.add_option("--decode", decode, "Tokens before one new one")->delimiter(',');
  app.add_option("--working-set-mib", working_set_mib, "Keys and values read in turn in decode")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  ThreadPool pool({.num_threads = threads});
  Stream stream(pool);
  Workspace workspace(size_t{1} << 30);
  std::printf("%s, %d threads\n", std::string(isa_name(active_isa())).c_str(), threads);
  struct Step {
    int64_t rows, context;
  };
  std::vector<Step> steps;
  for (const int64_t context : prefill) steps.push_back({512, context});
  for (const int64_t context : decode) steps.push_back({1, context});
  for (const Shape4& shape : kShapes) {
    std::vector<std::unique_ptr<Case>> cases;
    for (const std::string& kind : kinds) {
      const DType dtype = kind == "f32" ? DType::kF32 : kind == "bf16" ? DType::kBF16 : DType::kI8;
      for (const Step& step : steps) {
        const std::string name = std::string(shape.name) + (step.rows > 1 ? " prefill" : " decode");
        if (name.find(filter) == std::string::npos) continue;
        cases.push_back(std::make_unique<Case>(shape, dtype, step.rows, step.context,
                                               static_cast<double>(working_set_mib << 20)));
      }
    }
    for (int round = 0; round < rounds; ++round) {
      for (auto& c : cases) c->best = std::min(c->best, c->seconds_of_call(stream, workspace));
    }
    for (const auto& c : cases) {
      std::printf("%-22s %-5s %s %3ld at %5ld %8.1f us  %6.1f GFLOP/s", c->name,
                  std::string(dtype_name(c->dtype)).c_str(), c->rows > 1 ? "prefill" : "decode ",
                  c->rows, c->context, 1e6 * c->best, 1e-9 * c->operations / c->best);
      if (c->rows == 1) std::printf("  %5.1f GB/s", 1e-9 * c->bytes / c->best);
      std::printf("\n");
    }
    std::fflush(stdout);
  }
}
