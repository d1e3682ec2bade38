#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/token_ops.h"
#include "ops/logits/draw_math.h"
#include "tensor/cuda/large_upload.h"

// Compiled without fused multiply-adds (draw_math.h).
//
// A row is the work of a team: the blocks of a cluster (one block before Hopper), each with a
// stretch of the vocabulary, in shared memory if it fits. Whatever is summed is a whole number, so
// that no order matters. The tokens that filters keep are the first in rank up to some key: it is
// found by its digits, from the highest on, in histograms of the keys that agree so far; mostly
// after one or two.
namespace braid::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostBlocks = 8;            // of a team
constexpr int kTokensPerBlock = 1 << 14;  // teams have as many blocks as needed, up to kMostBlocks
// A stretch of up to so many bytes is brought to shared memory, once.
constexpr int kMostStagedBytes = 128 << 10;
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
static_assert(sizeof(DeviceEdit) + sizeof(float) == kDrawnEditBytes);
// Rules and edits of up to so many bytes are a table of the step; more come to the workspace.
constexpr size_t kMostTableBytes = size_t{1} << 20;

struct Arguments {
  Rows<float> logits;
  int width;
  bool aligned;  // rows may be read by 16 bytes
  const DeviceRule* rules;
  const DeviceEdit* edits;
  bool staged;   // stretches come to shared memory, and are edited there; otherwise the rows are,
                 // for the time being
  float* saved;  // [edits]: the logits as they were; unless staged
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

// A mass in four parts, each of which may be added up in 32 bits: there are no faster additions in
// shared memory.
constexpr int kMassParts = 4;
constexpr int kPartBits = 12;

struct Shared {
  alignas(8) uint32_t mass[kMassParts][kBins];
  uint32_t count[kBins];
  uint64_t warp_sums[kWarps];
  // Of a selection's digit: the bin, what there is in front of it and up to its end, and in it.
  int found_bin;
  uint32_t found_count;
  uint64_t found_before, found_up_to;
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
  // stage: shared memory for the stretch, if it comes there.
  __device__ Row(const Arguments& args, const DeviceRule& rule, Shared& shared, float* stage)
      : args_(args), rule_(rule), shared_(shared), row_(args.logits[rule.row]), stage_(stage) {
    const int each = stretch(args.width, team_.size);
    begin_ = min(team_.rank * each, args.width);
    end_ = min(begin_ + each, args.width);
  }
  // Tokens of a block.
  static __host__ __device__ int stretch(int width, int blocks) {
    return (ceil_divide(width, blocks) + 3) / 4 * 4;
  }

  __device__ const Team& team() const { return team_; }
  // As the model has it.
  __device__ float logit(int token) const { return sanitised(__ldcg(row_ + token)); }

  // Brings the stretch to where the passes read it, the end filled up to whole fours.
  __device__ void load() {
    if (!args_.staged) return;
#pragma unroll 4
    for (int i = 4 * static_cast<int>(threadIdx.x); i < end_ - begin_; i += 4 * kThreads) {
      *reinterpret_cast<float4*>(stage_ + i) = from_row(begin_ + i);
    }
    __syncthreads();
  }

  __device__ __noinline__ Best best() {
    Best best{-INFINITY, -1};
    for_each([&](int token, float logit) {
      if (best.token < 0 || logit > best.logit) best = {logit, token};
    });
    return all_reduce(best, shared_.of_warps, shared_.bests,
                      [](const Best& a, const Best& b) { return better(a, b); });
  }

  // Of tokens with keys up to `last`.
  __device__ __noinline__ uint64_t mass(float highest, float temperature, uint64_t last) {
    uint64_t sum = 0;
    for_each([&](int token, float logit) {
      if (rank_key(logit, token) <= last) sum += mass_of(draw_weight(logit, highest, temperature));
    });
    return all_sum(sum);
  }

  // The key up to which there are `count` tokens; kAllKeys if there are no more.
  __device__ __noinline__ uint64_t select_count(int count) {
    return select<false>(
        kAllKeys, [](float) { return uint64_t{1}; },
        [&](uint64_t measure) { return measure >= static_cast<uint64_t>(count); });
  }

  // The key up to which tokens hold the target's mass. Those beyond `last` do not count, nor those
  // of less than the least weight, which are among the first all the same.
  __device__ __noinline__ uint64_t select_mass(float highest, float temperature, double target,
                                               float least_weight, uint64_t last) {
    return select<true>(
        last,
        [&](float logit) {
          const float weight = draw_weight(logit, highest, temperature);
          return weight >= least_weight ? mass_of(weight) : uint64_t{0};
        },
        [&](uint64_t measure) { return static_cast<double>(measure) >= target; });
  }

