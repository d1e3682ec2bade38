// Times of the ops on a CUDA device, as links of chains in CUDA graphs: each link has memory of its
// own to read (caches, states, activations), more than the L2 cache holds together. Prints, per op
// and size, the time of a link beside its floor: bytes at the rate of a plain streaming read of the
// same run, or products at the rate given.
//
//   op_timings [attention|prefill|delta|small|glue]...

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "chain_timer.h"
#include "ops/attention/attention.h"
#include "ops/conv/causal_conv.h"
#include "ops/elementwise/elementwise.h"
#include "ops/fused/delta_step.h"
#include "ops/fused/residual.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/moe/moe.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"
#include "tensor/workspace.h"

namespace braid {
namespace {

constexpr Device kDevice{DeviceKind::kCuda, 0};
constexpr double kProducts = 779e12;  // measured: bfloat16, 8192³

template <typename T>
__global__ void fill_kernel(T* data, int64_t n, uint32_t seed, float scale) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 16, x *= 0x85ebca6bu, x ^= x >> 13, x *= 0xc2b2ae35u, x ^= x >> 16;
    const float u = static_cast<float>(x) * 0x1p-31f - 1;
    data[i] = static_cast<T>(u * scale);
  }
}

Tensor random_tensor(DType dtype, const Shape& shape, float scale = 1) {
  static uint32_t seed = 1;
  Tensor tensor(dtype, shape, kDevice);
  const int64_t n = tensor.view().num_elements();
  if (dtype == DType::kF32) {
    fill_kernel<<<1024, 256>>>(tensor.data<float>(), n, ++seed, scale);
  } else {
    fill_kernel<<<1024, 256>>>(static_cast<__nv_bfloat16*>(tensor.view().raw()), n, ++seed, scale);
  }
  BRAID_CUDA_CHECK(cudaDeviceSynchronize());
  return tensor;
}

__global__ void __launch_bounds__(1024) read_kernel(const uint4* data, int64_t n, uint32_t* sum) {
  uint32_t total = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(data + i + j * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) total += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (total == 1) *sum = total;
}

class Bench {
 public:
  Bench() : pool_({.num_threads = 1}), stream_(pool_, kDevice) {}

  Stream& stream() { return stream_; }
  Workspace& workspace() { return workspace_; }

  // Of a link, in seconds.
  double time(int count, const std::function<void(int)>& link) {
    return link_seconds(stream_, count, {.unmeasured = 2, .measured = 6}, link);
  }

  // The same of an op that lets the next one begin at once: as in layers it comes behind one that
  // does not, whose time is taken off.
  double time_behind(int count, const std::function<void(int)>& link) {
    const Tensor x = random_tensor(DType::kF32, {1, 64}), y = random_tensor(DType::kF32, {1, 64});
    const auto in_front = [&] { rms_norm(stream_, x, TensorView(), 1e-6f, y); };
    const double both = time(count, [&](int i) {
      in_front();
      link(i);
    });
    return both - time(count, [&](int) { in_front(); });
  }

  void measure_reads() {
    const size_t bytes = size_t{4} << 30;
    const Tensor data = random_tensor(DType::kF32, {static_cast<int64_t>(bytes / 4)});
    const Tensor sum(DType::kI32, {1}, kDevice);
    double best = 0;
    for (const int grid : {132, 264}) {
      const double seconds = time(4, [&](int) {
        read_kernel<<<grid, 1024, 0, stream_.cuda().handle()>>>(
            static_cast<const uint4*>(data.view().raw()), static_cast<int64_t>(bytes / 16),
            reinterpret_cast<uint32_t*>(sum.view().raw()));
      });
      best = std::max(best, static_cast<double>(bytes) / seconds);
    }
    rate_ = best;
    std::printf("read rate %.2f TB/s\n", rate_ / 1e12);
  }

