// Times of the CUDA products at the sizes of models: chains of one product on rotating weights, as
// CUDA graphs with programmatic edges. Every line has the time of a link and its share of the rate
// at which this machine reads, or of its bfloat16 rate, measured in the same run.
//
//   cuda_linear_bench [few | plans | tile-plans | grouped | many | mlps | library]... [--formats
//   A,B]
//   [--models A,B]
//       [--tokens N,N]                                   (all of them by default)
//       [--codes yes]                                    (int8 inputs for w8c)

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench_data.cuh"
#include "chain_timer.h"
#include "ops/fused/gated_mlps.h"
#include "ops/linear/cuda/few_tiles.cuh"
#include "ops/linear/cuda/few_tokens.cuh"
#include "ops/linear/linear.h"
#include "quant/device_tiles.h"
#include "tensor/buffer.h"
#include "tensor/cuda/device_memory.h"

namespace {

using namespace braid;
using namespace braid::cuda;

constexpr size_t kPoolBytes = size_t{4} << 30;

struct Machine {
  ThreadPool pool{{.num_threads = 1}};
  Stream stream{pool, Device{DeviceKind::kCuda, 0}};
  Buffer weights{kPoolBytes, stream.device()};
  Buffer x{size_t{256} << 20, stream.device()};
  Buffer y{size_t{512} << 20, stream.device()};
  Buffer offsets{4096, stream.device()};
  double read_rate = 0;  // bytes a second
  double bf16_rate = 0;  // operations a second
};

// Microseconds of a link; link(i) queues the i-th.
double time_chain(Machine& m, int links, const std::function<void(int)>& link) {
  return 1e6 * link_seconds(m.stream, links, {1, 7}, link);
}

struct Problem {
  FormatId format;
  int64_t experts;  // 0: one matrix
  int64_t rows, cols, tokens;
  bool tiles = false;

  const QuantFormat& quant() const {
    const QuantFormat& in_file = quant_format(format);
    return tiles ? *tile_format(in_file, cols) : in_file;
  }
  int64_t matrix_bytes() const { return rows * quant().row_bytes(cols); }
  int64_t bytes() const { return std::max<int64_t>(experts, 1) * matrix_bytes(); }
  int links() const {
    return static_cast<int>(
        std::clamp<int64_t>(static_cast<int64_t>(kPoolBytes / 2) / bytes(), 2, 96));
  }
};

// What the command line leaves of formats, models and numbers of tokens.
struct Choices {
  std::vector<std::string> formats, models, tokens, codes;

