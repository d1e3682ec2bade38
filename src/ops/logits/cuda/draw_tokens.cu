#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/token_ops.h"
#include "ops/logits/draw_math.h"

// Compiled without fused multiply-adds (draw_math.h).
//
// A row is the work of a team: the blocks of a cluster (one block before Hopper), each with a
// stretch of the vocabulary. Whatever is summed is a whole number, so that no order matters. The
// tokens that filters keep are the first in rank up to some key: it is found by its digits, from
// the highest on, in histograms of the keys that agree so far; mostly after one or two.
namespace braid::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostBlocks = 8;            // of a team
constexpr int kTokensPerBlock = 1 << 14;  // teams have as many blocks as needed, up to kMostBlocks
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kBinsPerThread = kBins / kThreads;

// The digits of a rank key: of the logit, then of the token.
constexpr int kNumDigits = 5;
__device__ __forceinline__ int digit_shift(int digit) {
  return digit == 0 ? 53 : digit == 1 ? 42 : digit == 2 ? 32 : digit == 3 ? 11 : 0;
}
constexpr uint64_t kAllKeys = ~uint64_t{0};

struct DeviceRule {
  uint64_t seed, stream;
  int32_t row;
  float temperature;
  int32_t top_k;
  float top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t num_logprobs;
  uint32_t position;
  int32_t first_edit, num_edits;
};
struct DeviceEdit {
  int32_t token;
  int32_t output_count;
  float bias;
};

struct Arguments {
  Rows<float> logits;
  int width;
  bool aligned;  // rows may be read by 16 bytes
  const DeviceRule* rules;
  const DeviceEdit* edits;
  float* saved;  // [edits]: the logits as they were
  Rows<int32_t> drawn;
};

// A token of the highest logit, of equals the lowest; or of the earliest time.
struct Best {
  float logit;
  int32_t token;  // -1: none is above -inf
};
struct Winner {
  double time;
  int32_t token;
};

struct Shared {
  uint64_t mass[kBins];
  uint32_t count[kBins];
  uint64_t warp_sums[kWarps];
  uint64_t found_measure;  // of a selection's digit: up to the bin before it
  int found_bin, found_count;
  // What a block tells its team, twice: a slower one may still be reading the last.
  uint64_t sums[2];
  Best bests[2];
  Winner winners[2];
  Best of_warps[kWarps];
  Winner winners_of_warps[kWarps];
  int32_t num_listed;  // of the team, in its first block
};

__device__ __forceinline__ Best better(const Best& a, const Best& b) {
  if (b.token < 0) return a;
  if (a.token < 0) return b;
  return rank_key(a.logit, a.token) < rank_key(b.logit, b.token) ? a : b;
}
__device__ __forceinline__ Winner earlier(const Winner& a, const Winner& b) {
  if (b.token < 0) return a;
  if (a.token < 0) return b;
  return a.time < b.time || (a.time == b.time && a.token < b.token) ? a : b;
}
__device__ __forceinline__ Best shuffled(const Best& x, int offset) {
  return {__shfl_xor_sync(0xffffffffu, x.logit, offset),
          __shfl_xor_sync(0xffffffffu, x.token, offset)};
}
__device__ __forceinline__ Winner shuffled(const Winner& x, int offset) {
  return {__shfl_xor_sync(0xffffffffu, x.time, offset),
          __shfl_xor_sync(0xffffffffu, x.token, offset)};
}

// The blocks that share a row.
struct Team {
  int rank = 0;
  int size = 1;

  __device__ Team() {
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
  }
  // All threads have come so far, and what they wrote can be seen.
  __device__ __forceinline__ void sync() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#else
    __threadfence_block();
    __syncthreads();
#endif
  }
  // The same object of another block's shared memory.
  template <typename T>
  __device__ __forceinline__ T* of(T* object, int block) const {
#if __CUDA_ARCH__ >= 900
    T* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(object), "r"(block));
    return there;
#else
    return object;
#endif
  }
};