  void report(const std::string& name, double seconds, double bytes, double operations = 0) {
    const double memory = bytes / rate_, arithmetic = operations / kProducts;
    const double floor = std::max(memory, arithmetic);
    std::printf("%-52s %9.2f us  floor %8.2f us  x%.2f", name.c_str(), seconds * 1e6, floor * 1e6,
                seconds / floor);
    if (operations > 0) std::printf("  %6.1f TFLOP/s", operations / seconds / 1e12);
    if (arithmetic < memory) std::printf("  %6.2f TB/s", bytes / seconds / 1e12);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  ThreadPool pool_;
  Stream stream_;
  Workspace workspace_{size_t{4} << 30, kDevice};
  double rate_ = 4.5e12;
};

struct Heads {
  const char* name;
  int64_t heads, kv_heads, dim, window;
};

// `rows` new rows each of `batch` sequences, after context − rows tokens.
void time_attention(Bench& bench, const Heads& h, int64_t batch, int64_t context, int64_t rows) {
  constexpr int64_t kPage = 32;
  const int64_t pages = (context + kPage - 1) / kPage;
  const int64_t seen = h.window > 0 ? std::min(context, h.window) : context;
  const double bytes = 2.0 * 2 * static_cast<double>(batch * h.kv_heads * seen * h.dim);
  const double store = 2.0 * 2 * static_cast<double>(batch * h.kv_heads * pages * kPage * h.dim);
  const int layers = static_cast<int>(std::clamp(200e6 / bytes, 2.0, 24.0));
  if (store * layers > 60e9) return;
  std::vector<Tensor> keys, values;
  for (int i = 0; i < layers; ++i) {
    for (auto* list : {&keys, &values}) {
      list->push_back(random_tensor(DType::kBF16, {batch * pages, h.kv_heads, kPage, h.dim}));
    }
  }
  std::vector<int32_t> ids(batch * pages);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
  std::vector<SequenceRows> sequences;
  for (int64_t s = 0; s < batch; ++s) {
    sequences.push_back({.first_row = s * rows,
                         .num_rows = rows,
                         .first_position = context - rows,
                         .pages = std::span<const int32_t>(ids).subspan(s * pages, pages)});
  }
  const Tensor q = random_tensor(DType::kF32, {batch * rows, h.heads, h.dim});
  const Tensor out(DType::kF32, q.shape(), kDevice);
  const double seconds = bench.time(layers, [&](int i) {
    Workspace::Scope scope(bench.workspace());
    attention(bench.stream(), bench.workspace(), q, {keys[i], values[i]}, sequences,
              {.scale = 0.06f, .window = h.window}, out);
  });
  double pairs = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t keys_seen = context - rows + r + 1;
    pairs += static_cast<double>(h.window > 0 ? std::min(keys_seen, h.window) : keys_seen);
  }
  const double operations =
      rows > 1 ? 4.0 * pairs * static_cast<double>(batch * h.heads * h.dim) : 0;
  bench.report(std::string(h.name) + ", batch " + std::to_string(batch) + ", context " +
                   std::to_string(context) + ", rows " + std::to_string(rows),
               seconds, bytes, operations);
}

const Heads kHeads[] = {{"16 heads, 8 KV x 256, window 1024", 16, 8, 256, 1024},
                        {"16 heads, 2 KV x 512", 16, 2, 512, 0},
                        {"16 heads, 2 KV x 256", 16, 2, 256, 0}};

void attention_decode(Bench& bench) {
  for (const Heads& h : kHeads) {
    for (const int64_t batch : {1, 8, 32}) {
      for (const int64_t context : {256, 4096, 32768}) time_attention(bench, h, batch, context, 1);
    }
  }
  time_attention(bench, kHeads[2], 8, 4096, 4);
}

void attention_prefill(Bench& bench) {
  for (const Heads& h : kHeads) {
    time_attention(bench, h, 8, 256, 256);
    time_attention(bench, h, 1, 4096, 4096);
  }
}