  static bool among(const std::vector<std::string>& chosen, std::string_view name) {
    return chosen.empty() || std::find(chosen.begin(), chosen.end(), name) != chosen.end();
  }
  bool has_format(FormatId id) const { return among(formats, quant_format(id).name); }
  bool has_model(std::string_view name) const { return among(models, name); }
  std::vector<int64_t> token_counts(std::initializer_list<int64_t> usual) const {
    if (tokens.empty()) return usual;
    std::vector<int64_t> counts;
    for (const std::string& count : tokens) counts.push_back(std::stoll(count));
    return counts;
  }
};
Choices choices;

LinearInput make_input(Machine& m, int64_t tokens, int64_t cols, FormatId format) {
  const Device device = m.stream.device();
  LinearInput input;
  input.precision = ActivationPrecision::kBF16;
  input.x = TensorView(m.x.data(), DType::kF32, {tokens, cols}, device);
  if (format != FormatId::kW8C || choices.codes.empty()) {
    input.packed = TensorView(m.x.data(), DType::kBF16, {tokens, cols}, device);
    return input;
  }
  input.precision = ActivationPrecision::kInt8;
  input.token_codes = TensorView(m.x.data(), DType::kI8, {tokens, cols}, device);
  input.token_packed = input.token_codes;
  input.token_scales = TensorView(m.x.data() + ceil_divide<int64_t>(tokens * cols, 16) * 16,
                                  DType::kF32, {tokens}, device);
  return input;
}

// Link i of a problem's chain, as the op is called.
void run_link(Machine& m, const Problem& p, int i) {
  Weight w;
  w.format = &p.quant();
  w.shape = p.experts > 0 ? Shape{p.experts, p.rows, p.cols} : Shape{p.rows, p.cols};
  w.data = m.weights.data() + i % p.links() * p.bytes();
  const Device device = m.stream.device();
  const LinearInput input = make_input(m, p.tokens, p.cols, p.format);
  const TensorView y(m.y.data(), DType::kF32, {p.tokens, p.rows}, device);
  if (p.experts == 0) return linear(m.stream, w, input, y);
  grouped_linear(m.stream, w, input,
                 IndexList({reinterpret_cast<const int32_t*>(m.offsets.data()),
                            static_cast<size_t>(p.experts + 1)},
                           device),
                 y);
}

Products make_products(Machine& m, const Problem& p, int link) {
  Products products{};
  products.format = p.format;
  products.weights =
      reinterpret_cast<const uint8_t*>(m.weights.data()) + link % p.links() * p.bytes();
  products.row_bytes = p.quant().row_bytes(p.cols);
  products.matrix_bytes = p.matrix_bytes();
  products.rows = static_cast<int>(p.rows);
  products.cols = static_cast<int>(p.cols);
  products.packed = reinterpret_cast<const uint16_t*>(m.x.data());
  products.packed_stride = p.cols;
  products.y = reinterpret_cast<float*>(m.y.data());
  products.y_stride = p.rows;
  products.tokens = static_cast<int>(p.tokens);
  products.experts = static_cast<int>(p.experts);
  products.offsets = reinterpret_cast<const int32_t*>(m.offsets.data());
  return products;
}

struct Format {
  FormatId format;
  bool tiles;
};
constexpr Format kLayouts[] = {{FormatId::kBF16, false}, {FormatId::kW4G128, true},
                               {FormatId::kW4G64, true}, {FormatId::kW8C, true},
                               {FormatId::kQ8_0, true},  {FormatId::kQ4_0, true},
                               {FormatId::kQ8_0, false}, {FormatId::kQ4_0, false}};

struct Size {
  const char* model;
  int64_t rows, cols;
};
constexpr Size kSizes[] = {
    {"26b", 8192, 2816},   {"26b", 2816, 4096},  {"26b", 4224, 2816}, {"26b", 2816, 2112},
    {"26b", 262144, 2816}, {"12b", 8192, 3840},  {"12b", 3840, 4096}, {"12b", 30720, 3840},
    {"12b", 3840, 15360},  {"80b", 12288, 2048}, {"80b", 2048, 4096}, {"80b", 9216, 2048},
    {"80b", 1024, 2048},
};

void few(Machine& m) {
  std::printf("\nfew tokens: us of a link (share of the read rate)\n");
  for (const auto [format, tiles] : kLayouts) {
    if (!choices.has_format(format)) continue;
    for (const Size& size : kSizes) {
      if (!choices.has_model(size.model)) continue;
      if (tiles && tile_format(quant_format(format), size.cols) == nullptr) continue;
      const Problem one{format, 0, size.rows, size.cols, 1, tiles};
      std::printf("%-12s %s %6ldx%5ld %6.1fMiB", one.quant().name.data(), size.model, size.rows,
                  size.cols, one.bytes() / 1048576.0);
      for (const int64_t tokens : choices.token_counts({1, 5, 8, 10, 16, 32})) {
        const Problem p{format, 0, size.rows, size.cols, tokens, tiles};
        const double us = time_chain(m, p.links(), [&](int i) { run_link(m, p, i); });
        std::printf(" |%2ld %6.1f %3.0f%%", tokens, us,
                    100 * p.bytes() / (us * 1e-6) / m.read_rate);
      }
      std::printf("\n");
    }
  }
}

template <int kRowWarps, int kDepth>
void time_plans(Machine& m, const Problem& p) {
  std::printf("  %d row warps:", kRowWarps);
  const int tiles = static_cast<int>((p.rows + 32 * kRowWarps - 1) / (32 * kRowWarps));
  for (int splits = 1; splits <= 8 && splits * tiles <= 264; ++splits) {
    const double us = time_chain(m, p.links(), [&](int i) {
      launch_few_tokens<BFloat16Chunk, 1, kRowWarps, kDepth>(m.stream, make_products(m, p, i),
                                                             FewTokensPlan{splits});
    });
    std::printf("  %dx %.1f (%.0f)", splits, us, 100 * p.bytes() / (us * 1e-6) / m.read_rate);
  }
  std::printf("\n");
}

void plans(Machine& m) {
  std::printf("\nplans, bf16, 8 tokens: splits, us (%% of the read rate)\n");
  for (const Size& size : kSizes) {
    const Problem p{FormatId::kBF16, 0, size.rows, size.cols, 8};
    std::printf("%ld x %ld, %.1f MiB\n", size.rows, size.cols, p.bytes() / 1048576.0);
    time_plans<1, 4>(m, p);
    time_plans<2, 4>(m, p);
  }
}

template <int kTokenTiles, int kPanels, int kSlots, bool kBulk>
void time_tiles(Machine& m, const Problem& p, const char* what) {
  std::printf("  %s, %d token tiles, %d panels, %d slots:", what, kTokenTiles, kPanels, kSlots);
  for (const int row_warps : {1, 2, 4, 8}) {
    const int64_t tiles = (p.rows + 32 * kPanels * row_warps - 1) / (32 * kPanels * row_warps);
    double best = 0;
    int best_splits = 0;
    for (int splits = 1; splits <= 8; ++splits) {
      const int64_t pieces = (p.cols + 127) / 128;
      if (splits > 1 && (splits * tiles > 264 || pieces / splits < 8 / row_warps)) break;
      if (splits * tiles < 60) continue;
      const double us = time_chain(m, p.links(), [&](int i) {
        Products products = make_products(m, p, i);
        products.tiles = true;
        launch_few_tiles<FormatId::kW4G128, kTokenTiles, kPanels, kSlots, kBulk>(
            m.stream, products, TilesPlan{row_warps, splits, 0});
      });
      if (best_splits == 0 || us < best) best = us, best_splits = splits;
    }
    if (best_splits > 0) {
      std::printf("  %d/%d %.1f (%.0f)", row_warps, best_splits, best,
                  100 * p.bytes() / (best * 1e-6) / m.read_rate);
    }
  }
  std::printf("\n");
}

void tile_plans(Machine& m) {
  std::printf("\nplans, w4g128 tiles: row warps/best splits, us (%% of the read rate)\n");
  for (const Size& size : kSizes) {
    if (!choices.has_model(size.model)) continue;
    if (size.cols % 128 != 0 || size.rows > 100000) continue;
    const Problem p{FormatId::kW4G128, 0, size.rows, size.cols, 8, true};
    const Problem more{FormatId::kW4G128, 0, size.rows, size.cols, 10, true};
    const auto chosen = few_tiles_shape(m.stream, make_products(m, p, 0), 1, 128, 2);
    std::printf("%ld x %ld, %.1f MiB; chosen: %d panels, %d/%d\n", size.rows, size.cols,
                p.bytes() / 1048576.0, chosen.panels, chosen.plan.row_warps, chosen.plan.splits);
    time_tiles<1, 1, 4, true>(m, p, "bulk");
    time_tiles<1, 1, 3, false>(m, p, "by threads");
    time_tiles<1, 2, 4, true>(m, p, "bulk");
    time_tiles<2, 1, 3, true>(m, more, "bulk");
    time_tiles<2, 2, 3, true>(m, more, "bulk");
    time_tiles<2, 1, 5, true>(m, more, "bulk");
  }
}

// Tokens of experts when each of `tokens` picks `picks` different ones at random; experts touched.
int route(Machine& m, int64_t tokens, int picks, int64_t experts) {
  const std::vector<int32_t> offsets = random_offsets(tokens, picks, experts);
  int touched = 0;
  for (size_t e = 1; e < offsets.size(); ++e) touched += offsets[e] > offsets[e - 1] ? 1 : 0;
  copy_to_device(m.offsets.data(), offsets.data(), offsets.size() * 4, 0);
  return touched;
}

void grouped(Machine& m) {
  std::printf("\nexperts: us of a link (share of the read rate, of the bf16 rate)\n");
  struct Group {
    int64_t experts, rows, cols;
    int picks;
  };
  constexpr Group kGroups[] = {
      {128, 1408, 2816, 8}, {128, 2816, 704, 8}, {512, 1024, 2048, 10}, {512, 2048, 512, 10}};
  for (const auto [format, tiles] : kLayouts) {
    if (!choices.has_format(format)) continue;
    for (const Group& g : kGroups) {
      if (!choices.has_model(g.experts == 128 ? "26b" : "80b")) continue;
      if (tiles && tile_format(quant_format(format), g.cols) == nullptr) continue;
      std::printf("%-12s %3ldx%4ldx%4ld",
                  Problem{format, 0, g.rows, g.cols, 1, tiles}.quant().name.data(), g.experts,
                  g.rows, g.cols);
      for (const int64_t tokens : choices.token_counts({1, 8, 32, 2048})) {
        const int touched = route(m, tokens, g.picks, g.experts);
        const Problem p{format, g.experts, g.rows, g.cols, tokens * g.picks, tiles};
        const double us = time_chain(m, std::min(p.links(), 8), [&](int i) { run_link(m, p, i); });
        const double seconds = us * 1e-6;
        std::printf(" |%4ld: %3d %6.1f %3.0f%% %2.0f%%", tokens, touched, us,
                    100.0 * touched * p.matrix_bytes() / seconds / m.read_rate,
                    200.0 * p.tokens * p.rows * p.cols / seconds / m.bf16_rate);
      }
      std::printf("\n");
    }
  }
}

void many(Machine& m) {
  std::printf("\n2048 tokens: us of a link (share of the bf16 rate)\n");
  for (const Size& size : kSizes) {
    if (size.rows > 100000 || !choices.has_model(size.model)) continue;
    std::printf("%6ldx%5ld", size.rows, size.cols);
    for (const auto [format, tiles] : kLayouts) {
      if ((format != FormatId::kBF16 && !tiles) || !choices.has_format(format)) continue;
      if (tiles && tile_format(quant_format(format), size.cols) == nullptr) continue;
      for (const int64_t tokens : choices.token_counts({64, 256, 2048})) {
        const Problem p{format, 0, size.rows, size.cols, tokens, tiles};
        const double us = time_chain(m, std::min(p.links(), 8), [&](int i) { run_link(m, p, i); });
        std::printf(" |%s %ld %6.1f %2.0f%%", p.quant().name.data(), tokens, us,
                    200.0 * tokens * p.rows * p.cols / (us * 1e-6) / m.bf16_rate);
      }
    }
    std::printf("\n");
  }
}

// Whole gated blocks: a dense one, experts, or both at once.
void mlps(Machine& m, const Format& layout) {
  if (!choices.has_format(layout.format)) return;
  std::printf("\ngated blocks, %s: us (share of the read rate)\n",
              quant_format(layout.format).name.data());
  struct Block {
    int64_t hidden, dense, experts, width;
    int picks;
  };
  constexpr Block kBlocks[] = {{2816, 2112, 0, 0, 0},     {2816, 0, 128, 704, 8},
                               {2816, 2112, 128, 704, 8}, {3840, 15360, 0, 0, 0},
                               {2048, 512, 512, 512, 10}, {2048, 0, 512, 512, 10}};
  Workspace workspace(size_t{1} << 30, m.stream.device());
  const Device device = m.stream.device();
  const auto format_of = [&](int64_t cols) -> const QuantFormat* {
    const QuantFormat& in_file = quant_format(layout.format);
    return layout.tiles ? tile_format(in_file, cols) : &in_file;
  };
  for (const Block& b : kBlocks) {
    const QuantFormat* format = format_of(b.hidden);
    if ((b.dense > 0 && format_of(b.dense) == nullptr) ||
        (b.experts > 0 && format_of(b.width) == nullptr)) {
      continue;
    }
    std::printf("hidden %ld, %ld + %ld x %ld:", b.hidden, b.dense, b.experts, b.width);
    for (const int64_t tokens : choices.token_counts({1, 5, 8, 10, 32, 2048})) {
      if (tokens > 32 && b.dense > 0) continue;  // not one kernel
      if (tokens > 2048) continue;               // more than y has room for
      const int touched = b.experts > 0 ? route(m, tokens, b.picks, b.experts) : 0;
      const int64_t pairs = tokens * b.picks;
      const auto block_bytes = [&](int64_t width) {
        return width == 0
                   ? 0
                   : 2 * width * format->row_bytes(b.hidden) + b.hidden * format->row_bytes(width);
      };
      const int64_t dense_bytes = block_bytes(b.dense), expert_bytes = block_bytes(b.width);
      const int64_t link_bytes = dense_bytes + b.experts * expert_bytes;
      const int links = static_cast<int>(
          std::clamp<int64_t>(static_cast<int64_t>(kPoolBytes) / link_bytes, 2, 48));
      const LinearInput input = make_input(m, tokens, b.hidden, layout.format);
      const TensorView dense_out(m.y.data(), DType::kF32, {tokens, b.hidden}, device);
      const TensorView expert_out(m.y.data() + (64 << 20), DType::kF32,
                                  {std::max<int64_t>(pairs, 1), b.hidden}, device);
      // The pairs' tokens: any will do.
      ExpertGroups groups;
      groups.offsets =
          TensorView(m.offsets.data(), DType::kI32, {std::max<int64_t>(b.experts, 1) + 1}, device);
      std::vector<int32_t> rows(static_cast<size_t>(std::max<int64_t>(pairs, 1)));
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i) % tokens;
      copy_to_device(m.y.data() + (400 << 20), rows.data(), rows.size() * 4, 0);
      groups.tokens = TensorView(m.y.data() + (400 << 20), DType::kI32,
                                 {static_cast<int64_t>(rows.size())}, device);
      bool done = true;
      const double us = time_chain(m, links, [&](int link) {
        Workspace::Scope scope(workspace);
        const std::byte* at = m.weights.data() + link % (links - 1) * link_bytes;
        const auto weight = [&](const Shape& shape) {
          Weight w{.format = format, .shape = shape, .data = at};
          at += w.size_bytes();
          return w;
        };
        const Weight none;
        Weight gate, down;
        std::vector<GatedMlpCall> calls;
        if (b.dense > 0) {
          gate = weight({2 * b.dense, b.hidden});
          down = weight({b.hidden, b.dense});
          calls.push_back({Activation::kGeluTanh, &gate, &none, &down, &input, nullptr, dense_out});
        }
        Weight expert_gate, expert_down;
        if (b.experts > 0) {
          expert_gate = weight({b.experts, 2 * b.width, b.hidden});
          expert_down = weight({b.experts, b.hidden, b.width});
          calls.push_back({Activation::kGeluTanh, &expert_gate, &none, &expert_down, &input,
                           &groups, expert_out});
        }
        // Results for many tokens are rounded, as the models ask for.
        if (tokens <= 32 && gated_mlps(m.stream, workspace, calls)) return;
        GatedMlpCall& last = calls.back();
        last.out = TensorView(last.out.raw(), DType::kBF16, last.out.shape(), device);
        done = gated_mlps(m.stream, workspace, calls) && done;
      });
      std::printf(" |%3ld: %6.1f %3.0f%%%s", tokens, us,
                  100 * (dense_bytes + touched * expert_bytes) / (us * 1e-6) / m.read_rate,
                  done ? "" : " REFUSED");
    }
    std::printf("\n");
  }
}

