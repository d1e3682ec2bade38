// Any series of reserve, write, commit, truncate and destruction over several sequences and groups
// shows the same keys and values as a dense copy per sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "cache/sequence_state.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

using testing::FreshRandom;

// A sequence and what it should remember: one number per token, told apart from all others.
struct Tracked {
  SequenceState state;
  std::vector<float> tokens;  // committed, then reserved ones
};

class Model {
 public:
  Model(FreshRandom& random, const CacheLayout& layout, const CacheOptions& options)
      : random_(random), pool_(std::make_unique<CachePool>(layout, options)) {}

  void run(int num_operations) {
    for (int i = 0; i < num_operations && !::testing::Test::HasFailure(); ++i) {
      operate();
      check_all();
    }
    std::shuffle(sequences_.begin(), sequences_.end(), random_.engine());
    while (!sequences_.empty()) {
      sequences_.pop_back();
      check_accounts();
    }
    EXPECT_TRUE(pool_->idle());
  }

  int64_t num_refused_reserves = 0;
  int64_t num_refused_truncates = 0;
  int64_t num_wraps = 0;

 private:
  const CacheOptions& options() const { return pool_->plan().options; }

  void operate() {
    const int64_t kind = random_.integer(0, 19);
    if (sequences_.empty() ||
        (kind == 0 && static_cast<int64_t>(sequences_.size()) < options().max_sequences + 1)) {
      sequences_.push_back({SequenceState(*pool_), {}});
      return;
    }
    const size_t index = static_cast<size_t>(random_.integer(0, sequences_.size() - 1));
    Tracked& sequence = sequences_[index];
    if (kind == 1) {
      std::swap(sequence, sequences_.back());
      sequences_.pop_back();
    } else if (kind <= 3) {
      truncate(sequence);
    } else {
      step(sequence);
    }
  }

  void step(Tracked& sequence) {
    const int64_t want = random_.coin(0.3) ? options().max_step_tokens
                                           : random_.integer(0, options().max_step_tokens);
    if (!reserve(sequence, want)) return;
    // Sometimes in two parts.
    const int64_t more = options().max_step_tokens - sequence.state.reserved();
    if (more > 0 && random_.coin(0.2)) reserve(sequence, random_.integer(1, more));
    check_all();
    const int64_t reserved = sequence.state.reserved();
    const int64_t keep = random_.coin() ? reserved : random_.integer(0, reserved);
    const int64_t length = sequence.state.length();
    sequence.state.commit(keep);
    EXPECT_EQ(sequence.state.length(), length + keep);
    sequence.tokens.resize(static_cast<size_t>(length + keep));
  }

  bool reserve(Tracked& sequence, int64_t n) {
    const int64_t begin = sequence.state.length() + sequence.state.reserved();
    bool room = begin + n <= options().max_sequence_tokens;
    std::vector<std::vector<int32_t>> before;
    for (int g = 0; g < pool_->num_groups(); ++g) {
      const auto pages = sequence.state.pages(g);
      before.emplace_back(pages.begin(), pages.end());
      const int64_t table = (begin + n + options().page_tokens - 1) / options().page_tokens;
      const int64_t needed = std::min(table, pool_->plan().groups[g].max_pages_per_sequence);
      if (needed - static_cast<int64_t>(pages.size()) > pool_->num_free_pages(g)) room = false;
    }
    EXPECT_EQ(sequence.state.reserve(n), room);
    if (!room) {
      ++num_refused_reserves;
      EXPECT_EQ(sequence.state.length() + sequence.state.reserved(), begin);
      for (int g = 0; g < pool_->num_groups(); ++g) {
        const auto pages = sequence.state.pages(g);
        EXPECT_EQ(before[g], std::vector<int32_t>(pages.begin(), pages.end()));
      }
      return false;
    }
    for (int64_t position = begin; position < begin + n; ++position) {
      const float token = next_token_++;
      sequence.tokens.push_back(token);
      for (int64_t layer = 0; layer < pool_->num_layers(); ++layer) {
        if (pool_->plan().layers[layer].owner == layer) write(sequence, layer, position, token);
      }
    }
    return true;
  }