  // The token whose clock rings first, of those up to `last` with at least the least weight.
  __device__ __noinline__ int32_t race(const Best& likeliest, uint64_t last, float least_weight) {
    Winner winner{INFINITY, -1};
    // What is certainly too late is told in float32: kMargin covers its roundings.
    constexpr float kMargin = 1 + 1e-5f;
    float first = INFINITY;                          // the winner's time
    float least = fmaxf(least_weight, rule_.min_p);  // with less weight a token cannot win
    const auto ring = [&](int token, float weight, uint32_t bits) {
      winner = earlier(winner, {ring_time(uniform_of_bits(bits), weight), token});
      first = static_cast<float>(winner.time);
      least = fmaxf(least, static_cast<float>(kLeastChance) / (first * kMargin));
    };
    // The likeliest one first: most of the others then need no random number at all.
    uint32_t bits[4];
    draw_bits(likeliest.token / 4, bits);
    ring(likeliest.token, 1, pick(bits, likeliest.token % 4));
#pragma unroll 1
    for (int i = first_of_thread(); i < end_; i += 4 * kThreads) {
      const float4 four = values_at(i);
      float weights[4] = {sanitised(four.x), sanitised(four.y), sanitised(four.z),
                          sanitised(four.w)};
      bool any = false;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float logit = weights[j];
        weights[j] = draw_weight(logit, likeliest.logit, rule_.temperature);
        if (rank_key(logit, i + j) > last || weights[j] < least) weights[j] = -1;
        any = any || weights[j] > 0;
      }
      if (!any) continue;
      draw_bits(i / 4, bits);
      uint32_t candidates = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool in_time = static_cast<float>(bits[j]) * 0x1p-32f <= first * weights[j] * kMargin;
        if (weights[j] > 0 && in_time) candidates |= 1u << j;
      }
      while (candidates != 0) {
        const int j = __ffs(static_cast<int>(candidates)) - 1;
        candidates &= candidates - 1;
        ring(i + j, pick(weights, j), pick(bits, j));
      }
    }
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
    if (!args_.staged) team_.sync();  // the row has been read
    const int step = args_.staged ? kThreads : team_.size * kThreads;
    const int first = threadIdx.x + (args_.staged ? 0 : team_.rank * kThreads);
    for (int i = first; i < rule_.num_edits; i += step) {
      const DeviceEdit edit = args_.edits[rule_.first_edit + i];
      float* logit = row_ + edit.token;
      if (args_.staged) {
        if (edit.token < begin_ || edit.token >= end_) continue;
        logit = stage_ + (edit.token - begin_);
      }
      const float before = args_.staged ? *logit : __ldcg(logit);
      if (!args_.staged) args_.saved[rule_.first_edit + i] = before;
      *logit = edited_logit(sanitised(before), edit.output_count, edit.bias, rule_);
    }
    if (args_.staged) {
      __syncthreads();
    } else {
      __threadfence();
      team_.sync();
    }
  }
  __device__ void undo_edits() {
    if (args_.staged || rule_.num_edits == 0) return;
    team_.sync();
    for (int i = team_.rank * kThreads + static_cast<int>(threadIdx.x); i < rule_.num_edits;
         i += team_.size * kThreads) {
      const int edit = rule_.first_edit + i;
      row_[args_.edits[edit].token] = args_.saved[edit];
    }
    __threadfence();
    team_.sync();
  }

 private:
  __device__ __forceinline__ int first_of_thread() const {
    return begin_ + 4 * static_cast<int>(threadIdx.x);
  }
  // Tokens [i, i + 4) of the row; beyond its end -inf.
  __device__ __forceinline__ float4 from_row(int i) const {
    if (args_.aligned) return __ldcg(reinterpret_cast<const float4*>(row_ + i));
    float4 four;
    four.x = __ldcg(row_ + i);
    four.y = i + 1 < args_.width ? __ldcg(row_ + i + 1) : -INFINITY;
    four.z = i + 2 < args_.width ? __ldcg(row_ + i + 2) : -INFINITY;
    four.w = i + 3 < args_.width ? __ldcg(row_ + i + 3) : -INFINITY;
    return four;
  }
  // The same after the edits, for tokens of this block.
  __device__ __forceinline__ float4 values_at(int i) const {
    return args_.staged ? *reinterpret_cast<const float4*>(stage_ + (i - begin_)) : from_row(i);
  }
  // Calls visit(token, logit) for all tokens of this thread above -inf, ascending.
  template <typename Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