void check_library(cublasStatus_t status) {
  BRAID_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublasLt: {}", cublasLtGetStatusString(status));
}

// A candidate of the library.
struct Timed {
  double us;
  int rank;
  bool operator<(const Timed& other) const { return us < other.us; }
};

// What the library's own choice of an algorithm costs beside the best of its candidates.
void library_choices(Machine& m) {
  std::printf(
      "\nlibrary: us of the first choice, of the best ones (rank: tile, stages, splits of the "
      "columns, reduction, swizzle, inner, cluster)\n");
  const auto library = static_cast<cublasLtHandle_t>(m.stream.cuda().matrix_library());
  const std::span<std::byte> memory = m.stream.cuda().library_workspace();
  const size_t workspace_bytes = memory.size() - (size_t{16} << 20);
  constexpr int kMost = 48;
  for (const Size& size : kSizes) {
    if (size.rows > 100000 || !choices.has_model(size.model)) continue;
    for (const int64_t tokens : choices.token_counts({256, 2048})) {
      const Problem p{FormatId::kBF16, 0, size.rows, size.cols, tokens};
      cublasLtMatmulDesc_t product{};
      cublasLtMatrixLayout_t w{}, x{}, y{};
      cublasLtMatmulPreference_t preference{};
      const cublasOperation_t transposed = CUBLAS_OP_T;
      const auto rows = static_cast<uint64_t>(size.rows), cols = static_cast<uint64_t>(size.cols);
      check_library(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
      check_library(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                   &transposed, sizeof(transposed)));
      check_library(cublasLtMatrixLayoutCreate(&w, CUDA_R_16BF, cols, rows, size.cols));
      check_library(cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, cols, tokens, size.cols));
      check_library(cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, rows, tokens, size.rows));
      check_library(cublasLtMatmulPreferenceCreate(&preference));
      check_library(
          cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace_bytes, sizeof(workspace_bytes)));
      static cublasLtMatmulHeuristicResult_t found[kMost];
      int count = 0;
      check_library(cublasLtMatmulAlgoGetHeuristic(library, product, w, x, y, y, preference, kMost,
                                                   found, &count));
      std::vector<Timed> times;
      double first = 0;
      for (int i = 0; i < count; ++i) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        const float one = 1, zero = 0;
        bool good = true;
        const auto link = [&](int n) {
          const Products products = make_products(m, p, n);
          good = good && cublasLtMatmul(library, product, &one, products.weights, w,
                                        products.packed, x, &zero, products.y, y, products.y, y,
                                        &found[i].algo, memory.data() + (16 << 20), workspace_bytes,
                                        m.stream.cuda().handle()) == CUBLAS_STATUS_SUCCESS;
        };
        const double us = time_chain(m, std::min(p.links(), 8), link);
        if (!good) continue;
        if (i == 0) first = us;
        times.push_back({us, i});
      }
      std::sort(times.begin(), times.end());
      std::printf("%s %6ldx%5ld, %4ld tokens: first %6.1f of %d, %2.0f%%", size.model, size.rows,
                  size.cols, tokens, first, count,
                  200.0 * tokens * p.rows * p.cols / (first * 1e-6) / m.bf16_rate);
      for (size_t k = 0; k < std::min<size_t>(3, times.size()); ++k) {
        const cublasLtMatmulAlgo_t& algorithm = found[times[k].rank].algo;
        std::printf(" | %6.1f %2d:", times[k].us, times[k].rank);
        for (const auto attribute :
             {CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
              CUBLASLT_ALGO_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
              CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID,
              CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID}) {
          int64_t value = 0;
          size_t written = 0;
          cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value),
                                               &written);
          if (written == 0) {
            cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, 4, &written);
          }
          if (written == 0) {
            cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, 2, &written);
          }
          std::printf(" %d", static_cast<int>(value));
        }
      }
      std::printf("\n");
      cublasLtMatmulPreferenceDestroy(preference);
      for (const auto layout : {w, x, y}) cublasLtMatrixLayoutDestroy(layout);
      cublasLtMatmulDescDestroy(product);
    }
  }
}