class Row {
 public:
  __device__ Row(const Arguments& args, const DeviceRule& rule, Shared& shared)
      : args_(args), rule_(rule), shared_(shared), row_(args.logits[rule.row]) {
    const int each = (ceil_divide(args.width, team_.size) + 3) / 4 * 4;
    begin_ = min(team_.rank * each, args.width);
    end_ = min(begin_ + each, args.width);
  }

  __device__ const Team& team() const { return team_; }
  __device__ float logit(int token) const { return sanitised(__ldcg(row_ + token)); }

  // Calls visit(token, logit) for all tokens of this thread above -inf; neighbours of the same four
  // one after another.
  template <typename Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
    for (int first = begin_ + 4 * static_cast<int>(threadIdx.x); first < end_;
         first += 4 * kThreads) {
      float4 four;
      if (args_.aligned) {
        four = __ldcg(reinterpret_cast<const float4*>(row_ + first));
      } else {
        four.x = __ldcg(row_ + first);
        four.y = first + 1 < end_ ? __ldcg(row_ + first + 1) : -INFINITY;
        four.z = first + 2 < end_ ? __ldcg(row_ + first + 2) : -INFINITY;
        four.w = first + 3 < end_ ? __ldcg(row_ + first + 3) : -INFINITY;
      }
      const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = sanitised(values[i]);
        if (value > -INFINITY) visit(first + i, value);
      }
    }
  }

  __device__ Best best() {
    Best best{-INFINITY, -1};
    for_each([&](int token, float logit) {
      if (best.token < 0 || logit > best.logit) best = {logit, token};
    });
    return all_reduce(best, shared_.of_warps, shared_.bests,
                      [](const Best& a, const Best& b) { return better(a, b); });
  }

  // Of tokens with keys up to `last`.
  __device__ uint64_t mass(float highest, float temperature, uint64_t last) {
    uint64_t sum = 0;
    for_each([&](int token, float logit) {
      if (rank_key(logit, token) <= last) sum += mass_of(draw_weight(logit, highest, temperature));
    });
    return all_sum(sum);
  }

  // The key up to which there are `count` tokens; kAllKeys if there are no more.
  __device__ uint64_t select_count(int count) {
    return select(
        kAllKeys, [](int, float) { return uint64_t{1}; },
        [&](uint64_t measure) { return measure >= static_cast<uint64_t>(count); });
  }

  // The key up to which tokens hold the target's mass. Those beyond `last` do not count, nor those
  // of less than the floor, which are among the first all the same.
  __device__ uint64_t select_mass(float highest, float temperature, double target, double floor,
                                  uint64_t last) {
    return select(
        last,
        [&](int, float logit) {
          const uint64_t mass = mass_of(draw_weight(logit, highest, temperature));
          return static_cast<double>(mass) >= floor ? mass : uint64_t{0};
        },
        [&](uint64_t measure) { return static_cast<double>(measure) >= target; });
  }

  // The token whose clock rings first, of those up to `last` with at least `floor` of mass.
  __device__ int32_t race(const Best& likeliest, uint64_t last, double floor) {
    Winner winner{INFINITY, -1};
    uint32_t bits[4];
    int block = -1;
    const auto run = [&](int token, float weight) {
      const double limit = latest_number(winner.time, weight);
      if (limit < kLeastChance) return;
      if (token / 4 != block) {
        block = token / 4;
        bits[0] = rule_.position;
        bits[1] = static_cast<uint32_t>(block);
        bits[2] = static_cast<uint32_t>(rule_.stream);
        bits[3] = static_cast<uint32_t>(rule_.stream >> 32);
        philox_rounds(bits, static_cast<uint32_t>(rule_.seed),
                      static_cast<uint32_t>(rule_.seed >> 32));
      }
      const int i = token % 4;
      const double number = uniform_of_bits(i == 0   ? bits[0]
                                            : i == 1 ? bits[1]
                                            : i == 2 ? bits[2]
                                                     : bits[3]);
      if (number > limit) return;
      winner = earlier(winner, {ring_time(number, weight), token});
    };
    // Most of the others then need no random number at all.
    run(likeliest.token, 1);
    for_each([&](int token, float logit) {
      const float weight = draw_weight(logit, likeliest.logit, rule_.temperature);
      if (weight == 0 || rank_key(logit, token) > last) return;
      if (static_cast<double>(mass_of(weight)) < floor) return;
      if (rule_.min_p > 0 && static_cast<double>(weight) < static_cast<double>(rule_.min_p) * 1.0) {
        return;
      }
      run(token, weight);
    });
    return all_reduce(winner, shared_.winners_of_warps, shared_.winners,
                      [](const Winner& a, const Winner& b) { return earlier(a, b); })
        .token;
  }

  // Writes the tokens up to `last` with their log-probabilities, in any order. Returns their number
  // to the thread that counts: the first of the first block.
  __device__ int list(uint64_t last, float highest, double log_sum, int32_t* out) {
    if (team_.rank == 0 && threadIdx.x == 0) shared_.num_listed = 0;
    team_.sync();
    int32_t* counter = team_.of(&shared_.num_listed, 0);
    for_each([&](int token, float logit) {
      if (rank_key(logit, token) > last) return;
      const int place = atomicAdd(counter, 1);
      out[2 * place] = token;
      out[2 * place + 1] = __float_as_int(logprob_of(logit, highest, log_sum));
    });
    team_.sync();
    return shared_.num_listed;
  }

  __device__ void apply_edits() {
    for_each_edit([&](int i, const DeviceEdit& edit) {
      const float logit = __ldcg(row_ + edit.token);
      args_.saved[i] = logit;
      row_[edit.token] = edited_logit(sanitised(logit), edit.output_count, edit.bias, rule_);
    });
  }
  __device__ void undo_edits() {
    for_each_edit([&](int i, const DeviceEdit& edit) { row_[edit.token] = args_.saved[i]; });
  }

 private:
  template <typename Visit>
  __device__ __forceinline__ void for_each_edit(const Visit& visit) const {
    if (rule_.num_edits == 0) return;
    team_.sync();
    for (int i = team_.rank * kThreads + static_cast<int>(threadIdx.x); i < rule_.num_edits;
         i += team_.size * kThreads) {
      visit(rule_.first_edit + i, args_.edits[rule_.first_edit + i]);
    }
    __threadfence();
    team_.sync();
  }

  // For all threads of the team.
  template <typename T, typename Combine>
  __device__ __forceinline__ T all_reduce(T x, T* of_warps, T (&of_blocks)[2],
                                          const Combine& combine) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) x = combine(x, shuffled(x, offset));
    if (lane == 0) of_warps[warp] = x;
    __syncthreads();
    phase_ ^= 1;
    if (warp == 0) {
      x = of_warps[lane];
#pragma unroll
      for (int offset = kWarp / 2; offset > 0; offset /= 2) x = combine(x, shuffled(x, offset));
      if (lane == 0) of_blocks[phase_] = x;
    }
    team_.sync();
    x = *team_.of(&of_blocks[phase_], 0);
    for (int i = 1; i < team_.size; ++i) x = combine(x, *team_.of(&of_blocks[phase_], i));
    return x;
  }

  __device__ uint64_t all_sum(uint64_t x) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    x = warp_total(x);
    if (lane == 0) shared_.warp_sums[warp] = x;
    __syncthreads();
    phase_ ^= 1;
    if (warp == 0) {
      x = warp_total(shared_.warp_sums[lane]);
      if (lane == 0) shared_.sums[phase_] = x;
    }
    team_.sync();
    x = 0;
    for (int i = 0; i < team_.size; ++i) x += *team_.of(&shared_.sums[phase_], i);
    return x;
  }
  static __device__ __forceinline__ uint64_t warp_total(uint64_t x) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      x += __shfl_xor_sync(0xffffffffu, x, offset);
    }
    return x;
  }

  // The least of the keys at the end of which `enough` holds of the measures summed from the first
  // key on; or a later one with no token between the two. kAllKeys if it never holds.
  template <typename Measure, typename Enough>
  __device__ uint64_t select(uint64_t last, const Measure& measure_of, const Enough& enough) {
    uint64_t prefix = 0, before = 0;
    int known_from = 64;  // the bits from here on are known
#pragma unroll 1
    for (int digit = 0; digit < kNumDigits; ++digit) {
      const int shift = digit_shift(digit);
      for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
        shared_.mass[bin] = 0;
        shared_.count[bin] = 0;
      }
      if (threadIdx.x == 0) shared_.found_bin = -1;
      __syncthreads();
      for_each([&](int token, float logit) {
        const uint64_t key = rank_key(logit, token);
        if (key > last || (known_from < 64 && ((key ^ prefix) >> known_from) != 0)) return;
        const uint64_t measure = measure_of(token, logit);
        if (measure == 0) return;
        const int bin = static_cast<int>(key >> shift) & (kBins - 1);
        atomicAdd(&shared_.count[bin], 1u);
        atomicAdd(reinterpret_cast<unsigned long long*>(&shared_.mass[bin]),
                  static_cast<unsigned long long>(measure));
      });
      team_.sync();
      find_bin(before, enough);
      team_.sync();  // all have read, and the bin is known
      const int bin = shared_.found_bin;
      if (bin < 0) return kAllKeys;
      before = shared_.found_measure;
      const int count = shared_.found_count;
      prefix |= static_cast<uint64_t>(bin) << shift;
      known_from = shift;
      __syncthreads();  // all have read
      if (count == 1) break;
    }
    return prefix | ((uint64_t{1} << known_from) - 1);
  }

  // Sets found_*: the first bin at whose end `enough` holds. All blocks find the same.
  template <typename Enough>
  __device__ __forceinline__ void find_bin(uint64_t before, const Enough& enough) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int first = threadIdx.x * kBinsPerThread;
    uint64_t measures[kBinsPerThread];
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      measures[i] = 0;
      for (int block = 0; block < team_.size; ++block) {
        measures[i] += *team_.of(&shared_.mass[first + i], block);
      }
      sum += measures[i];
    }
    uint64_t up_to = sum;  // with this thread's
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const uint64_t other = __shfl_up_sync(0xffffffffu, up_to, offset);
      if (lane >= offset) up_to += other;
    }
    if (lane == kWarp - 1) shared_.warp_sums[warp] = up_to;
    __syncthreads();
    uint64_t measure = before + up_to - sum;
    for (int i = 0; i < warp; ++i) measure += shared_.warp_sums[i];
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      const uint64_t next = measure + measures[i];
      if (measures[i] > 0 && enough(next) && !enough(measure)) {
        uint32_t count = 0;
        for (int block = 0; block < team_.size; ++block) {
          count += *team_.of(&shared_.count[first + i], block);
        }
        shared_.found_bin = first + i;
        shared_.found_measure = measure;
        shared_.found_count = static_cast<int>(count);
      }
      measure = next;
    }
  }

  const Arguments& args_;
  const DeviceRule& rule_;
  Shared& shared_;
  float* row_;
  Team team_;
  int begin_, end_;
  int phase_ = 0;
};