#pragma unroll 1
    for (int first = first_of_thread(); first < end_; first += 4 * kThreads) {
      const float4 four = values_at(first);
      const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = sanitised(values[i]);
        if (value > -INFINITY) visit(first + i, value);
      }
    }
  }

  // The random numbers of four neighbours.
  __device__ __forceinline__ void draw_bits(int block, uint32_t bits[4]) const {
    bits[0] = rule_.position;
    bits[1] = static_cast<uint32_t>(block);
    bits[2] = static_cast<uint32_t>(rule_.stream);
    bits[3] = static_cast<uint32_t>(rule_.stream >> 32);
    philox_rounds(bits, static_cast<uint32_t>(rule_.seed), static_cast<uint32_t>(rule_.seed >> 32));
  }
  // x[i] of what lies in registers
  template <typename T>
  static __device__ __forceinline__ T pick(const T (&x)[4], int i) {
    return i == 0 ? x[0] : i == 1 ? x[1] : i == 2 ? x[2] : x[3];
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
  // key on; or a later one with no token that counts between the two. kAllKeys if it never holds.
  // kMass: measures are masses; otherwise each is 1.
  template <bool kMass, typename Measure, typename Enough>
  __device__ uint64_t select(uint64_t last, const Measure& measure_of, const Enough& enough) {
    uint64_t prefix = 0, before = 0;
    int known_from = 64;  // the bits from here on are known
#pragma unroll 1
    for (int digit = 0; digit < kNumDigits; ++digit) {
      const int shift = digit_shift(digit);
      for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
        if constexpr (kMass) {
#pragma unroll
          for (int part = 0; part < kMassParts; ++part) shared_.mass[part][bin] = 0;
        }
        shared_.count[bin] = 0;
      }
      if (threadIdx.x == 0) shared_.found_bin = -1;
      __syncthreads();
      for_each([&](int token, float logit) {
        const uint64_t key = rank_key(logit, token);
        if (key > last || (known_from < 64 && ((key ^ prefix) >> known_from) != 0)) return;
        const uint64_t measure = measure_of(logit);
        if (measure == 0) return;
        const int bin = static_cast<int>(key >> shift) & (kBins - 1);
        atomicAdd(&shared_.count[bin], 1u);
        if constexpr (kMass) {
#pragma unroll
          for (int part = 0; part < kMassParts; ++part) {
            const auto value =
                static_cast<uint32_t>(measure >> (part * kPartBits)) & ((1u << kPartBits) - 1);
            // Of most tokens the upper parts are zero.
            if (value != 0) atomicAdd(&shared_.mass[part][bin], value);
          }
        }
      });
      if constexpr (kMass) fold_masses();
      team_.sync();
      find_bin<kMass>(before, enough);
      team_.sync();  // all have read, and the bin is known
      const int bin = shared_.found_bin;
      if (bin < 0) return kAllKeys;
      const uint64_t up_to = shared_.found_up_to;
      before = shared_.found_before;
      const bool alone = shared_.found_count == 1;
      prefix |= static_cast<uint64_t>(bin) << shift;
      known_from = shift;
      __syncthreads();  // all have read
      // Nothing left to tell apart: the whole bin is in.
      if (alone || (!kMass && !enough(up_to - 1))) break;
    }
    return prefix | ((uint64_t{1} << known_from) - 1);
  }

  // Puts the parts of this block's masses together, [bins], where the parts were: the other blocks
  // have less to read then.
  __device__ __forceinline__ uint64_t* folded_masses() const {
    return reinterpret_cast<uint64_t*>(shared_.mass);
  }
  __device__ __forceinline__ void fold_masses() {
    uint64_t folded[kBinsPerThread] = {};
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
#pragma unroll
      for (int part = 0; part < kMassParts; ++part) {
        folded[i] += uint64_t{shared_.mass[part][threadIdx.x + i * kThreads]} << (part * kPartBits);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i)
      folded_masses()[threadIdx.x + i * kThreads] = folded[i];
  }

  // What the team has counted in a bin.
  __device__ __forceinline__ uint32_t count_of(int bin) const {
    uint32_t count = 0;
    for (int block = 0; block < team_.size; ++block) {
      count += *team_.of(&shared_.count[bin], block);
    }
    return count;
  }
  template <bool kMass>
  __device__ __forceinline__ uint64_t measure_of_bin(int bin) const {
    if constexpr (!kMass) return count_of(bin);
    uint64_t sum = 0;
    for (int block = 0; block < team_.size; ++block) sum += *team_.of(folded_masses() + bin, block);
    return sum;
  }

  // Sets found_*: the first bin at whose end `enough` holds. All blocks find the same.
  template <bool kMass, typename Enough>
  __device__ __forceinline__ void find_bin(uint64_t before, const Enough& enough) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int first = threadIdx.x * kBinsPerThread;
    uint64_t measures[kBinsPerThread];
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      measures[i] = measure_of_bin<kMass>(first + i);
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
        shared_.found_bin = first + i;
        shared_.found_before = measure;
        shared_.found_up_to = next;
        shared_.found_count = count_of(first + i);
      }
      measure = next;
    }
  }

  const Arguments& args_;
  const DeviceRule& rule_;
  Shared& shared_;
  float* row_;
  float* stage_;
  Team team_;
  int begin_, end_;
  int phase_ = 0;
};