void time_delta(Bench& bench, int64_t batch, int64_t rows) {
  constexpr int64_t kKeyHeads = 16, kValueHeads = 32, kDim = 128, kWidth = 4;
  constexpr int64_t kChannels = (2 * kKeyHeads + kValueHeads) * kDim;
  const int64_t tokens = batch * rows;
  const double state = 4.0 * static_cast<double>(batch * kValueHeads * kDim * kDim);
  const int layers = static_cast<int>(std::clamp(400e6 / state, 2.0, 36.0));
  std::vector<Tensor> states, kept;
  for (int i = 0; i < layers; ++i) {
    states.push_back(random_tensor(DType::kF32, {batch, kValueHeads, kDim, kDim}));
    kept.push_back(random_tensor(DType::kF32, {batch, kWidth - 1, kChannels}));
  }
  const Tensor raw = random_tensor(DType::kF32, {tokens, kChannels});
  const Tensor weight = random_tensor(DType::kF32, {kChannels, kWidth});
  const Tensor mixed = random_tensor(DType::kF32, {tokens, kChannels});
  const Tensor a = random_tensor(DType::kF32, {tokens, kValueHeads}, 4);
  const Tensor b = random_tensor(DType::kF32, {tokens, kValueHeads}, 2);
  const Tensor rate = random_tensor(DType::kF32, {kValueHeads}, 0.0f);
  const Tensor bias = random_tensor(DType::kF32, {kValueHeads});
  const Tensor out(DType::kF32, {tokens, kValueHeads, kDim}, kDevice);
  std::vector<RecurrentRows> sequences;
  for (int64_t s = 0; s < batch; ++s) {
    sequences.push_back({.first_row = s * rows, .num_rows = rows, .slot = static_cast<int32_t>(s)});
  }
  const TensorView m = mixed;
  const GatedDeltaInputs inputs{
      .q = m.columns(0, kKeyHeads * kDim).reshape({tokens, kKeyHeads, kDim}),
      .k = m.columns(kKeyHeads * kDim, kKeyHeads * kDim).reshape({tokens, kKeyHeads, kDim}),
      .v = m.columns(2 * kKeyHeads * kDim, kValueHeads * kDim).reshape({tokens, kValueHeads, kDim}),
      .b = b,
      .a = a,
      .rate = rate,
      .dt_bias = bias};
  const std::string size = ", batch " + std::to_string(batch) + ", rows " + std::to_string(rows);
  const double rows_bytes = 4.0 * static_cast<double>(tokens * (kChannels + kValueHeads * kDim));
  double seconds = bench.time(layers, [&](int i) {
    RecurrentLayer layer;
    layer.states = states[i];
    Workspace::Scope scope(bench.workspace());
    gated_delta(bench.stream(), bench.workspace(), inputs, layer, sequences, {.rounded = true},
                out);
  });
  bench.report("gated_delta" + size, seconds, 2 * state + rows_bytes);
  seconds = bench.time(layers, [&](int i) {
    RecurrentLayer layer;
    layer.conv_rows = kept[i];
    causal_conv_silu(bench.stream(), raw, weight, layer, sequences, mixed);
  });
  bench.report("causal_conv_silu" + size, seconds,
               8.0 * static_cast<double>(tokens * kChannels) +
                   8.0 * static_cast<double>(batch * 3 * kChannels));
}

void gated_delta_rows(Bench& bench) {
  for (const int64_t batch : {1, 8, 32}) time_delta(bench, batch, 1);
  time_delta(bench, 8, 4);
  time_delta(bench, 8, 256);
  time_delta(bench, 1, 4096);
}

