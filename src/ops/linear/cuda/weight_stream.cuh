#pragma once

// The kernel of weight_stream.h, for weights that a Source knows how to bring and to multiply
// (stream_rows.cuh, stream_tiles.cuh):
//
//   kSets · 8 warps multiply, each kRows rows × kPieceColumns columns at a time; sets take turns
//   in the slots of the ring, of which there are as many for each
//   kPieceBytes: of what a warp takes of a slot of the ring
//   kBlocks: whether there may be experts and gated blocks, not only single matrices
//   kManyRegisters: whether multiplying takes many of them, with one tile of tokens, too
//   kBoundThreads: threads that a thread's registers must suffice for, if more than there are
//   kDeals: whether units may be dealt out by what blocks had before (the code takes registers)
//   kRowPad: floats between the sums of tokens, so that a warp's lie in different banks
//   kTailBytes: behind the last of a panel's pieces, its rows' scales; or 0. kTailWarps: the most
//   row warps of phases with those
//   step_columns(phase)
//   Weights(phase, expert, unit), of one lane
//     .bring(whether it is the last step, to, barrier), step by step; announces the bytes itself
//   Inputs<tokens of a box>(phase, tokens, row), likewise, of the lanes of a warp; row: of this
//   lane's token, where the phase copies rows
//     .bring(step, to, barrier)
//   Lane<token tiles>(phase, tokens, row warp, column warp, lane)
//     .begin(step) of a unit, then .multiply(step, weights, inputs, sums) for each kSets-th one;
//     sums of type Sum, as mma.m16n8 leaves them of tokens ::token(lane % 4, 0 or 1) of each
//     eight; with tails
//     .pass_scales(phase, weights, to), of the last step, of a row warp's rows
//   Outputs(phase, tokens), of an adding thread, once inputs are there if it kReadsInputs
//     .of_token(token), by whole warps; .value(sum, of token, scales of the unit's rows, row)
//
// and on the host input_bytes(phase, tokens of a box), for a slot of the ring.

#include <cstddef>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/computed_once.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/linear/cuda/dealt_units.cuh"
#include "ops/linear/cuda/ring.cuh"
#include "ops/linear/cuda/stream_memory.cuh"
#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/weight_stream.h"

namespace braid::cuda {

// For sources whose sums are the outputs.
struct PlainOutputs {
  static constexpr bool kReadsInputs = false;
  __device__ PlainOutputs(const StreamPhase&, const TokenTile&) {}
  __device__ float of_token(int) const { return 1; }
  __device__ float value(float sum, float, const float*, int) const { return sum; }
};

template <typename Source, int kTokenTiles>
struct StreamBlock {
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kMultipliers = Source::kSets * kSetWarps;
  // One warp brings weights, one inputs; the last ones find out who the experts are, then add up
  // and store what the multiplying warps leave of a unit, while those go on. Fewer where those need
  // the registers.
  static constexpr int kAdders = Source::kSets > 1 && (kTokenTiles > 1 || Source::kManyRegisters)
                                     ? 2
                                     : kMostAdders;
  using Sum = typename Source::Sum;
  static constexpr bool kBlocks = Source::kBlocks, kChooses = kBlocks && kTokenTiles == 1;
  // Not measured with 4-bit tiles.
  static constexpr bool kRehearses = kBlocks && !Source::kManyRegisters;
  static constexpr int kAdderThreads = kAdders * kWarp;
  static constexpr int kWeightWarp = kMultipliers, kInputWarp = kMultipliers + 1,
                       kFirstAdder = kMultipliers + 2;
  static constexpr int kThreads = (kFirstAdder + kAdders) * kWarp;
  static constexpr int kBoundThreads =
      kThreads < Source::kBoundThreads ? Source::kBoundThreads : kThreads;

  const StreamPlan& plan;
  StreamBarriers& barriers;
  TokenTile* list;
  int32_t* pair_tokens;      // [listed pairs]
  int32_t* dealt;            // [most dealt], ends with a number that no unit has; then [blocks]
  FewRoom* few_room;         // where experts are chosen here
  uint32_t weights, inputs;  // of the ring's first slot
  float* partials;
  int partial_size, scales_size;  // in floats