  void truncate(Tracked& sequence) {
    const int64_t length = sequence.state.length();
    // Often at the edge of what the rings still hold, and back to nothing.
    int64_t target = random_.integer(0, length);
    if (random_.coin(0.6)) {
      target = std::clamp<int64_t>(sequence.state.min_truncate_length() + random_.integer(-1, 1), 0,
                                   length);
    } else if (random_.coin(0.4)) {
      target = 0;
    }
    bool intact = true;
    for (int64_t layer = 0; layer < pool_->num_layers(); ++layer) {
      intact &= target == 0 || visible_matches(sequence, layer, target);
    }
    EXPECT_EQ(sequence.state.truncate(target), intact) << length << " to " << target;
    if (intact) {
      sequence.tokens.resize(static_cast<size_t>(target));
    } else {
      ++num_refused_truncates;
    }
  }

  float* slot(const TensorView& store, const SequenceState& state, int group, int64_t position,
              int64_t head) {
    const auto pages = state.pages(group);
    const int64_t page_tokens = store.dim(2);
    const int64_t page = pages[static_cast<size_t>(position / page_tokens) % pages.size()];
    return store.data<float>() +
           ((page * store.dim(1) + head) * page_tokens + position % page_tokens) * store.dim(3);
  }

  void write(Tracked& sequence, int64_t layer, int64_t position, float token) {
    const PagedKv kv = pool_->layer_kv(layer);
    for (int64_t head = 0; head < kv.num_kv_heads(); ++head) {
      float* key = slot(kv.keys, sequence.state, pool_->layer_group(layer), position, head);
      float* value = slot(kv.values, sequence.state, pool_->layer_group(layer), position, head);
      for (int64_t i = 0; i < kv.head_dim(); ++i) {
        key[i] = expected(token, layer, head, i);
        value[i] = -key[i];
      }
    }
  }

  static float expected(float token, int64_t layer, int64_t head, int64_t i) {
    return token * 64 + static_cast<float>(layer * 8 + head * 4 + i);
  }

  // Whether the layer shows what the token at `position` sees before it.
  bool visible_matches(Tracked& sequence, int64_t layer, int64_t position) {
    const int group = pool_->plan().layers[layer].group;
    const int64_t owner = pool_->plan().layers[layer].owner;
    if (group < 0) return true;
    const int64_t window = pool_->plan().groups[group].window;
    const PagedKv kv = pool_->layer_kv(layer);
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
    for (int64_t p = first; p < position; ++p) {
      for (int64_t head = 0; head < kv.num_kv_heads(); ++head) {
        const float* key = slot(kv.keys, sequence.state, group, p, head);
        const float* value = slot(kv.values, sequence.state, group, p, head);
        for (int64_t i = 0; i < kv.head_dim(); ++i) {
          const float e = expected(sequence.tokens[static_cast<size_t>(p)], owner, head, i);
          if (key[i] != e || value[i] != -e) return false;
        }
      }
    }
    return true;
  }

  void check_all() {
    check_accounts();
    for (Tracked& sequence : sequences_) {
      const int64_t length = sequence.state.length();
      const int64_t end = length + sequence.state.reserved();
      ASSERT_EQ(static_cast<int64_t>(sequence.tokens.size()), end);
      for (int64_t layer = 0; layer < pool_->num_layers(); ++layer) {
        // Every row of the step, and the token that would come next if all or none were kept.
        for (int64_t position = length; position <= end; ++position) {
          if (position == end && end - length == options().max_step_tokens) continue;
          ASSERT_TRUE(visible_matches(sequence, layer, position))
              << "layer " << layer << " position " << position << " of " << end;
        }
        check_pages_of_live_rows(sequence.state, layer);
      }
    }
  }