void small_ops(Bench& bench, int64_t tokens) {
  constexpr int kLinks = 100;
  const std::string suffix = ", " + std::to_string(tokens) + " tokens";
  Stream& stream = bench.stream();
  const double t = static_cast<double>(tokens);
  const Tensor x = random_tensor(DType::kF32, {tokens, 2816});
  const Tensor y = random_tensor(DType::kF32, {tokens, 2816});
  const Tensor weight = random_tensor(DType::kF32, {2816});
  const auto time = [&](const char* name, double bytes, const std::function<void()>& op) {
    const double seconds = bench.time(kLinks, [&](int) { op(); });
    bench.report(name + suffix, seconds, bytes);
  };
  time("rms_norm 2816", 8 * t * 2816, [&] { rms_norm(stream, x, weight, 1e-6f, y); });
  time("add_rms_norm 2816", 12 * t * 2816, [&] { add_rms_norm(stream, x, weight, 1e-6f, y); });
  const Tensor heads = random_tensor(DType::kF32, {tokens, 16, 256});
  const Tensor head_weight = random_tensor(DType::kF32, {256});
  time("rms_norm 16 x 256", 8 * t * 16 * 256,
       [&] { rms_norm(stream, heads, head_weight, 1e-6f, heads); });
  const Tensor gates = random_tensor(DType::kF32, {tokens, 2 * 2112});
  const Tensor activated = random_tensor(DType::kF32, {tokens, 2112});
  time("gelu_tanh_mul 2112", 12 * t * 2112, [&] {
    gelu_tanh_mul(stream, gates.view().columns(0, 2112), gates.view().columns(2112, 2112),
                  activated);
  });
  std::vector<int32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 100);
  const Tensor frequencies = random_tensor(DType::kF32, {128});
  const Tensor cos(DType::kF32, {tokens, 128}, kDevice), sin(DType::kF32, {tokens, 128}, kDevice);
  time("rope_tables 128", 8 * t * 128,
       [&] { rope_tables(stream, positions, frequencies, cos, sin); });
  time("rope 16 x 256", 8 * t * 16 * 256, [&] { rope(stream, heads, cos, sin, 128); });

  const Tensor k = random_tensor(DType::kF32, {tokens, 8, 256});
  const int64_t pages = tokens;
  const Tensor keys(DType::kBF16, {pages, 8, 32, 256}, kDevice);
  const Tensor values(DType::kBF16, keys.shape(), kDevice);
  std::vector<int32_t> ids(pages);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<SequenceRows> sequences;
  for (int64_t i = 0; i < tokens; ++i) {
    sequences.push_back({.first_row = i,
                         .num_rows = 1,
                         .first_position = 5,
                         .pages = std::span<const int32_t>(ids).subspan(i, 1)});
  }
  time("write_kv 8 x 256", 12 * t * 8 * 256, [&] {
    write_kv(stream, k, k, sequences, {keys, values});
  });

  for (const auto& [num_experts, choices] : {std::pair{128, 8}, std::pair{512, 10}}) {
    const Tensor logits = random_tensor(DType::kF32, {tokens, num_experts}, 3);
    const Tensor experts(DType::kI32, {tokens, choices}, kDevice);
    const Tensor weights(DType::kF32, {tokens, choices}, kDevice);
    const std::string of = " " + std::to_string(choices) + " of " + std::to_string(num_experts);
    time(("top_k_experts" + of).c_str(), 4 * t * num_experts,
         [&] { top_k_experts(stream, logits, TensorView(), experts, weights); });
    time(("route_to_experts" + of).c_str(), 4 * t * num_experts, [&] {
      Workspace::Scope again(bench.workspace());
      route_to_experts(stream, bench.workspace(), logits, TensorView(), experts, weights);
    });
    Workspace::Scope scope(bench.workspace());
    const ExpertGroups groups = group_by_expert(stream, bench.workspace(), experts, num_experts);
    time(("group_by_expert" + of).c_str(), 12 * t * choices, [&] {
      Workspace::Scope again(bench.workspace());
      group_by_expert(stream, bench.workspace(), experts, num_experts);
    });
    const Tensor expert_out = random_tensor(DType::kF32, {tokens * choices, 2816});
    time(("combine_experts" + of).c_str(), 4 * t * 2816 * (choices + 1),
         [&] { combine_experts(stream, expert_out, groups, experts, weights, x); });
    const Tensor sorted(DType::kF32, {tokens * choices, 2816}, kDevice);
    time(("gather_rows" + of).c_str(), 8 * t * choices * 2816,
         [&] { gather_rows(stream, x, groups.tokens, sorted); });
  }
}

// Products of rows × cols of bfloat16, a matrix of its own for each link.
struct SmallMatrices {
  SmallMatrices(int64_t rows, int64_t cols, int count) {
    for (int i = 0; i < count; ++i) {
      tensors.push_back(random_tensor(DType::kBF16, {rows, cols}, 0.05f));
      Weight w{.format = &quant_format(FormatId::kBF16), .shape = {rows, cols}};
      w.data = static_cast<const std::byte*>(tensors.back().view().raw());
      w.device = kDevice;
      weights.push_back(w);
    }
  }
  std::vector<Tensor> tensors;
  std::vector<Weight> weights;
};

