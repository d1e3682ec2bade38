#include "ops/gated_delta/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/gated_delta/chunk_kernels.h"
#include "ops/gated_delta/recurrent_kernels.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

// Tokens that the recurrent form takes in one pass over the state.
constexpr int64_t kRecurrentTokens = 16;

struct Dims {
  int64_t tokens, slots, key_heads, key_dim, value_heads, value_dim;
  int64_t ratio() const { return value_heads / key_heads; }
};

Dims check(const GatedDeltaInputs& in, const RecurrentLayer& layer, const TensorView& out) {
  BRAID_CHECK(in.q.rank() == 3 && in.q.shape() == in.k.shape() && in.v.rank() == 3 &&
                  in.v.dim(0) == in.q.dim(0),
              "q {}, k {}, v {}", to_string(in.q.shape()), to_string(in.k.shape()),
              to_string(in.v.shape()));
  BRAID_CHECK(layer.states.rank() == 4, "states {}", to_string(layer.states.shape()));
  const Dims d{in.q.dim(0), layer.states.dim(0), in.q.dim(1),
               in.q.dim(2), in.v.dim(1),         in.v.dim(2)};
  BRAID_CHECK(d.key_heads > 0 && d.key_dim > 0 && d.value_dim > 0 && d.value_heads > 0 &&
                  d.value_heads % d.key_heads == 0,
              "{} key heads, {} value heads", d.key_heads, d.value_heads);
  const Shape gates{d.tokens, d.value_heads};
  BRAID_CHECK(in.a.shape() == gates && in.b.shape() == gates, "a {}, b {}", to_string(in.a.shape()),
              to_string(in.b.shape()));
  const Shape heads{d.value_heads};
  BRAID_CHECK(in.rate.shape() == heads && in.dt_bias.shape() == heads, "rate {}, dt_bias {}",
              to_string(in.rate.shape()), to_string(in.dt_bias.shape()));
  BRAID_CHECK(out.shape() == in.v.shape(), "v {}, out {}", to_string(in.v.shape()),
              to_string(out.shape()));
  BRAID_CHECK(layer.states.shape() == Shape({d.slots, d.value_heads, d.value_dim, d.key_dim}),
              "states {}", to_string(layer.states.shape()));
  const int64_t logged = layer.max_logged_tokens();
  if (logged > 0) {
    BRAID_CHECK(
        layer.logged_keys.shape() == Shape({d.slots, logged, d.key_heads, d.key_dim}) &&
            layer.logged_updates.shape() == Shape({d.slots, logged, d.value_heads, d.value_dim}) &&
            layer.logged_decays.shape() == Shape({d.slots, logged, d.value_heads}),
        "log of {}, {}, {}", to_string(layer.logged_keys.shape()),
        to_string(layer.logged_updates.shape()), to_string(layer.logged_decays.shape()));
  }
  return d;
}

// Rows that go in chunks, the first ones; the others go token by token. What a step's last, partial
// chunk takes depends on its size alone, so that splits between chunks change nothing.
int64_t num_chunked_rows(const RecurrentRows& rows, GatedDeltaForm form) {
  if (form == GatedDeltaForm::kChunks) return rows.num_rows;
  if (form == GatedDeltaForm::kRecurrent || rows.logged) return 0;
  const int64_t partial = rows.num_rows % kDeltaChunkTokens;
  return partial < kMinDeltaChunkRows ? rows.num_rows - partial : rows.num_rows;
}

void check(const RecurrentRows& rows, const Dims& d, const RecurrentLayer& layer,
           GatedDeltaForm form) {
  const int64_t logged = layer.max_logged_tokens();
  BRAID_CHECK(rows.first_row >= 0 && rows.num_rows >= 0 &&
                  rows.first_row + rows.num_rows <= d.tokens && rows.slot >= 0 &&
                  rows.slot < d.slots,
              "rows [{}, + {}) of {}, slot {} of {}", rows.first_row, rows.num_rows, d.tokens,
              rows.slot, d.slots);
  BRAID_CHECK(rows.num_replayed >= 0 && rows.num_replayed <= logged &&
                  !(rows.fresh && rows.num_replayed > 0),
              "{} of {} logged tokens to replay, fresh: {}", rows.num_replayed, logged, rows.fresh);
  BRAID_CHECK(!rows.logged || (rows.num_rows <= logged && num_chunked_rows(rows, form) == 0),
              "{} rows to log, room for {}", rows.num_rows, logged);
}

int64_t padded(int64_t n) { return (n + kDeltaPadding - 1) / kDeltaPadding * kDeltaPadding; }