  // No page holds both a row that the next committed token sees and a row of another page.
  void check_pages_of_live_rows(const SequenceState& state, int64_t layer) {
    const int group = pool_->layer_group(layer);
    const int64_t end = state.length() + state.reserved();
    if (group < 0 || end == 0) return;
    const int64_t window = pool_->plan().groups[group].window;
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, state.length() - window + 1);
    const int64_t num_live_pages =
        (end - 1) / options().page_tokens - first / options().page_tokens + 1;
    const int64_t num_pages = static_cast<int64_t>(state.pages(group).size());
    ASSERT_LE(num_live_pages, num_pages);
    if (end > num_pages * options().page_tokens) ++num_wraps;
  }

  void check_accounts() {
    for (int g = 0; g < pool_->num_groups(); ++g) {
      std::set<int32_t> held;
      size_t count = 0;
      for (const Tracked& sequence : sequences_) {
        const auto pages = sequence.state.pages(g);
        held.insert(pages.begin(), pages.end());
        count += pages.size();
      }
      ASSERT_EQ(held.size(), count) << "a page has two owners";
      ASSERT_EQ(pool_->num_used_pages(g), static_cast<int64_t>(count));
      ASSERT_EQ(pool_->num_used_pages(g) + pool_->num_free_pages(g),
                pool_->plan().groups[g].num_pages);
    }
  }

  FreshRandom& random_;
  std::unique_ptr<CachePool> pool_;
  std::vector<Tracked> sequences_;
  float next_token_ = 1;  // exact in float32: stays far below 2^24 / 64
};

CacheLayout random_layout(FreshRandom& random) {
  const std::vector<int64_t> windows = {1, 2, 7, 8, 9, 16, 31, 33, 50};
  CacheLayout layout;
  const int64_t num_layers = random.integer(1, 6);
  std::vector<int64_t> owners;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const int64_t kind = random.integer(0, 9);
    if (kind < 3) {
      layout.layers.push_back(FullKv{random.integer(1, 2), random.integer(1, 2)});
      owners.push_back(layer);
    } else if (kind < 7) {
      layout.layers.push_back(
          WindowKv{random.integer(1, 2), random.integer(1, 2), random.pick(windows)});
      owners.push_back(layer);
    } else if (kind < 9 && !owners.empty()) {
      layout.layers.push_back(SharesKvOf{random.pick(owners)});
    } else {
      layout.layers.push_back(NoCache{});
    }
  }
  return layout;
}

TEST(SequenceStateProperty, AnySeriesEqualsADenseCopy) {
  FreshRandom random;
  int64_t num_refused_reserves = 0;
  int64_t num_refused_truncates = 0;
  int64_t num_wraps = 0;
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    CacheOptions options;
    options.page_tokens = random.pick(std::vector<int64_t>{8, 16, 32});
    options.max_step_tokens = random.pick(std::vector<int64_t>{1, 2, 3, 5, 8, 17, 40});
    options.max_tokens = random.integer(1, 400);
    options.max_sequences = random.integer(1, 4);
    options.max_sequence_tokens = random.coin() ? 0 : random.integer(1, options.max_tokens);
    Model model(random, random_layout(random), options);
    model.run(150);
    num_refused_reserves += model.num_refused_reserves;
    num_refused_truncates += model.num_refused_truncates;
    num_wraps += model.num_wraps;
  }
  // The cases that matter did come up.
  EXPECT_GT(num_refused_reserves, 0);
  EXPECT_GT(num_refused_truncates, 0);
  EXPECT_GT(num_wraps, 0);
}

// The capacity that the options promise, at its worst: sequences that end one token into a page.
TEST(SequenceStateProperty, PromisedSequencesAlwaysFit) {
  FreshRandom random;
  for (int round = 0; round < 300 && !HasFailure(); ++round) {
    CacheOptions options;
    options.page_tokens = random.pick(std::vector<int64_t>{8, 16, 32});
    options.max_step_tokens = random.integer(1, 50);
    options.max_tokens = random.integer(1, 500);
    options.max_sequences = random.integer(1, 8);
    CachePool pool(random_layout(random), options);
    std::vector<SequenceState> sequences;
    int64_t left = options.max_tokens;
    for (int64_t s = 0; s < options.max_sequences; ++s) {
      int64_t tokens = random.integer(0, left);
      if (random.coin())
        tokens = std::min(left, tokens / options.page_tokens * options.page_tokens + 1);
      if (s == options.max_sequences - 1) tokens = left;
      left -= tokens;
      sequences.emplace_back(pool);
      while (tokens > 0) {
        const int64_t n = std::min(tokens, random.integer(1, options.max_step_tokens));
        ASSERT_TRUE(sequences.back().reserve(n));
        sequences.back().commit(n);
        tokens -= n;
      }
    }
  }
}

}  // namespace
}  // namespace braid