void time_linear(Bench& bench, int64_t rows, int64_t cols, int64_t tokens) {
  constexpr int kLinks = 48;
  const SmallMatrices matrices(rows, cols, kLinks);
  const Tensor x = random_tensor(DType::kF32, {tokens, cols});
  const Tensor y(DType::kF32, {tokens, rows}, kDevice);
  Workspace::Scope scope(bench.workspace());
  const LinearInput input =
      prepare_linear_input(bench.stream(), bench.workspace(), x, ActivationPrecision::kBF16);
  const double seconds =
      bench.time(kLinks, [&](int i) { linear(bench.stream(), matrices.weights[i], input, y); });
  bench.report("linear " + std::to_string(rows) + " x " + std::to_string(cols) + ", tokens " +
                   std::to_string(tokens),
               seconds, 2.0 * static_cast<double>(rows * cols));
}

// The end of a layer with k of num_experts experts, and the norm of the next one.
void time_sums(Bench& bench, int64_t tokens, int64_t width, int64_t k, int64_t num_experts,
               bool shared_expert) {
  constexpr int kLinks = 48;
  Stream& stream = bench.stream();
  Workspace& workspace = bench.workspace();
  Workspace::Scope scope(workspace);
  const Tensor logits = random_tensor(DType::kF32, {tokens, num_experts}, 3);
  const Tensor experts(DType::kI32, {tokens, k}, kDevice);
  const Tensor weights(DType::kF32, {tokens, k}, kDevice);
  const ExpertGroups groups =
      route_to_experts(stream, workspace, logits, TensorView(), experts, weights);
  const SmallMatrices gates(1, width, kLinks);
  const Tensor x = random_tensor(DType::kF32, {tokens, width});
  const Tensor norm = random_tensor(DType::kF32, {width});
  const LinearInput gate_input =
      prepare_linear_input(stream, workspace, x, ActivationPrecision::kBF16);
  std::vector<Tensor> rows, beside;
  for (int i = 0; i < kLinks; ++i) {
    rows.push_back(random_tensor(DType::kF32, {tokens * k, width}));
    beside.push_back(random_tensor(DType::kF32, {tokens, width}));
  }
  const InputNorm norms[] = {{norm, 1e-6f, {ActivationPrecision::kBF16, {}}}};
  const double seconds = bench.time_behind(kLinks, [&](int i) {
    Workspace::Scope again(workspace);
    LinearInput inputs[1];
    const ExpertRows routed{rows[i], groups, experts, weights};
    if (shared_expert) {
      add_experts(stream, workspace, routed, {beside[i], gates.weights[i], gate_input}, x, norms,
                  inputs);
    } else {
      add_dense_and_experts(stream, workspace, routed, {norm, norm, 1e-6f},
                            {.y = beside[i], .norm = norm, .factor = 0.5f}, x, norms, inputs);
    }
  });
  const double bytes = static_cast<double>(tokens * width) * (4.0 * static_cast<double>(k) + 14);
  bench.report(std::string(shared_expert ? "add_experts " : "add_dense_and_experts ") +
                   std::to_string(k) + " of " + std::to_string(num_experts) + ", tokens " +
                   std::to_string(tokens),
               seconds, bytes);
}