// What one thread works with, carved from one allocation.
struct Scratch {
  float* replayed_keys;    // [replayed, key_stride]
  float* replayed_decays;  // [ratio, replayed]
  float* keys;             // [block, key_stride]
  float* queries;
  float* betas;        // [ratio, block]
  float* decays;       // [ratio, block]
  double* log_decays;  // [ratio, block]: g, or its sum since the chunk's start
  float* running;      // [kDeltaStateRows, key_dim]
  // Of chunks:
  float* decays_to_end;  // [block]
  float* keys_transposed;
  float* key_products;
  float* query_products;
  float* couplings;
  float* weights;
  float* updates;
  float* panels;  // [ratio, panel_elements]
};

struct Sizes {
  int64_t replayed = 0;  // tokens
  int64_t block = 0;     // tokens
  bool chunks = false;
  int64_t key_stride = 0;
  int64_t panel_elements = 0;
};

int64_t lay_out(const Dims& d, const Sizes& sizes, float* base, Scratch& scratch) {
  int64_t used = 0;
  const auto take = [&](int64_t elements) {
    float* start = base == nullptr ? nullptr : base + used;
    used += padded(elements);
    return start;
  };
  scratch.replayed_keys = take(sizes.replayed * sizes.key_stride);
  scratch.replayed_decays = take(sizes.replayed * d.ratio());
  scratch.keys = take(sizes.block * sizes.key_stride);
  scratch.queries = take(sizes.block * sizes.key_stride);
  scratch.betas = take(sizes.block * d.ratio());
  scratch.decays = take(sizes.block * d.ratio());
  scratch.log_decays = reinterpret_cast<double*>(take(2 * sizes.block * d.ratio()));
  scratch.running = take(kDeltaStateRows * d.key_dim);
  if (!sizes.chunks) return used;
  scratch.decays_to_end = take(kDeltaChunkTokens);
  scratch.keys_transposed = take(d.key_dim * kDeltaChunkStride);
  for (float** matrix :
       {&scratch.key_products, &scratch.query_products, &scratch.couplings, &scratch.weights}) {
    *matrix = take(kDeltaChunkTokens * kDeltaChunkStride);
  }
  scratch.updates = take(kDeltaChunkTokens * kDeltaMaxPanel);
  scratch.panels = take(d.ratio() * sizes.panel_elements);
  return used;
}

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// One key head of one sequence, with all its value heads.
struct Task {
  const GatedDeltaInputs& in;
  const RecurrentLayer& layer;
  const GatedDeltaOptions& options;
  const TensorView& out;
  const Dims& d;
  const Sizes& sizes;
  const Scratch& scratch;
  const RecurrentRows& rows;
  int64_t key_head;
  const DeltaRecurrentKernels& recurrent = BRAID_KERNELS(kDeltaRecurrentKernels);
  const DeltaChunkKernels& chunks = BRAID_KERNELS(kDeltaChunkKernels);

  int64_t value_head(int64_t i) const {
    return options.order == ValueHeadOrder::kGrouped ? key_head * d.ratio() + i
                                                     : key_head + i * d.key_heads;
  }
  float* state(int64_t head) const {
    return layer.states.row<float>(rows.slot) + head * d.value_dim * d.key_dim;
  }
  float* logged_key(int64_t token) const {
    return layer.logged_keys.row<float>(rows.slot) + (token * d.key_heads + key_head) * d.key_dim;
  }
  float* logged_update(int64_t head) const {
    return layer.logged_updates.row<float>(rows.slot) + head * d.value_dim;
  }
  float* logged_decay(int64_t token, int64_t head) const {
    return layer.logged_decays.row<float>(rows.slot) + token * d.value_heads + head;
  }

  void run(GatedDeltaForm form) const {
    fetch_replayed();
    const int64_t chunked = num_chunked_rows(rows, form);
    if (chunked > 0) run_chunks(chunked);
    // Logged rows go in one block: their running state does not outlast it.
    const int64_t block = rows.logged ? rows.num_rows : kRecurrentTokens;
    for (int64_t first = chunked; first < rows.num_rows; first += block) {
      run_recurrent(first, std::min(block, rows.num_rows - first));
    }
  }

  // New entries of the log may take the place of those to replay.
  void fetch_replayed() const {
    for (int64_t t = 0; t < rows.num_replayed; ++t) {
      float* key = scratch.replayed_keys + t * sizes.key_stride;
      std::copy_n(logged_key(t), d.key_dim, key);
      std::fill(key + d.key_dim, key + sizes.key_stride, 0.0f);
      for (int64_t i = 0; i < d.ratio(); ++i) {
        scratch.replayed_decays[i * rows.num_replayed + t] = *logged_decay(t, value_head(i));
      }
    }
  }