// Grid: blocks of a team, rules.
__global__ void __launch_bounds__(kThreads) draw_kernel(const __grid_constant__ Arguments args) {
  wait_for_inputs();
  __shared__ Shared shared;
  const DeviceRule rule = args.rules[blockIdx.y];
  Row row(args, rule, shared);
  int32_t* out = args.drawn[blockIdx.y];

  int num_listed = 0;
  float highest = 0;  // of the model's own
  double log_sum = 0;
  Best best{};
  if (rule.num_logprobs >= 0) {
    best = row.best();
    if (best.token >= 0) {
      highest = best.logit;
      log_sum = log_of_mass(row.mass(highest, 1, kAllKeys));
      if (rule.num_logprobs > 0) {
        num_listed = row.list(row.select_count(rule.num_logprobs), highest, log_sum, out + 3);
      }
    }
  }
  if (rule.num_logprobs < 0 || rule.num_edits > 0) {
    row.apply_edits();
    best = row.best();
  }
  int32_t token = best.token;
  if (rule.temperature != 0 && best.token >= 0) {
    uint64_t last = kAllKeys;
    double floor = 0;
    if (rule.top_k > 0) last = row.select_count(rule.top_k);
    if (rule.top_p < 1) {
      const uint64_t total = row.mass(best.logit, rule.temperature, last);
      const double target = top_p_target(rule.top_p, total);
      floor = top_p_floor(target, total, args.width);
      last = min(last, row.select_mass(best.logit, rule.temperature, target, floor, last));
    }
    token = row.race(best, last, floor);
  }
  row.undo_edits();
  if (row.team().rank == 0 && threadIdx.x == 0) {
    out[0] = token;
    out[1] = __float_as_int(rule.num_logprobs >= 0 && token >= 0
                                ? logprob_of(row.logit(token), highest, log_sum)
                                : 0.0f);
    out[2] = token >= 0 ? num_listed : 0;
  }
  row.team().sync();  // nothing of this block is read any more
}

