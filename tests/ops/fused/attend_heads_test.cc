#include "ops/fused/attend_heads.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "ops/fused/twin_stores.h"
#include "ops/op_test.h"
#include "tensor/cuda/stream_state.h"

namespace braid {
namespace {

struct Case {
  int64_t head_dim = 256, kv_heads = 2, group = 2, window = 0;
  std::vector<int64_t> positions;  // of the new rows
  bool stores = true, values_from_keys = false, rounded = false;
  DType dtype = DType::kBF16;
  int64_t pairs = 0;      // 0: some
  bool declined = false;  // by contract, on every device
};

class AttendHeadsTest : public OpTest {
 protected:
  static constexpr int64_t kPageTokens = 16;

  Tensor random_weight(int64_t width) {
    Tensor weight(DType::kF32, {width}, device);
    for (float& w : weight.view().span<float>()) w = random.uniform(0.2f, 1.5f);
    return weight;
  }

  // Behind a sequence's tokens its last page may have anything.
  static void spoil_unseen_rows(const Case& c, const std::vector<std::vector<int32_t>>& pages,
                                const TwinStores& stores) {
    for (const Tensor* tensor :
         {&stores.keys, &stores.values, &stores.other_keys, &stores.other_values}) {
      BFloat16* const all = tensor->view().span<BFloat16>().data();
      for (size_t i = 0; i < pages.size(); ++i) {
        const int64_t first = c.positions[i] % kPageTokens + 1;
        for (int64_t head = 0; head < c.kv_heads; ++head) {
          const int64_t row = (pages[i].back() * c.kv_heads + head) * kPageTokens + first;
          std::fill_n(all + row * c.head_dim, (kPageTokens - first) * c.head_dim,
                      to_bfloat16(kNan));
        }
      }
    }
  }

