// Attention of one token a sequence where it stands in a layer: products of queries, keys and
// values, attend_heads(), the product of the output, as CUDA graphs of several layers with memory
// of their own. The time of attention is that of the chain less that of the two products alone.
//
//   attend_timings [model]... [--batches N,N] [--contexts N,N]

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "chain_timer.h"
#include "ops/fused/attend_heads.h"
#include "ops/fused/attention_heads.h"
#include "ops/linear/linear.h"
#include "quant/device_tiles.h"
#include "tensor/buffer.h"
#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"
#include "tensor/workspace.h"

namespace braid {
namespace {

constexpr Device kDevice{DeviceKind::kCuda, 0};
constexpr int64_t kPage = 32;
constexpr size_t kWeightBytes = size_t{2} << 30, kCacheBytes = size_t{12} << 30,
                 kInputBytes = 16 << 20;

__global__ void fill_bits(uint32_t* p, int64_t n, uint32_t mask, uint32_t set) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32);
    h ^= h >> 16, h *= 0x85ebca6b, h ^= h >> 13, h *= 0xc2b2ae35, h ^= h >> 16;
    p[i] = (h & mask) | set;
  }
}
// Numbers near one as pairs of bfloat16, which are floats near one, too.
void fill_numbers(void* p, size_t bytes) {
  fill_bits<<<1024, 256>>>(static_cast<uint32_t*>(p), static_cast<int64_t>(bytes / 4), 0x807f807fu,
                           0x3f003f00u);
  BRAID_CUDA_CHECK(cudaDeviceSynchronize());
}
struct Model {
  const char* name;
  FormatId format;
  int64_t hidden, heads, kv_heads, dim, window;
  bool values_from_keys, int8, gated;

  int64_t rows() const {
    return (gated ? 2 : 1) * heads * dim + (values_from_keys ? 1 : 2) * kv_heads * dim;
  }
};
constexpr Model kModels[] = {
    {"12b-local", FormatId::kBF16, 3840, 16, 8, 256, 1024, false, false, false},
    {"12b-global", FormatId::kBF16, 3840, 16, 1, 512, 0, true, false, false},
    {"12b-w4-local", FormatId::kW4G128, 3840, 16, 8, 256, 1024, false, false, false},
    {"12b-w4-global", FormatId::kW4G128, 3840, 16, 1, 512, 0, true, false, false},
    {"26b-local", FormatId::kBF16, 2816, 16, 8, 256, 1024, false, false, false},
    {"26b-global", FormatId::kBF16, 2816, 16, 2, 512, 0, true, false, false},
    {"80b", FormatId::kW8C, 2048, 16, 2, 256, 0, false, true, true},
};

class Bench {
 public:
  Bench() : pool_({.num_threads = 1}), stream_(pool_, kDevice) {
    fill_numbers(weights_.data(), kWeightBytes);
    fill_numbers(caches_.data(), kCacheBytes);
    fill_numbers(x_.data(), kInputBytes);
  }

  // Of a layer, in microseconds.
  double time(int layers, const std::function<void(int)>& layer) {
    return 1e6 * link_seconds(stream_, layers, {.unmeasured = 3, .measured = 11}, layer);
  }