void measure_ceilings(Machine& m) {
  m.read_rate = measure_read_rate(m.stream, m.weights.data(), kPoolBytes,
                                  reinterpret_cast<uint32_t*>(m.y.data()));
  const Problem p{FormatId::kBF16, 0, 8192, 8192, 8192};
  const double us = time_chain(m, 4, [&](int i) { run_link(m, p, i); });
  m.bf16_rate = 2 * 8192.0 * 8192 * 8192 / (us * 1e-6);
  std::printf("read %.2f TB/s, bf16 %.0f TFLOP/s (8192^3)\n", m.read_rate * 1e-12,
              m.bf16_rate * 1e-12);
}

}  // namespace

int main(int argc, char** argv) {
  Machine m;
  cudaStream_t stream = m.stream.cuda().handle();
  fill_small<<<1024, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(m.weights.data()),
                                       kPoolBytes / 4);
  fill_small<<<1024, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(m.x.data()),
                                       static_cast<int64_t>(m.x.size_bytes() / 4));
  measure_ceilings(m);
  std::vector<std::string> parts;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::string>* list = std::strcmp(argv[i], "--formats") == 0  ? &choices.formats
                                     : std::strcmp(argv[i], "--models") == 0 ? &choices.models
                                     : std::strcmp(argv[i], "--tokens") == 0 ? &choices.tokens
                                     : std::strcmp(argv[i], "--codes") == 0  ? &choices.codes
                                                                             : nullptr;
    if (list == nullptr) {
      parts.push_back(argv[i]);
    } else if (i + 1 < argc) {
      std::istringstream names(argv[++i]);
      for (std::string name; std::getline(names, name, ',');) list->push_back(name);
    }
  }
  const auto wanted = [&](const char* name) { return Choices::among(parts, name); };
  if (wanted("mlps")) {
    for (const Format& layout : kLayouts) {
      if (layout.format == FormatId::kBF16 || layout.tiles) mlps(m, layout);
    }
  }
  if (wanted("few")) few(m);
  if (wanted("grouped")) grouped(m);
  if (wanted("tile-plans")) tile_plans(m);
  if (wanted("library")) library_choices(m);
  if (wanted("many")) many(m);
  if (wanted("plans")) plans(m);
  return 0;
}