  __device__ uint32_t full(int slot) const { return shared_address(&barriers.full[slot]); }
  __device__ uint32_t empty(int slot) const { return shared_address(&barriers.empty[slot]); }

  // Calls run(phase, index of the tile, tile, unit) for this block's units.
  template <typename Run>
  __device__ void for_each_unit(const Run& run) const {
    int next = blockIdx.x;
    for (int p = 0; p < plan.num_phases; ++p) {
      const StreamPhase& phase = plan.phases[p];
      int tiles = (plan.tokens + kTokens - 1) / kTokens;
      if (kBlocks && phase.routed) {
        wait_barrier(shared_address(&barriers.listed), 0);
        tiles = barriers.num_listed;
      }
      const int units = phase.num_units;
      int at = -1;  // in the list of what this block was dealt
      if constexpr (Source::kDeals) {
        if (plan.most_dealt > 0 && p == plan.num_phases - 1) {
          wait_barrier(shared_address(&barriers.dealt), 0);
          next = dealt[at = 0];
        }
      }
      while (next < tiles * units) {
        const int tile = next < units ? 0 : next / units;
        const TokenTile tokens =
            kBlocks && phase.routed
                ? list[tile]
                : TokenTile{0, static_cast<uint16_t>(min(kTokens, plan.tokens - tile * kTokens)),
                            tile * kTokens};
        run(phase, tile, tokens, next - tile * units);
        next = !Source::kDeals || at < 0 ? next + static_cast<int>(gridDim.x) : dealt[++at];
      }
      next -= tiles * units;
    }
  }

  // By all adding threads: who the experts are, and the tokens of pairs.
  __device__ void list_experts() {
    const int thread = threadIdx.x - kFirstAdder * kWarp;
    const int lane = thread % kWarp, warp = thread / kWarp;
    const int each = (plan.experts + kAdderThreads - 1) / kAdderThreads;
    const int first = min(thread * each, plan.experts), last = min(first + each, plan.experts);
    wait_for_inputs();
    if (plan.listed_pairs > 0) {
      const int32_t* rows = nullptr;
      for (int p = 0; p < plan.num_phases; ++p) {
        if (plan.phases[p].x_rows != nullptr) rows = plan.phases[p].x_rows;
      }
#pragma unroll 1
      for (int i = thread; rows != nullptr && i < plan.listed_pairs; i += kAdderThreads) {
        copy4_async(shared_address(pair_tokens + i), rows + i, true);
      }
      commit_copies();
    }
    // Loads do not wait for each other.
    constexpr int kAtOnce = 4;
    const auto for_each_expert = [&](const auto& run) {
#pragma unroll 1
      for (int e = first; e < last; e += kAtOnce) {
        int offsets[kAtOnce + 1];
#pragma unroll
        for (int i = 0; i <= kAtOnce; ++i) offsets[i] = plan.offsets[min(e + i, last)];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (offsets[i] < offsets[i + 1]) run(e + i, offsets[i], offsets[i + 1]);
        }
      }
    };
    int tiles = 0;
    for_each_expert(
        [&](int, int begin, int end) { tiles += (end - begin + kTokens - 1) / kTokens; });
    int through = tiles;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane >= distance) through += other;
    }
    if (lane == kWarp - 1) barriers.warp_tiles[warp] = through;
    sync_adders();