  // Keys, queries and gates of `count` rows.
  void prepare(int64_t first, int64_t count) const {
    const float root = static_cast<float>(1 / std::sqrt(static_cast<double>(d.key_dim)));
    for (int64_t t = 0; t < count; ++t) {
      const int64_t row = rows.first_row + first + t;
      recurrent.normalize(in.k.row<float>(row) + key_head * d.key_dim, d.key_dim, options.epsilon,
                          1, scratch.keys + t * sizes.key_stride);
      recurrent.normalize(in.q.row<float>(row) + key_head * d.key_dim, d.key_dim, options.epsilon,
                          root, scratch.queries + t * sizes.key_stride);
      for (int64_t i = 0; i < d.ratio(); ++i) {
        const int64_t head = value_head(i);
        const double a = double{in.a.row<float>(row)[head]} + in.dt_bias.data<float>()[head];
        const double g = in.rate.data<float>()[head] * softplus(a);
        const int64_t place = i * count + t;
        scratch.betas[place] =
            static_cast<float>(1 / (1 + std::exp(-double{in.b.row<float>(row)[head]})));
        scratch.log_decays[place] = g;
        scratch.decays[place] = static_cast<float>(std::exp(g));
      }
    }
  }

  DeltaRows replayed_rows(int64_t i) const {
    const int64_t head = value_head(i);
    DeltaRows r;
    r.key_dim = d.key_dim;
    r.value_dim = d.value_dim;
    r.key_stride = sizes.key_stride;
    r.state = state(head);
    r.state_is_zero = rows.fresh;
    r.log_token_stride = d.value_heads * d.value_dim;
    r.num_replayed = rows.num_replayed;
    r.replayed_keys = scratch.replayed_keys;
    r.replayed_decays = scratch.replayed_decays + i * rows.num_replayed;
    if (rows.num_replayed > 0) r.replayed_updates = logged_update(head);
    return r;
  }

  void run_recurrent(int64_t first, int64_t count) const {
    prepare(first, count);
    const int64_t row = rows.first_row + first;
    for (int64_t i = 0; i < d.ratio(); ++i) {
      const int64_t head = value_head(i);
      DeltaRows r = replayed_rows(i);
      if (first > 0) {
        r.state_is_zero = false;
        r.num_replayed = 0;
      }
      r.num_rows = count;
      r.keys = scratch.keys;
      r.queries = scratch.queries;
      r.decays = scratch.decays + i * count;
      r.betas = scratch.betas + i * count;
      r.values = in.v.row<float>(row) + head * d.value_dim;
      r.value_stride = in.v.row_stride();
      r.out = out.row<float>(row) + head * d.value_dim;
      r.out_stride = out.row_stride();
      if (rows.logged) {
        r.logged_updates = logged_update(head);
        r.running = scratch.running;
        for (int64_t t = 0; t < count; ++t) *logged_decay(t, head) = r.decays[t];
      }
      recurrent.run(r);
    }
    if (rows.logged) {
      for (int64_t t = 0; t < count; ++t) {
        std::copy_n(scratch.keys + t * sizes.key_stride, d.key_dim, logged_key(t));
      }
    }
  }

  float* panels(int64_t i) const { return scratch.panels + i * sizes.panel_elements; }

  void run_chunks(int64_t num_rows) const {
    for (int64_t i = 0; i < d.ratio(); ++i) {
      if (rows.fresh) {
        std::fill_n(panels(i), sizes.panel_elements, 0.0f);
        continue;
      }
      if (rows.num_replayed > 0) recurrent.run(replayed_rows(i));
      chunks.load_panels(state(value_head(i)), d.value_dim, d.key_dim, panels(i));
    }
    for (int64_t first = 0; first < num_rows; first += kDeltaChunkTokens) {
      run_chunk(first, std::min(kDeltaChunkTokens, num_rows - first));
    }
    for (int64_t i = 0; i < d.ratio(); ++i) {
      chunks.store_panels(panels(i), d.value_dim, d.key_dim, state(value_head(i)));
    }
  }