void time_delta_step(Bench& bench, int64_t batch) {
  constexpr int64_t kKeyHeads = 16, kValueHeads = 32, kDim = 128, kWidth = 4, kHidden = 2048;
  constexpr int64_t kChannels = (2 * kKeyHeads + kValueHeads) * kDim;
  const double state = 4.0 * static_cast<double>(batch * kValueHeads * kDim * kDim);
  const int layers = static_cast<int>(std::clamp(400e6 / state, 3.0, 36.0));
  std::vector<Tensor> states, kept;
  for (int i = 0; i < layers; ++i) {
    states.push_back(random_tensor(DType::kF32, {batch, kValueHeads, kDim, kDim}));
    kept.push_back(random_tensor(DType::kF32, {batch, kWidth - 1, kChannels}));
  }
  const SmallMatrices b(kValueHeads, kHidden, layers), a(kValueHeads, kHidden, layers);
  const Tensor raw = random_tensor(DType::kF32, {batch, kChannels});
  const Tensor z = random_tensor(DType::kF32, {batch, kValueHeads * kDim});
  const Tensor x = random_tensor(DType::kF32, {batch, kHidden});
  const Tensor conv = random_tensor(DType::kF32, {kChannels, kWidth});
  const Tensor rate = random_tensor(DType::kF32, {kValueHeads}, 0.0f);
  const Tensor bias = random_tensor(DType::kF32, {kValueHeads});
  const Tensor norm = random_tensor(DType::kF32, {kDim});
  std::vector<RecurrentRows> sequences;
  for (int64_t s = 0; s < batch; ++s) {
    sequences.push_back({.first_row = s, .num_rows = 1, .slot = static_cast<int32_t>(s)});
  }
  Workspace::Scope scope(bench.workspace());
  const LinearInput input =
      prepare_linear_input(bench.stream(), bench.workspace(), x, ActivationPrecision::kBF16);
  const double seconds = bench.time_behind(layers, [&](int i) {
    RecurrentLayer layer;
    layer.states = states[i];
    layer.conv_rows = kept[i];
    Workspace::Scope again(bench.workspace());
    const DeltaStepCall call{.raw = raw,
                             .conv = conv,
                             .z = z,
                             .x = input,
                             .b_weight = b.weights[i],
                             .a_weight = a.weights[i],
                             .rate = rate,
                             .dt_bias = bias,
                             .norm = norm,
                             .key_heads = kKeyHeads,
                             .key_dim = kDim,
                             .value_heads = kValueHeads,
                             .value_dim = kDim,
                             .rounding = {ActivationPrecision::kBF16, {}}};
    BRAID_CHECK(delta_step(bench.stream(), bench.workspace(), call, layer, sequences).has_value(),
                "a delta step of {} sequences was not done", batch);
  });
  bench.report("delta_step, batch " + std::to_string(batch), seconds,
               2 * state + 4.0 * static_cast<double>(batch * 2 * kChannels));
}

void glue(Bench& bench) {
  for (const int64_t tokens : {1, 8, 32, 64}) {
    for (const auto& [rows, cols] : {std::pair{512, 2048}, std::pair{128, 2816}}) {
      time_linear(bench, rows, cols, tokens);
    }
    for (const auto& [num_experts, k] : {std::pair{128, 8}, std::pair{512, 10}}) {
      const Tensor logits = random_tensor(DType::kF32, {tokens, num_experts}, 3);
      const Tensor experts(DType::kI32, {tokens, k}, kDevice);
      const Tensor weights(DType::kF32, {tokens, k}, kDevice);
      const double seconds = bench.time(100, [&](int) {
        Workspace::Scope again(bench.workspace());
        route_to_experts(bench.stream(), bench.workspace(), logits, TensorView(), experts, weights);
      });
      bench.report("route_to_experts " + std::to_string(k) + " of " + std::to_string(num_experts) +
                       ", tokens " + std::to_string(tokens),
                   seconds, 4.0 * static_cast<double>(tokens * num_experts));
    }
    time_sums(bench, tokens, 2048, 10, 512, true);
    time_sums(bench, tokens, 2816, 8, 128, false);
    if (tokens <= 16) time_delta_step(bench, tokens);
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  const std::vector<std::string> parts(argv + 1, argv + argc);
  for (const std::string& part : parts) {
    constexpr const char* kParts[] = {"attention", "prefill", "delta", "small", "glue"};
    if (std::find(std::begin(kParts), std::end(kParts), part) != std::end(kParts)) continue;
    std::fprintf(stderr, "%s: not one of attention, prefill, delta, small, glue\n", part.c_str());
    return 2;
  }
  const auto wanted = [&](const char* name) {
    return parts.empty() || std::find(parts.begin(), parts.end(), name) != parts.end();
  };
  braid::Bench bench;
  bench.measure_reads();
  if (wanted("small")) {
    for (const int64_t tokens : {1, 8, 2048}) braid::small_ops(bench, tokens);
  }
  if (wanted("delta")) braid::gated_delta_rows(bench);
  if (wanted("glue")) braid::glue(bench);
  if (wanted("prefill")) braid::attention_prefill(bench);
  if (wanted("attention")) braid::attention_decode(bench);
  return 0;
}