  // Against the ops in turn. Both round queries and weights to bfloat16 and have keys and values of
  // the same bits (int8: weights are rounded with the values' scales). A score s = scale · Σ q k,
  // summed in any order by tensor cores, is off by at most δ = 2 · dim · 2^-24 · scale · |q| |k|; a
  // weight by a factor e^±2δ, and by 2^-9 for its rounding; the weights' sum is that of the rounded
  // ones. So each of the two results is off by at most (2^-8 + 4δ + a few 2^-24) · max |v|.
  void check(const Case& c) {
    SCOPED_TRACE(
        fmt::format("{}, head {}, {} KV heads, group {}, window {}, {}{}{}", dtype_name(c.dtype),
                    c.head_dim, c.kv_heads, c.group, c.window, c.stores ? "" : "borrowed ",
                    c.values_from_keys ? "values from keys " : "", c.rounded ? "rounded" : ""));
    Workspace::Scope scope(workspace);
    const auto tokens = static_cast<int64_t>(c.positions.size());
    const int64_t heads = c.kv_heads * c.group;
    std::vector<std::vector<int32_t>> pages;
    std::vector<SequenceRows> sequences;
    int64_t num_pages = 0;
    for (const int64_t position : c.positions) {
      const int64_t ring = c.window > 0 ? (c.window + kPageTokens - 1) / kPageTokens + 1 : position;
      const int64_t count = std::min(position / kPageTokens + 1, ring + 1);
      num_pages += count;
      pages.emplace_back(static_cast<size_t>(count));
    }
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    size_t next = 0;
    for (size_t i = 0; i < pages.size(); ++i) {
      for (int32_t& page : pages[i]) page = order[next++];
      sequences.push_back({static_cast<int64_t>(i), 1, c.positions[i], pages[i]});
    }
    const TwinStores stores(c.dtype, {num_pages, c.kv_heads, kPageTokens, c.head_dim}, device,
                            random);
    if (c.dtype == DType::kBF16 && c.window == 0) spoil_unseen_rows(c, pages, stores);
    double largest_value = stores.largest_value(), largest_key = stores.largest_key();

    PaddedTensor q({tokens, heads, c.head_dim}, 4), k({tokens, c.kv_heads, c.head_dim}, 4);
    PaddedTensor v({tokens, c.kv_heads, c.head_dim}, 4);
    q.fill_normal(random);
    k.fill_normal(random);
    v.fill_normal(random);
    PaddedTensor other_q({tokens, heads, c.head_dim}, 4);
    PaddedTensor other_k({tokens, c.kv_heads, c.head_dim}, 4);
    PaddedTensor other_v({tokens, c.kv_heads, c.head_dim}, 4);
    other_q.copy_from(q);
    other_k.copy_from(k);
    other_v.copy_from(v);
    const int64_t pairs = c.pairs > 0 ? c.pairs : random.pick({c.head_dim / 2, c.head_dim / 4});
    PaddedTensor cos({tokens, pairs}, 0), sin({tokens, pairs}, 0);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < pairs; ++i) {
        const float angle = random.uniform(-3, 3);
        cos.row(t)[i] = std::cos(angle), sin.row(t)[i] = std::sin(angle);
      }
    }
    const Tensor q_norm = random_weight(c.head_dim), k_norm = random_weight(c.head_dim);
    const HeadOptions options{.q_norm = q_norm.view(),
                              .k_norm = k_norm.view(),
                              .normed_values = c.values_from_keys || random.integer(0, 1) == 1,
                              .epsilon = 1e-6f,
                              .cos = cos.view(),
                              .sin = sin.view(),
                              .pair_distance = random.pick({c.head_dim / 2, pairs})};
    const AttentionOptions attention_options{
        .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim))),
        .window = c.window};
    const PagedKv cache = stores.cache(), other = stores.other();
    const TensorView none;
    const auto done = attend_heads(stream, workspace,
                                   {q.view(), c.stores ? k.view() : none,
                                    c.stores ? (c.values_from_keys ? k.view() : v.view()) : none,
                                    options, attention_options, sequences, cache},
                                   c.rounded);
    ASSERT_EQ(done.has_value(), on_cuda() && stream.cuda().overlaps_kernels() && !c.declined);
    if (!done) return;

    if (c.stores) {
      prepare_heads(stream, workspace, other_q, other_k,
                    c.values_from_keys ? other_k.view() : other_v.view(), options, sequences,
                    other);
    } else {
      prepare_queries(stream, other_q, options);
    }
    PaddedTensor expected({tokens, heads, c.head_dim}, 0);
    attention(stream, workspace, other_q, other, sequences, attention_options, expected);
    ASSERT_TRUE(stores.are_equal()) << "the cache";
    largest_key = std::max(largest_key, stores.largest_key());
    largest_value = std::max(largest_value, stores.largest_value());
    // |q| after its norm and rotation: weights up to 1.5.
    const double root = std::sqrt(static_cast<double>(c.head_dim));
    const double q_length = 1.5 * root * 1.01, k_length = largest_key * root;
    const double delta = 2 * static_cast<double>(c.head_dim) * kUnitRoundoff *
                         attention_options.scale * q_length * k_length / root;
    const double bound = 2 * (0x1p-7 + 4 * delta + 64 * kUnitRoundoff) * largest_value;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < heads * c.head_dim; ++i) {
        const double value = expected.row(t)[i];
        const double actual =
            c.rounded ? to_float(done->packed.row<BFloat16>(t)[i]) : done->x.row<float>(t)[i];
        const double rounding = c.rounded ? 0x1p-8 * std::fabs(value) : 0;
        ASSERT_LE(std::fabs(actual - value), bound + rounding)
            << "position " << c.positions[static_cast<size_t>(t)] << ", element " << i << ": "
            << actual << " for " << value;
      }
    }
  }

  std::vector<int64_t> positions(std::initializer_list<int64_t> some) {
    std::vector<int64_t> all(some);
    all.push_back(random.integer(0, 400));
    std::shuffle(all.begin(), all.end(), random.engine());
    return all;
  }
};