#pragma unroll
    for (int w = 0; w < kAdders; ++w) through += w < warp ? barriers.warp_tiles[w] : 0;
    int at = through - tiles;
    for_each_expert([&](int e, int begin, int end) {
#pragma unroll 1
      for (; begin < end; begin += kTokens) {
        list[at++] = {static_cast<uint16_t>(e), static_cast<uint16_t>(min(kTokens, end - begin)),
                      begin};
      }
    });
    if (thread == kAdderThreads - 1) barriers.num_listed = through;
    wait_for_copies<0>();
    arrive_of_warp(shared_address(&barriers.listed));
  }

  // The same from the router's logits, for few tokens: an expert has one tile.
  __device__ void choose_experts() {
    static_assert(kTokens >= kMostFewTokens);
    const int thread = threadIdx.x - kFirstAdder * kWarp;
    const int lane = thread % kWarp, warp = thread / kWarp;
    const FewChoices& few = plan.few;
    wait_for_inputs();
#pragma unroll 1
    for (int token = warp; token < few.tokens; token += kAdders) {
      const int expert = choose_few(few, token, few_room->rooms[warp]).expert;
      if (lane < few.k) few_room->keys[token * few.k + lane] = pair_key(expert, token);
    }
    sync_adders();
    int* sorted = few_room->sorted;
#pragma unroll 1
    for (int i = thread; i < plan.pairs; i += kAdderThreads) {
      const int key = few_room->keys[i];
      const int place = place_of(key, few_room->keys, plan.pairs);
      sorted[place] = key;
      pair_tokens[place] = key & (kMostFewTokens - 1);
    }
    sync_adders();
    if (warp == 0) {
      int tiles = 0;
#pragma unroll 1
      for (int first = 0; first < plan.pairs; first += kWarp) {
        const int pair = first + lane;
        const int expert = pair < plan.pairs ? sorted[pair] >> kTokenBits : -1;
        const bool begins = expert >= 0 && (pair == 0 || sorted[pair - 1] >> kTokenBits != expert);
        const unsigned all = __ballot_sync(0xffffffffu, begins);
        if (begins) {
          int end = pair + 1;
          while (end < plan.pairs && sorted[end] >> kTokenBits == expert) ++end;
          list[tiles + __popc(all & ((1u << lane) - 1))] = {
              static_cast<uint16_t>(expert), static_cast<uint16_t>(end - pair), pair};
        }
        tiles += __popc(all);
      }
      if (lane == 0) barriers.num_listed = tiles;
    }
    arrive_of_warp(shared_address(&barriers.listed));
  }

  // By the first adding warp, once experts are listed: the units of the last phase, by the steps of
  // the phases before. A block that waits for others' results has its first weights there, whenever
  // it was done before; so no block counts as further ahead than its ring holds if the experts'
  // units before those are one round.
  __device__ void deal_last_phase() {
    const int lane = threadIdx.x % kWarp, blocks = static_cast<int>(gridDim.x);
    wait_barrier(shared_address(&barriers.listed), 0);
    const auto units_of = [&](const StreamPhase& phase) {
      const int tiles = phase.routed ? barriers.num_listed : (plan.tokens + kTokens - 1) / kTokens;
      return tiles * phase.num_units;
    };
    int32_t* loads = dealt + plan.most_dealt;
#pragma unroll 1
    for (int b = lane; b < blocks; b += kWarp) loads[b] = 0;
    int start = 0, most = 0;
    bool one_round = true;
#pragma unroll 1
    for (int p = 0; p < plan.num_phases - 1; ++p) {
      const StreamPhase& phase = plan.phases[p];
      const int units = units_of(phase);
      if (phase.routed) one_round = units <= blocks;
      most = add_turns(loads, blocks, start, units, phase.steps + 1);
      start = (start + units) % blocks;
    }
    const int least = one_round ? __reduce_max_sync(0xffffffffu, most) - plan.slots : 0;
    const StreamPhase& last = plan.phases[plan.num_phases - 1];
    deal_units(loads, blocks, static_cast<int>(blockIdx.x), least, units_of(last), last.steps + 1,
               dealt, plan.most_dealt);
    arrive_of_warp(shared_address(&barriers.dealt));
  }

  __device__ void bring_weights() {
    Ring ring(plan.slots);
    const uint32_t first_full = computed_once(full(0));
    for_each_unit([&](const StreamPhase& phase, int, const TokenTile& tokens, int unit) {
      typename Source::Weights unit_weights(phase, tokens.expert, unit);
#pragma unroll 1
      for (int left = phase.steps - 1; left >= 0; --left, ring.advance()) {
        const uint32_t barrier = first_full + ring.slot() * 8;
        wait_barrier(barrier + kFullToEmpty, ring.parity() ^ 1);
        unit_weights.bring(left == 0, weights + ring.slot() * slot_bytes<Source>(), barrier);
      }
    });
  }

  __device__ void bring_inputs() {
    const int lane = threadIdx.x % kWarp;
    Ring ring(plan.slots);
    bool waited = false;
    int known = 0;  // see columns_there()
    const uint32_t first_full = computed_once(full(0));
    if (lane < plan.num_phases) prefetch_map(&plan.phases[lane].inputs);
    publish_global_to_copies();
    const auto wait_once = [&](const StreamPhase& phase) {
      if (waited || phase.early) return;
      wait_for_inputs();
      publish_global_to_copies();
      waited = true;
    };
    for_each_unit([&](const StreamPhase& phase, int tile, const TokenTile& tokens, int) {
      if (kBlocks && phase.x_rows != nullptr) wait_once(phase);
      const uint16_t* row = nullptr;
      if (kBlocks && phase.x_rows != nullptr && lane < tokens.count) {
        const int pair = tokens.begin + lane;
        const int32_t token = plan.listed_pairs > 0 ? pair_tokens[pair] : phase.x_rows[pair];
        row = phase.x + token * phase.x_stride;
      }
      typename Source::template Inputs<kTokens> unit_inputs(phase, tokens, row);
      wait_once(phase);  // with all at hand that the first copy takes
      const int steps = phase.steps, slot_inputs = plan.slot_inputs;
      // Columns of the inputs that are there.
      int there = kBlocks && phase.awaits >= 0 ? 0 : phase.cols;
#pragma unroll 1
      for (int step = 0; step < steps; ++step, ring.advance()) {
        const uint32_t barrier = first_full + ring.slot() * 8;
        wait_barrier(barrier + kFullToEmpty, ring.parity() ^ 1);
        if (kBlocks && there < phase.cols) {
          const int end = min((step + 1) * Source::step_columns(phase), phase.cols);
          while (there < end) there = columns_there(phase, tile, known);
        }
        unit_inputs.bring(step, inputs + ring.slot() * slot_inputs, barrier);
      }
    });
    if (!waited) wait_for_inputs();
    if (kBlocks && plan.num_counters > 0) {
      // This block looks at no counter any more, and once it has counted all that it makes it
      // counts itself; not at its end, which that would put off.
      wait_barrier(shared_address(&barriers.counted), 0);
      __threadfence();
      reset_counters();
    }
  }

  __device__ void multiply() {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int set = warp / kSetWarps;
    const uint32_t first_full = computed_once(full(set));
    Ring ring(plan.slots / Source::kSets), buffers(kStreamBuffers);  // the set's slots
    int first_set = 0;  // that has the first step of a unit
    typename Source::template Lane<kTokenTiles> own;
    const StreamPhase* own_phase = nullptr;
    int own_tile = 0;
    for_each_unit([&](const StreamPhase& phase, int tile, const TokenTile& tokens, int) {
      const int row_warp = warp & (phase.row_warps - 1);
      const int column_warp = warp % kSetWarps >> phase.row_shift;
      if (&phase != own_phase || tile != own_tile) {
        own = {phase, tokens, row_warp, column_warp, lane};
        own_phase = &phase, own_tile = tile;
      }
      Sum sums[Source::kRows / 16][kTokenTiles][4] = {};
      const int first_step = Source::kSets == 1 ? 0 : set ^ first_set;
      first_set = (first_set + phase.steps) % Source::kSets;
      own.begin(first_step);
      // Where registers are scarce these are read at each step instead.
      const int kept_steps = phase.steps, kept_inputs = plan.slot_inputs;
      const auto steps = [&] { return Source::kManyRegisters ? phase.steps : kept_steps; };
      const auto slot_inputs = [&] {
        return Source::kManyRegisters ? plan.slot_inputs : kept_inputs;
      };
#pragma unroll 1
      for (int step = first_step; step < steps(); step += Source::kSets, ring.advance()) {
        const int slot = ring.slot() * Source::kSets + set;
        const uint32_t barrier = first_full + ring.slot() * (Source::kSets * 8);
        wait_barrier(barrier, ring.parity());
        own.multiply(step, weights + slot * slot_bytes<Source>(), inputs + slot * slot_inputs(),
                     sums);
        if constexpr (Source::kTailBytes > 0) {
          if (step == steps() - 1) {
            own.pass_scales(phase, weights + slot * slot_bytes<Source>(),
                            scales_of(buffers) + row_warp * Source::kRows);
          }
        }
        arrive_of_warp(barrier + kFullToEmpty);
      }

      wait_barrier(sums_empty(buffers.slot()), buffers.parity() ^ 1);
      const int row_stride = partial_stride<Source>(phase.row_warps);
      // By the steps of a unit, wherever in the ring they are.
      const int part = (first_step << (kSetShift - phase.row_shift)) + column_warp;
      Sum* own_part = reinterpret_cast<Sum*>(partials) + buffers.slot() * partial_size +
                      part * plan.partial_tokens * row_stride + row_warp * Source::kRows + lane / 4;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = 8 * t + own.token(lane % 4, i);
          if (token >= tokens.count) continue;
#pragma unroll
          for (int r = 0; r < Source::kRows / 16; ++r) {
            own_part[token * row_stride + r * 16] = sums[r][t][i];
            own_part[token * row_stride + r * 16 + 8] = sums[r][t][i + 2];
          }
        }
      }
      sums_are_there();
      buffers.advance();
    });
  }

  __device__ void add_up() {
    const int thread = threadIdx.x - kFirstAdder * kWarp;
    Ring buffers(kStreamBuffers);
    bool counted = false, rehearsed = false;
    const auto tell_counted = [&] {
      if (!counted && thread % kWarp == 0) arrive(shared_address(&barriers.counted));
      counted = true;
    };
    if constexpr (Source::Outputs::kReadsInputs) wait_for_inputs();
    for_each_unit([&](const StreamPhase& phase, int tile, const TokenTile& tokens, int unit) {
      if (phase.counts < 0) tell_counted();
      const typename Source::Outputs outputs(phase, tokens);
      // A thread adds up four neighbouring rows of every so many tokens. All that can be is made
      // ready before the sums are there.
      const bool gated = kBlocks && phase.gated;
      const int shift = kRowShift + phase.row_shift - (gated ? 3 : 2);  // threads of a token
      const int token_step = kAdderThreads >> shift, row = (thread & ((1 << shift) - 1)) * 4;
      const int first_row = (unit << (shift + 2)) + row;
      const int left = computed_once(phase.rows - first_row);  // rows of the matrix from there on
      int token = computed_once(thread >> shift);
      const int row_stride = partial_stride<Source>(phase.row_warps);
      const int part_stride = computed_once(plan.partial_tokens * row_stride);
      const int all_parts = computed_once(kMultipliers >> phase.row_shift);
      const int half_rows = 4 << shift;  // gated: from a row of gate to that of up
      const Sum* from = computed_once(reinterpret_cast<const Sum*>(partials) +
                                      buffers.slot() * partial_size + token * row_stride + row);
      const int64_t at = (tokens.begin + token) * phase.out_stride + first_row;
      float* y = computed_once(phase.y + at);
      uint16_t* packed = computed_once(phase.packed + at);
      const int64_t out_step = computed_once(token_step * phase.out_stride);
      const bool aligned = reinterpret_cast<uintptr_t>(y) % 16 == 0 && out_step % 4 == 0;
      const auto sums_of = [&](int further, int parts) {
        const Sum* of_part = from + further;
        FourSums<Sum> sums{};
#pragma unroll 4
        for (int k = 0; k < parts; ++k, of_part += part_stride) {
          const auto more = *reinterpret_cast<const FourSums<Sum>*>(of_part);
#pragma unroll
          for (int r = 0; r < 4; ++r) sums.of[r] += more.of[r];
        }
        return sums;
      };
      // Whole warps go through the loop: a token's scale comes from another lane.
      const int first_token = token - (thread % kWarp >> shift);
      // The first time before the sums are there, without sums and stores: others wait for what is
      // made here, and fetching the instructions takes as long as they do.
      int rehearses = kRehearses && gated && !rehearsed && first_token < tokens.count;
      rehearsed |= rehearses;
      // Adding warps wait for the sums at one instruction, whether they rehearse or not: synccheck
      // takes others for divergence.
      bool there = false;
#pragma unroll 1
      for (int first = first_token;;) {
        if (!rehearses && !there) {
          wait_for_sums();
          there = true;
        }
        if (first >= tokens.count) break;
        const int parts = rehearses ? 0 : all_parts;
        const float* scales = rehearses ? reinterpret_cast<const float*>(barriers.warp_tiles)
                                        : scales_of(buffers) + row;
        const float of_token = outputs.of_token(min(token, tokens.count - 1));
        if (token < tokens.count && left > 0) {
          const auto sums = sums_of(0, parts);
          float values[4];
          if (gated) {
            const auto ups = sums_of(half_rows, parts);
            const float* up_scales = rehearses ? scales : scales + half_rows;
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              const float gate = outputs.value(sums.of[r], of_token, scales, r);
              const float up = outputs.value(ups.of[r], of_token, up_scales, r);
              values[r] =
                  up * (phase.activation == Activation::kSilu ? silu(gate) : gelu_tanh(gate));
            }
            // Rows come in multiples of 64.
            const uint2 pair = {computed_once(pack_bfloat16(values[0], values[1])),
                                computed_once(pack_bfloat16(values[2], values[3]))};
            if (!rehearses) *reinterpret_cast<uint2*>(packed) = pair;
          } else {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              values[r] = outputs.value(sums.of[r], of_token, scales, r);
            }
            if (aligned && left >= 4) {
              *reinterpret_cast<float4*>(y) = {values[0], values[1], values[2], values[3]};
            } else {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                if (r < left) y[r] = values[r];
              }
            }
          }
        }
        if (rehearses) {
          rehearses = computed_once(0);
          continue;
        }
        first += token_step;
        token += token_step;
        from += token_step * row_stride;
        y += out_step;
        packed += out_step;
      }
      arrive_of_warp(sums_empty(buffers.slot()));
      buffers.advance();
      if (kBlocks && phase.counts >= 0) {
        publish_global_to_copies();
        sync_adders();
        if (thread == 0) {
          const int part = unit * phase.unit_rows / kCountedColumns;
          int32_t* counter =
              plan.counters + phase.counts + tile * stream_counters(phase.rows) + part;
          // What the barrier of the adding threads has made known to this one goes before it.
          asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
        }
      }
    });
    tell_counted();
  }

 private:
  static constexpr int kSetShift = 3, kRowShift = Source::kRows == 16 ? 4 : 5;
  static_assert(kSetWarps == 1 << kSetShift && Source::kRows == 1 << kRowShift);

  // Scales of a unit's rows: they come while the sums of the one before may still be added up.
  __device__ float* scales_of(const Ring& buffers) const {
    static_assert(kStreamBuffers == 1);
    return partials + partial_size + buffers.parity() * (scales_size / 2);
  }

  static constexpr uint32_t kFullToEmpty =
      offsetof(StreamBarriers, empty) - offsetof(StreamBarriers, full);
  static_assert(Source::kSets <= 2);

  __device__ uint32_t sums_empty(int i) const { return shared_address(&barriers.sums_empty[i]); }

  static __device__ __forceinline__ int counter_of(const int32_t* counter) {
    int count;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    return count;
  }

  // How many of the first columns of the inputs there are; up to 32 counters. known: of phases
  // whose tiles have one counter each, the ones from the phase's first to here are complete.
  __device__ int columns_there(const StreamPhase& phase, int tile, int& known) const {
    const int lane = threadIdx.x % kWarp;
    const int counters = stream_counters(phase.cols);
    if (counters == 1) {
      // The last lane looks at this tile, the others at the first ones that are not known.
      known = max(known, phase.awaits);
      const int own = phase.awaits + tile;
      if (own < known) return phase.cols;
      const int tiles = phase.routed ? barriers.num_listed : (plan.tokens + kTokens - 1) / kTokens;
      const int end = phase.awaits + tiles;
      const int looked = lane == kWarp - 1 ? own : min(known + lane, end - 1);
      const bool done = counter_of(plan.counters + looked) * phase.awaited_unit_rows >= phase.cols;
      const unsigned missing = ~__ballot_sync(0xffffffffu, done);
      known = min(known + __ffs(static_cast<int>(missing | 1u << (kWarp - 1))) - 1, end);
      __syncwarp();
      if (missing != ~0u) publish_global_to_copies();
      return missing >> (kWarp - 1) == 0 ? phase.cols : 0;
    }
    int count = 0;
    if (lane < counters) {
      count = counter_of(plan.counters + phase.awaits + tile * counters + lane);
    }
    const int columns = min(kCountedColumns, phase.cols - lane * kCountedColumns);
    const bool done = lane < counters && count * phase.awaited_unit_rows >= columns;
    const unsigned missing = ~__ballot_sync(0xffffffffu, done);
    const int parts = missing == 0 ? kWarp : __ffs(static_cast<int>(missing)) - 1;
    __syncwarp();
    if (parts > 0) publish_global_to_copies();
    return min(parts * kCountedColumns, phase.cols);
  }

  static __device__ void sync_adders() {
    asm volatile("bar.sync 1, %0;" ::"n"(kAdderThreads) : "memory");
  }
  // From the multiplying warps, which do not wait, to the adding ones. With one buffer none arrives
  // a second time before those have left the barrier.
  static constexpr int kSumThreads = (kMultipliers + kAdders) * kWarp;
  static __device__ void sums_are_there() {
    static_assert(kStreamBuffers == 1);
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"(kSumThreads) : "memory");
  }
  static __device__ void wait_for_sums() {
    __syncwarp();
    asm volatile("bar.sync 2, %0;" ::"n"(kSumThreads) : "memory");
  }

  // Counter 0 counts the blocks that are through with the others; the last one leaves all at zero.
  __device__ void reset_counters() {
    const int lane = threadIdx.x % kWarp;
    int last = 0;
    wait_for_inputs();  // which may use them, too
    if (lane == 0) last = atomicAdd(plan.counters, 1) == static_cast<int>(gridDim.x) - 1;
    if (__shfl_sync(0xffffffffu, last, 0) == 0) return;
#pragma unroll 1
    for (int i = lane; i < plan.num_counters; i += kWarp) plan.counters[i] = 0;
  }
};