  void measure(const Model& m, int64_t batch, int64_t context) {
    const int64_t pages = context / kPage + 1;
    const QuantFormat& in_file = quant_format(m.format);
    const bool tiles = m.format != FormatId::kBF16;
    const QuantFormat& in_format = tiles ? *tile_format(in_file, m.hidden) : in_file;
    const QuantFormat& out_format = tiles ? *tile_format(in_file, m.heads * m.dim) : in_file;
    const size_t in_bytes = m.rows() * in_format.row_bytes(m.hidden);
    const size_t out_bytes = m.hidden * out_format.row_bytes(m.heads * m.dim);
    const DType stored = m.int8 ? DType::kI8 : DType::kBF16;
    const Shape store{batch * pages, m.kv_heads, kPage, m.dim};
    const size_t store_bytes = store.num_elements() * (m.int8 ? 1 : 2);
    const size_t scale_bytes = m.int8 ? store.num_elements() / m.dim * 4 : 0;
    const size_t layer_cache = 2 * (store_bytes + scale_bytes + 512);
    const int layers = static_cast<int>(
        std::min({size_t{8}, kWeightBytes / (in_bytes + out_bytes), kCacheBytes / layer_cache}));
    if (layers < 2) {
      std::printf("%-14s batch %2ld context %5ld: not measured, two layers of it do not fit\n",
                  m.name, batch, context);
      return;
    }
    std::vector<int32_t> ids(batch * pages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    std::vector<SequenceRows> sequences;
    for (int64_t s = 0; s < batch; ++s) {
      sequences.push_back({.first_row = s,
                           .num_rows = 1,
                           .first_position = context - 1,
                           .pages = std::span<const int32_t>(ids).subspan(s * pages, pages)});
    }
    const auto at = [&](Buffer& buffer, size_t offset, DType dtype, const Shape& shape) {
      return TensorView(buffer.data() + offset, dtype, shape, kDevice);
    };
    const int64_t pairs = m.gated ? m.dim / 8 : m.dim / 2;
    Tensor y(DType::kF32, {batch, m.rows()}, kDevice), out(DType::kF32, {batch, m.hidden}, kDevice);
    Tensor cos(DType::kF32, {batch, pairs}, kDevice), sin(DType::kF32, {batch, pairs}, kDevice);
    Tensor norms(DType::kF32, {2, m.dim}, kDevice);
    for (Tensor* t : {&y, &cos, &sin, &norms}) {
      fill_numbers(t->view().raw(), t->view().num_elements() * 4);
    }
    const HeadOptions heads{.q_norm = norms.view().rows(0, 1).reshape({m.dim}),
                            .k_norm = norms.view().rows(1, 1).reshape({m.dim}),
                            .normed_values = m.values_from_keys,
                            .epsilon = 1e-6f,
                            .cos = cos.view(),
                            .sin = sin.view(),
                            .pair_distance = m.gated ? pairs : m.dim / 2};
    const AttentionOptions attention_options{.scale = 0.06f, .window = m.window};
    const auto weight = [&](const QuantFormat& format, const Shape& shape, size_t offset) {
      Weight w;
      w.format = &format;
      w.shape = shape;
      w.data = weights_.data() + offset;
      return w;
    };
    LinearInput x;
    x.precision = ActivationPrecision::kBF16;
    x.x = at(x_, 0, DType::kF32, {batch, m.hidden});
    x.packed = at(x_, 0, DType::kBF16, {batch, m.hidden});
    const int64_t width = m.heads * m.dim;
    LinearInput fixed = x;
    fixed.x = at(x_, 0, DType::kF32, {batch, width});
    fixed.packed = at(x_, 0, DType::kBF16, {batch, width});
    bool fused = true;
    const auto layer = [&](int i, bool with_attention) {
      Workspace::Scope scope(workspace_);
      linear(stream_, weight(in_format, {m.rows(), m.hidden}, i * (in_bytes + out_bytes)), x,
             y.view());
      LinearInput input = fixed;
      if (with_attention) {
        const size_t cache = i * layer_cache;
        const PagedKv kv{at(caches_, cache, stored, store),
                         at(caches_, cache + store_bytes, stored, store),
                         m.int8 ? at(caches_, cache + 2 * store_bytes, DType::kF32,
                                     {batch * pages, m.kv_heads, kPage})
                                : TensorView(),
                         m.int8 ? at(caches_, cache + 2 * store_bytes + scale_bytes, DType::kF32,
                                     {batch * pages, m.kv_heads, kPage})
                                : TensorView()};
        const auto part = [&](int64_t first, int64_t count) {
          return y.view().columns(first, count * m.dim).reshape({batch, count, m.dim});
        };
        const int64_t after_q = (m.gated ? 2 : 1) * width;
        const TensorView q = part(0, m.heads), k = part(after_q, m.kv_heads);
        const TensorView v =
            m.values_from_keys ? k : part(after_q + m.kv_heads * m.dim, m.kv_heads);
        const auto done = attend_heads(stream_, workspace_,
                                       {q, k, v, heads, attention_options, sequences, kv}, true);
        fused = done.has_value();
        if (done) {
          input = *done;
        } else {
          prepare_heads(stream_, workspace_, q, k, v, heads, sequences, kv);
          const TensorView result = workspace_.take(DType::kF32, {batch, m.heads, m.dim});
          attention(stream_, workspace_, q, kv, sequences, attention_options, result);
        }
      }
      linear(stream_, weight(out_format, {m.hidden, width}, i * (in_bytes + out_bytes) + in_bytes),
             input, out.view());
    };
    const double without = time(layers, [&](int i) { layer(i, false); });
    const double with = time(layers, [&](int i) { layer(i, true); });
    std::printf("%-14s batch %2ld context %5ld: %6.2f us (%s; layer %6.2f, products %6.2f)\n",
                m.name, batch, context, with - without, fused ? "one op" : "ops in turn", with,
                without);
    std::fflush(stdout);
  }

 private:
  ThreadPool pool_;
  Stream stream_;
  Workspace workspace_{size_t{1} << 30, kDevice};
  Buffer weights_{kWeightBytes, kDevice}, caches_{kCacheBytes, kDevice}, x_{kInputBytes, kDevice};
};

std::vector<int64_t> numbers(const std::string& list) {
  std::vector<int64_t> all;
  std::stringstream in(list);
  for (std::string item; std::getline(in, item, ',');) all.push_back(std::stoll(item));
  return all;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  std::vector<std::string> models;
  std::vector<int64_t> batches{1, 10}, contexts{272};
  const auto is_known = [](const std::string& name) {
    return std::any_of(std::begin(braid::kModels), std::end(braid::kModels),
                       [&](const braid::Model& m) { return m.name == name; });
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if ((argument == "--batches" || argument == "--contexts") && i + 1 < argc) {
      (argument == "--batches" ? batches : contexts) = braid::numbers(argv[++i]);
    } else if (is_known(argument)) {
      models.push_back(argument);
    } else {
      std::fprintf(stderr, "%s: not one of --batches N,N, --contexts N,N", argument.c_str());
      for (const braid::Model& m : braid::kModels) std::fprintf(stderr, ", %s", m.name);
      std::fprintf(stderr, "\n");
      return 2;
    }
  }
  braid::Bench bench;
  for (const braid::Model& m : braid::kModels) {
    if (!models.empty() && std::find(models.begin(), models.end(), m.name) == models.end())
      continue;
    for (const int64_t batch : batches) {
      for (const int64_t context : contexts) bench.measure(m, batch, context);
    }
  }
  return 0;
}