TEST_P(AttendHeadsTest, MatchTheOpsInTurn) {
  for (const int64_t head_dim : {64, 128, 256, 512}) {
    for (const int64_t window : {0, 1, 63, 64, 100}) {
      if (small_tests() && window != 0 && window != 63) continue;
      check({.head_dim = head_dim,
             .kv_heads = random.integer(1, small_tests() ? 2 : 8),
             .group = random.pick<int64_t>({1, 2, 8, 16}),
             .window = window,
             .positions = small_tests() ? std::vector<int64_t>{0, 31, 64, random.integer(65, 200)}
                                        : positions({0, 1, 31, 32, 63, 64, 65, 127, 200}),
             .stores = random.integer(0, 3) > 0,
             .values_from_keys = random.integer(0, 1) == 1,
             .rounded = random.integer(0, 1) == 1,
             .dtype = random.pick({DType::kBF16, DType::kI8})});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttendHeadsTest, FewSequencesAreSplit) {
  for (const int64_t head_dim : {256, 512}) {
    for (const int64_t position : {0, 5, 255, 256, 511, 700, 1023}) {
      if (small_tests() && position != 5 && position != 256 && position != 700) continue;
      for (const int64_t window : {0, 512}) {
        check({.head_dim = head_dim,
               .kv_heads = small_tests() ? 1 : random.pick<int64_t>({1, 8}),
               .group = random.pick<int64_t>({2, 16}),
               .window = window,
               .positions = {position},
               .rounded = true,
               .dtype = random.pick({DType::kBF16, DType::kI8})});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(AttendHeadsTest, ManySequencesOfWideHeads) {
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    std::vector<int64_t> many(40);
    for (int64_t& position : many) position = random.integer(0, small_tests() ? 70 : 150);
    check({.head_dim = 512,
           .kv_heads = small_tests() ? 2 : random.pick<int64_t>({2, 8}),
           .group = random.pick<int64_t>({2, 16}),
           .positions = many,
           .rounded = true,
           .dtype = dtype});
    if (HasFatalFailure()) return;
  }
}

// Enough pairs of a sequence and a KV head that keys and values come through rings, for blocks with
// less than a tile, several, and more than a ring holds.
TEST_P(AttendHeadsTest, ManySequencesOfManyKeys) {
  struct Many {
    int64_t kv_heads, sequences, most;
  };
  for (const auto& [kv_heads, sequences, most] :
       {Many{8, 4, 700}, Many{8, 8, 350}, Many{8, 10, 300}, Many{4, 9, 700}, Many{1, 170, 400}}) {
    if (small_tests() && most < 700) continue;
    for (const int64_t window : {0, 1, 63, 64, 100, 512}) {
      if (small_tests() && window != 0 && window != 63) continue;
      std::vector<int64_t> many{0, 700, 256, 31, 287, 8, 64, 7, 33};
      many.resize(static_cast<size_t>(sequences), -1);
      for (int64_t& position : many) {
        if (position < 0) position = random.integer(0, most);
      }
      std::shuffle(many.begin(), many.end(), random.engine());
      check({.kv_heads = kv_heads,
             .group = random.pick<int64_t>({1, 2, 8, 16}),
             .window = window,
             .positions = many,
             .stores = random.integer(0, 3) > 0,
             .values_from_keys = random.integer(0, 1) == 1,
             .rounded = random.integer(0, 1) == 1});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttendHeadsTest, PairsAreTurnedByFours) {
  check({.positions = {3, 40}, .pairs = 30, .declined = true});
  check({.positions = {3, 40}, .pairs = 28});
}

// The tables of one row's pages hold a power of two of them.
TEST_P(AttendHeadsTest, MostKeys) {
  static_assert(std::has_single_bit(static_cast<uint64_t>(kMostAttendedKeys / kPageTokens)));
  for (const int64_t past : {0, 1}) {
    const int64_t position = kMostAttendedKeys - 1 + past;
    const auto dtype = random.pick({DType::kBF16, DType::kI8});
    check({.head_dim = small_tests() ? 64 : 256,
           .kv_heads = 1,
           .positions = {position},
           .dtype = dtype,
           .declined = past > 0});
    if (HasFatalFailure()) return;
    check({.kv_heads = 1, .window = 512, .positions = {position}, .dtype = dtype});
    if (HasFatalFailure()) return;
  }
}

BRAID_INSTANTIATE_PER_TARGET(AttendHeadsTest);

}  // namespace
}  // namespace braid