template <typename Source, int kTokenTiles>
__global__ void __launch_bounds__(StreamBlock<Source, kTokenTiles>::kBoundThreads, 1)
    stream_kernel(const __grid_constant__ StreamPlan plan) {
#if __CUDA_ARCH__ >= 900
  using Block = StreamBlock<Source, kTokenTiles>;
  __shared__ StreamBarriers barriers;
  extern __shared__ unsigned char unaligned[];
  unsigned char* ring = unaligned + (-shared_address(unaligned) & (kBoxAlignment - 1));
  unsigned char* inputs = ring + ring_bytes<Source>(plan.slots);
  auto* few_room = reinterpret_cast<FewRoom*>(inputs + plan.slots * plan.slot_inputs);
  const int few_rooms = Block::kChooses && plan.few.logits != nullptr ? 1 : 0;
  auto* partials = reinterpret_cast<float*>(few_room + few_rooms);
  auto* entries = reinterpret_cast<TokenTile*>(partials + kStreamBuffers * plan.partial_size +
                                               plan.scales_size);
  auto* words = reinterpret_cast<int32_t*>(entries + plan.most_entries);
  Block block{plan,
              barriers,
              entries,
              words,
              words + plan.listed_pairs,
              few_room,
              shared_address(ring),
              shared_address(inputs),
              partials,
              plan.partial_size,
              plan.scales_size};
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < plan.slots; ++slot) {
      init_barrier(block.full(slot), 2);
      init_barrier(block.empty(slot), kSetWarps * kWarpArrivals);
    }
    for (int i = 0; i < kStreamBuffers; ++i) {
      init_barrier(shared_address(&barriers.sums_empty[i]), Block::kAdders * kWarpArrivals);
    }
    init_barrier(shared_address(&barriers.listed), Block::kAdders * kWarpArrivals);
    init_barrier(shared_address(&barriers.dealt), kWarpArrivals);
    init_barrier(shared_address(&barriers.counted), Block::kAdders);
    publish_barriers();
  }
  __syncthreads();
  if (warp == Block::kWeightWarp) {
    if (threadIdx.x % kWarp == 0) block.bring_weights();
  } else if (warp == Block::kInputWarp) {
    block.bring_inputs();
  } else if (warp >= Block::kFirstAdder) {
    bool chosen = false;
    if constexpr (Block::kChooses) {
      chosen = plan.few.logits != nullptr;
      if (chosen) block.choose_experts();
    }
    if (Block::kBlocks && plan.experts > 0 && !chosen) block.list_experts();
    if constexpr (Source::kDeals) {
      if (warp == Block::kFirstAdder && plan.most_dealt > 0) block.deal_last_phase();
    }
    block.add_up();
  } else {
    block.multiply();
  }
#endif
}

}  // namespace braid::cuda