// Grid: blocks of a team, rules.
__global__ void __launch_bounds__(kThreads) draw_kernel(const __grid_constant__ Arguments args) {
  wait_for_inputs();
  __shared__ Shared shared;
  extern __shared__ float4 stage[];
  const DeviceRule rule = args.rules[blockIdx.y];
  Row row(args, rule, shared, reinterpret_cast<float*>(stage));
  row.load();
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
    if (rule.num_edits > 0) row.apply_edits();
    best = row.best();
  }
  int32_t token = best.token;
  if (rule.temperature != 0 && best.token >= 0) {
    uint64_t last = kAllKeys;
    float least_weight = 0;
    if (rule.top_k > 0) last = row.select_count(rule.top_k);
    if (rule.top_p < 1) {
      const uint64_t total = row.mass(best.logit, rule.temperature, last);
      const double target = top_p_target(rule.top_p, total);
      // What is kept has at least so much mass: a whole number, so a weight of at least this.
      const double floor = ceil(top_p_floor(target, total, args.width));
      least_weight = __double2float_ru(floor * 0x1p-44);
      last = min(last, row.select_mass(best.logit, rule.temperature, target, least_weight, last));
    }
    token = row.race(best, last, least_weight);
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
  const size_t bytes = rules_bytes + num_edits * sizeof(DeviceEdit);
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
  const std::byte* table = nullptr;
  if (bytes <= kMostTableBytes) {
    table = static_cast<const std::byte*>(stream.cuda().table(rules.data(), bytes, fill));
  } else {
    auto* there =
        static_cast<std::byte*>(workspace.take(DType::kI8, {static_cast<int64_t>(bytes)}).raw());
    upload(stream.cuda(), there, bytes, fill);
    table = there;
  }

  const int width = static_cast<int>(logits.dim(1));
  int blocks = 1;
  if (stream.cuda().overlaps_kernels()) {
    while (blocks < kMostBlocks && blocks * kTokensPerBlock < width) blocks *= 2;
  }
  // Blocks of other devices have less shared memory, and there whole rows are theirs.
  const int stage_bytes = Row::stretch(width, blocks) * static_cast<int>(sizeof(float));
  const bool staged = stream.cuda().overlaps_kernels() && stage_bytes <= kMostStagedBytes;
  const Arguments args{
      .logits = rows_of<float>(logits),
      .width = width,
      .aligned = reinterpret_cast<uintptr_t>(logits.raw()) % 16 == 0 && width % 4 == 0 &&
                 logits.row_stride() % 4 == 0,
      .rules = reinterpret_cast<const DeviceRule*>(table),
      .edits = reinterpret_cast<const DeviceEdit*>(table + rules_bytes),
      .staged = staged,
      .saved = staged
                   ? nullptr
                   : workspace.take(DType::kF32, {static_cast<int64_t>(num_edits)}).data<float>(),
      .drawn = rows_of<int32_t>(drawn)};
  static const cudaError_t allowed = cudaFuncSetAttribute(
      draw_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostStagedBytes);
  if (staged) BRAID_CUDA_CHECK(allowed);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rules.size()));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = staged ? static_cast<size_t>(stage_bytes) : 0;
  config.stream = stream.cuda().handle();
  config.attrs = attributes;
  config.numAttrs = stream.cuda().overlaps_kernels() ? 2 : 0;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(&config, draw_kernel, args));
  stream.cuda().finish_op("draw_tokens");
}

}  // namespace braid::cuda