DeviceRule device_rule(const DrawRule& rule, int first_edit) {
  return {.seed = rule.key.seed,
          .stream = rule.key.request,
          .row = static_cast<int32_t>(rule.row),
          .temperature = rule.temperature,
          .top_k = rule.top_k,
          .top_p = rule.top_p,
          .min_p = rule.min_p,
          .repetition_penalty = rule.repetition_penalty,
          .presence_penalty = rule.presence_penalty,
          .frequency_penalty = rule.frequency_penalty,
          .num_logprobs = rule.num_logprobs,
          .position = static_cast<uint32_t>(rule.key.position),
          .first_edit = first_edit,
          .num_edits = static_cast<int32_t>(rule.edits.size())};
}

}  // namespace

void draw_tokens(Stream& stream, Workspace& workspace, const TensorView& logits,
                 std::span<const DrawRule> rules, const TensorView& drawn) {
  size_t num_edits = 0;
  for (const DrawRule& rule : rules) num_edits += rule.edits.size();
  const size_t rules_bytes = rules.size() * sizeof(DeviceRule);
  const auto fill = [&](std::byte* out) {
    auto* device_rules = reinterpret_cast<DeviceRule*>(out);
    auto* edits = reinterpret_cast<DeviceEdit*>(out + rules_bytes);
    int first_edit = 0;
    for (const DrawRule& rule : rules) {
      *device_rules++ = device_rule(rule, first_edit);
      for (const LogitEdit& edit : rule.edits) {
        *edits++ = {edit.token, edit.output_count, edit.bias};
        ++first_edit;
      }
    }
  };
  const auto* table = static_cast<const std::byte*>(
      stream.cuda().table(rules.data(), rules_bytes + num_edits * sizeof(DeviceEdit), fill));

  const int width = static_cast<int>(logits.dim(1));
  const Arguments args{
      .logits = rows_of<float>(logits),
      .width = width,
      .aligned = reinterpret_cast<uintptr_t>(logits.raw()) % 16 == 0 && width % 4 == 0 &&
                 logits.row_stride() % 4 == 0,
      .rules = reinterpret_cast<const DeviceRule*>(table),
      .edits = reinterpret_cast<const DeviceEdit*>(table + rules_bytes),
      .saved = workspace.take(DType::kF32, {static_cast<int64_t>(num_edits)}).data<float>(),
      .drawn = rows_of<int32_t>(drawn)};
  int blocks = 1;
  if (stream.cuda().overlaps_kernels()) {
    while (blocks < kMostBlocks && blocks * kTokensPerBlock < width) blocks *= 2;
  }
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rules.size()));
  config.blockDim = dim3(kThreads);
  config.stream = stream.cuda().handle();
  config.attrs = attributes;
  config.numAttrs = stream.cuda().overlaps_kernels() ? 2 : 0;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(&config, draw_kernel, args));
  stream.cuda().finish_op("draw_tokens");
}

}  // namespace braid::cuda