  void run_chunk(int64_t first, int64_t count) const {
    prepare(first, count);
    DeltaChunk chunk;
    chunk.num_tokens = count;
    chunk.key_dim = d.key_dim;
    chunk.key_stride = sizes.key_stride;
    chunk.keys = scratch.keys;
    chunk.queries = scratch.queries;
    chunk.keys_transposed = scratch.keys_transposed;
    chunk.key_products = scratch.key_products;
    chunk.query_products = scratch.query_products;
    chunks.products(chunk);
    const int64_t row = rows.first_row + first;
    for (int64_t i = 0; i < d.ratio(); ++i) {
      double* log_decays = scratch.log_decays + i * count;
      float* decays = scratch.decays + i * count;
      for (int64_t t = 1; t < count; ++t) log_decays[t] += log_decays[t - 1];
      for (int64_t t = 0; t < count; ++t) {
        decays[t] = static_cast<float>(std::exp(log_decays[t]));
        scratch.decays_to_end[t] =
            static_cast<float>(std::exp(log_decays[count - 1] - log_decays[t]));
      }
      const int64_t head = value_head(i);
      DeltaChunkHead h;
      h.value_dim = d.value_dim;
      h.panels = panels(i);
      h.betas = scratch.betas + i * count;
      h.log_decays = log_decays;
      h.decays = decays;
      h.decays_to_end = scratch.decays_to_end;
      h.values = in.v.row<float>(row) + head * d.value_dim;
      h.value_stride = in.v.row_stride();
      h.out = out.row<float>(row) + head * d.value_dim;
      h.out_stride = out.row_stride();
      h.couplings = scratch.couplings;
      h.weights = scratch.weights;
      h.updates = scratch.updates;
      chunks.run(chunk, h);
    }
  }
};

// The states read and written (logged rows leave theirs, unless there is something to apply; the
// log itself is small) and the recurrent form's products: Sᵀk, k·dᵀ, Sᵀq.
OpWork delta_work(const Dims& d, std::span<const RecurrentRows> sequences) {
  const double state_elements = static_cast<double>(d.value_heads * d.value_dim * d.key_dim);
  OpWork work;
  for (const RecurrentRows& rows : sequences) {
    if (rows.num_rows == 0) continue;
    const double times = (rows.fresh ? 0 : 1) + (!rows.logged || rows.num_replayed > 0 ? 1 : 0);
    const double row_elements =
        static_cast<double>(2 * d.key_heads * d.key_dim + 2 * d.value_heads * d.value_dim);
    work.state_bytes += 4 * times * state_elements;
    work.activation_bytes += 4 * row_elements * static_cast<double>(rows.num_rows);
    work.operations += 6 * state_elements * static_cast<double>(rows.num_rows + rows.num_replayed);
  }
  return work;
}

}  // namespace

void gated_delta(Stream& stream, Workspace& workspace, const GatedDeltaInputs& inputs,
                 const RecurrentLayer& layer, std::span<const RecurrentRows> sequences,
                 const GatedDeltaOptions& options, const TensorView& out) {
  const Dims d = check(inputs, layer, out);
  Sizes sizes;
  sizes.key_stride = padded(d.key_dim);
  sizes.panel_elements =
      d.key_dim * ((d.value_dim + kDeltaMaxPanel - 1) / kDeltaMaxPanel) * kDeltaMaxPanel;
  for (const RecurrentRows& rows : sequences) {
    check(rows, d, layer, options.form);
    if (rows.num_rows == 0) continue;
    const bool chunks = num_chunked_rows(rows, options.form) > 0;
    const int64_t block = chunks        ? kDeltaChunkTokens
                          : rows.logged ? rows.num_rows
                                        : kRecurrentTokens;
    sizes.block = std::max(sizes.block, std::min(block, rows.num_rows));
    sizes.chunks |= chunks;
    sizes.replayed = std::max<int64_t>(sizes.replayed, rows.num_replayed);
  }
  if (sizes.block == 0) return;

  const OpScope op(stream, "gated_delta", [&] { return delta_work(d, sequences); });
  Workspace::Scope scope(workspace);
  if (!stream.is_cpu()) {
    return cuda::gated_delta(stream, workspace, inputs, layer, sequences, options, out);
  }
  Scratch sample{};
  const int64_t scratch_elements = lay_out(d, sizes, nullptr, sample);
  const TensorView memory =
      workspace.take(DType::kF32, {stream.pool().num_threads(), scratch_elements});
  stream.pool().parallel_for(static_cast<int64_t>(sequences.size()) * d.key_heads, 1,
                             [&](int64_t begin, int64_t end, int thread) {
                               Scratch scratch{};
                               lay_out(d, sizes, memory.row<float>(thread), scratch);
                               for (int64_t item = begin; item < end; ++item) {
                                 const RecurrentRows& rows = sequences[item / d.key_heads];
                                 if (rows.num_rows == 0) continue;
                                 const Task task{inputs,  layer, options,           out, d, sizes,
                                                 scratch, rows,  item % d.key_heads};
                                 task.run(options.form);
                               }
                             });
}

}  // namespace braid
