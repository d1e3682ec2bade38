#include "ops/gated_delta/gated_delta.h"

#include <numeric>

#include "ops/gated_delta/delta_problem.h"

namespace braid {
namespace {

constexpr GatedDeltaForm kForms[] = {GatedDeltaForm::kRecurrent, GatedDeltaForm::kChunks};

class GatedDeltaTest : public OpTest {
 protected:
  DeltaDims random_dims() {
    return {.key_heads = random.integer(1, 4),
            .ratio = random.integer(1, 4),
            .key_dim = random.pick({16, 17, 24, 32, 47, 64}),
            .value_dim = random.pick({1, 3, 16, 24, 32, 37, 64}),
            .order = random.pick({ValueHeadOrder::kGrouped, ValueHeadOrder::kTiled})};
  }
  DeltaData random_data() {
    return random.pick({DeltaData::kModel, DeltaData::kParallel, DeltaData::kMixed});
  }
  PaddedTensor output(const DeltaProblem& p) {
    return PaddedTensor({p.tokens(), p.dims.value_heads(), p.dims.value_dim}, random.integer(0, 5));
  }
  void run(const DeltaProblem& p, const DeltaStore& store, std::vector<RecurrentRows> sequences,
           GatedDeltaForm form, const PaddedTensor& out) {
    run(stream, p, store, sequences, form, out);
  }
  void run(Stream& on, const DeltaProblem& p, const DeltaStore& store,
           std::vector<RecurrentRows> sequences, GatedDeltaForm form, const PaddedTensor& out) {
    gated_delta(on, workspace, p.inputs(), store.layer, sequences,
                {.order = p.dims.order, .form = form}, out);
    EXPECT_EQ(workspace.used_bytes(), 0u);
    EXPECT_TRUE(out.gaps_untouched());
  }
  void fill_state(const DeltaStore& store, int64_t slot) {
    float* state = store.states.view().row<float>(slot);
    for (int64_t i = 0; i < store.states.view().row_stride(); ++i) state[i] = random.normal(0.3f);
  }
};

void expect_row(const PaddedTensor& out, int64_t row, const std::vector<double>& expected,
                const std::vector<double>& bounds) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(out.row(row)[i], expected[i], bounds[i]) << "row " << row << ", element " << i;
  }
}

// After every number of tokens that a chunk's tail can have, a few times over.
TEST_P(GatedDeltaTest, EveryLengthMatchesReference) {
  for (const DeltaData data : {DeltaData::kModel, DeltaData::kParallel, DeltaData::kMixed}) {
    const DeltaDims dims{.key_heads = 1, .ratio = 2, .key_dim = 16, .value_dim = 24};
    const DeltaProblem p(dims, 257, data, random);
    DeltaReference reference(dims);
    std::vector<std::vector<double>> expected(257), bounds(257);
    for (int64_t n = 1; n <= 257; ++n) {
      reference.token(p, n - 1, expected[n - 1], bounds[n - 1]);
      if (small_tests() && n % 64 > 1 && n % 64 != 33) continue;
      for (const GatedDeltaForm form : kForms) {
        SCOPED_TRACE(testing::Message() << n << " tokens, form " << static_cast<int>(form)
                                        << ", data " << static_cast<int>(data));
        DeltaStore store(dims, 2, 0);
        const PaddedTensor out = output(p);
        run(p, store, {{.num_rows = n, .slot = 1, .fresh = true}}, form, out);
        ASSERT_NO_FATAL_FAILURE(reference.expect_state(store.states.view().row<float>(1)));
        for (int64_t t = 0; t < n; ++t) {
          ASSERT_NO_FATAL_FAILURE(expect_row(out, t, expected[t], bounds[t]));
        }
        for (int64_t t = n; t < 257; ++t) ASSERT_TRUE(std::isnan(out.row(t)[0]));
      }
    }
  }
}

TEST_P(GatedDeltaTest, AnyShapeFromAnyStateMatchesReference) {
  for (int round = 0; round < (small_tests() ? 3 : 30); ++round) {
    const DeltaDims dims = random_dims();
    const int64_t n = random.integer(1, small_tests() ? 140 : 600);
    const DeltaProblem p(dims, n, random_data(), random);
    DeltaStore start(dims, 1, 0);
    fill_state(start, 0);
    for (const GatedDeltaForm form : kForms) {
      SCOPED_TRACE(testing::Message()
                   << dims.key_heads << " × " << dims.ratio << " heads, " << dims.key_dim << " × "
                   << dims.value_dim << ", " << n << " tokens, form " << static_cast<int>(form));
      DeltaReference reference(dims);
      reference.start_from(start.states.data<float>());
      DeltaStore store(dims, 1, 0);
      std::ranges::copy(start.states.view().span<float>(), store.states.data<float>());
      const PaddedTensor out = output(p);
      run(p, store, {{.num_rows = n}}, form, out);
      std::vector<double> expected, bounds;
      for (int64_t t = 0; t < n; ++t) {
        reference.token(p, t, expected, bounds);
        ASSERT_NO_FATAL_FAILURE(expect_row(out, t, expected, bounds));
      }
      ASSERT_NO_FATAL_FAILURE(reference.expect_state(store.states.data<float>()));
    }
  }
}

// At the dimensions of real models, as closely as their specification asks: 1e-5 of the whole.
TEST_P(GatedDeltaTest, FormsAgreeAtRealDimensions) {
  const DeltaDims dims{
      .key_heads = 1, .ratio = small_tests() ? 1 : 2, .key_dim = 128, .value_dim = 128};
  for (const int64_t n : {1, 2, 3, 63, 64, 65, 127, 200}) {
    if (small_tests() && n != 1 && n != 65 && n != 127) continue;
    for (const DeltaData data : {DeltaData::kModel, DeltaData::kParallel, DeltaData::kMixed}) {
      if (small_tests() && (n == 65) != (data == DeltaData::kModel)) continue;
      const DeltaProblem p(dims, n, data, random);
      // Queries with a share of their keys: at right angles to a key, and after a strong decay, all
      // that an output is would be what is left of terms that cancel.
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t i = 0; i < dims.key_dim; ++i) p.q.row(t)[i] += p.k.row(t)[i];
      }
      DeltaStore store(dims, 2, 0);
      fill_state(store, 0);
      store.copy_slot(0, 1);
      const PaddedTensor a = output(p), b = output(p);
      run(p, store, {{.num_rows = n, .slot = 0}}, GatedDeltaForm::kRecurrent, a);
      run(p, store, {{.num_rows = n, .slot = 1}}, GatedDeltaForm::kChunks, b);
      const auto relative = [](const float* x, const float* y, int64_t count) {
        double error = 0, size = 0;
        for (int64_t i = 0; i < count; ++i) {
          error += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
          size += double{x[i]} * x[i];
        }
        return std::sqrt(error / size);
      };
      const TensorView states = store.states;
      EXPECT_LE(relative(states.row<float>(0), states.row<float>(1), states.row_stride()), 1e-5);
      std::vector<float> outs[2];
      for (int64_t t = 0; t < n; ++t) {
        outs[0].insert(outs[0].end(), a.row(t), a.row(t) + a.row_elements());
        outs[1].insert(outs[1].end(), b.row(t), b.row(t) + b.row_elements());
      }
      EXPECT_LE(relative(outs[0].data(), outs[1].data(), n * a.row_elements()), 1e-5)
          << n << " tokens, data " << static_cast<int>(data);
    }
  }
}

// Chunks whose factors are rounded to bfloat16: each of the products behind an output (K·S, A·D,
// the inverses, Q·S, M·D, Kᵀ·D) errs by at most two roundings of 2⁻⁸ of its size, norm by norm. A
// chunk does not enlarge what those before it left in the state (of I - beta k kᵀ and decays no
// norm is above 1); such errors are of roundings that have nothing to do with each other, so
// squares add up.
TEST_P(GatedDeltaTest, RoundedChunksAtRealDimensions) {
  constexpr double kChunkBound = 6 * 2 * 0x1p-8;
  constexpr int64_t kChunkTokens = 64;
  for (const int64_t n : {48, 63, 64, 65, 130, 256, 300}) {
    if (small_tests() && n != 48 && n != 130) continue;
    const double bound = kChunkBound * std::sqrt((n + kChunkTokens - 1) / kChunkTokens);
    const DeltaDims dims{.key_heads = random.integer(1, 2),
                         .ratio = random.integer(1, 2),
                         .key_dim = 128,
                         .value_dim = 128,
                         .order = random.pick({ValueHeadOrder::kGrouped, ValueHeadOrder::kTiled})};
    for (const DeltaData data : {DeltaData::kModel, DeltaData::kParallel, DeltaData::kMixed}) {
      const DeltaProblem p(dims, n + 3, data, random, /*aligned=*/true);
      DeltaStore store(dims, 4, 0);
      fill_state(store, 0);
      fill_state(store, 1);
      store.copy_slot(0, 2);
      store.copy_slot(1, 3);
      const Shape shape{p.tokens(), p.dims.value_heads(), p.dims.value_dim};
      const PaddedTensor a(shape, 1), b(shape, 2 * random.integer(0, 2));
      const bool fresh = random.integer(0, 1) == 1;
      // Beside a sequence of few rows, which is not rounded.
      const auto run_both = [&](int32_t slot, GatedDeltaForm form, const PaddedTensor& out) {
        const std::vector<RecurrentRows> rows = {
            {.num_rows = 3, .slot = slot + 1},
            {.first_row = 3, .num_rows = n, .slot = slot, .fresh = fresh}};
        gated_delta(stream, workspace, p.inputs(), store.layer, rows,
                    {.order = dims.order, .form = form, .rounded = true}, out);
      };
      run_both(0, GatedDeltaForm::kRecurrent, a);
      run_both(2, GatedDeltaForm::kAuto, b);
      const TensorView states = store.states;
      EXPECT_EQ(store.state_bits(1), store.state_bits(3));
      double error = 0, size = 0;
      const auto add = [&](const float* x, const float* y, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          error += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
          size += double{x[i]} * x[i];
        }
      };
      SCOPED_TRACE(testing::Message() << n << " tokens, data " << static_cast<int>(data));
      add(states.row<float>(0), states.row<float>(2), states.row_stride());
      const double state_error = std::sqrt(error / size);
      EXPECT_LE(state_error, bound);
      error = size = 0;
      for (int64_t t = 0; t < n + 3; ++t) add(a.row(t), b.row(t), a.row_elements());
      EXPECT_LE(std::sqrt(error / size), bound);
      EXPECT_TRUE(b.gaps_untouched());
      // It is another computation there.
      if (on_cuda()) {
        EXPECT_GT(state_error, 0);
      }
    }
  }
}

// The recurrent form does not know where a call ends; chunks agree within the error model.
TEST_P(GatedDeltaTest, AnySplit) {
  const DeltaDims dims = random_dims();
  constexpr int64_t kTokens = 150;
  const DeltaProblem p(dims, kTokens, random_data(), random);
  DeltaReference reference(dims);
  std::vector<std::vector<double>> expected(kTokens), bounds(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) reference.token(p, t, expected[t], bounds[t]);
  DeltaStore whole(dims, 1, 0);
  const PaddedTensor whole_out = output(p);
  run(p, whole, {{.num_rows = kTokens, .fresh = true}}, GatedDeltaForm::kRecurrent, whole_out);

  for (int64_t split = 1; split < kTokens; split += small_tests() ? 21 : 1) {
    SCOPED_TRACE(testing::Message() << "split at " << split);
    const std::vector<RecurrentRows> first = {{.num_rows = split, .fresh = true}};
    const std::vector<RecurrentRows> second = {{.first_row = split, .num_rows = kTokens - split}};
    DeltaStore store(dims, 1, 0);
    const PaddedTensor out = output(p);
    run(p, store, first, GatedDeltaForm::kRecurrent, out);
    run(p, store, second, GatedDeltaForm::kRecurrent, out);
    ASSERT_EQ(out.bits(), whole_out.bits());
    ASSERT_EQ(store.state_bits(0), whole.state_bits(0));

    DeltaStore mixed(dims, 1, 0);
    run(p, mixed, first, random.pick({kForms[0], kForms[1]}), out);
    run(p, mixed, second, GatedDeltaForm::kChunks, out);
    for (int64_t t = 0; t < kTokens; ++t) {
      ASSERT_NO_FATAL_FAILURE(expect_row(out, t, expected[t], bounds[t]));
    }
    ASSERT_NO_FATAL_FAILURE(reference.expect_state(mixed.states.data<float>()));
  }
}

// A logged step of T rows of which c are kept, then two more logged steps and a plain one, gives
// the bits of the kept tokens run alone, one by one.
TEST_P(GatedDeltaTest, ReplayGivesTheBitsOfPlainTokens) {
  constexpr int64_t kPrompt = 5;
  for (int64_t rows = 1; rows <= 9; rows += small_tests() ? 4 : 1) {
    for (int64_t kept = 0; kept <= rows; kept += small_tests() ? 3 : 1) {
      const DeltaDims dims = random_dims();
      const DeltaProblem p(dims, kPrompt + rows + 30, random_data(), random);
      DeltaStore plain(dims, 1, 0), store(dims, 3, 9);
      const PaddedTensor plain_out = output(p), out = output(p);
      const auto run_plain = [&](int64_t first, int64_t count) {
        for (int64_t t = first; t < first + count; ++t) {
          run(p, plain, {{.first_row = t, .num_rows = 1, .fresh = t == 0}},
              GatedDeltaForm::kRecurrent, plain_out);
        }
      };
      // A logged step may be the first of a sequence, too.
      const bool logged_first = random.integer(0, 1) == 0;
      int64_t done = logged_first ? 0 : kPrompt;
      if (!logged_first) {
        run_plain(0, kPrompt);
        run(p, store, {{.num_rows = kPrompt, .slot = 2, .fresh = true}}, GatedDeltaForm::kRecurrent,
            out);
      }
      int64_t step_rows = rows, step_kept = kept;
      int32_t replayed = 0;
      for (int step = 0; step < 4; ++step) {
        SCOPED_TRACE(testing::Message() << step_kept << " of " << step_rows << " rows kept, step "
                                        << step << ", " << done << " tokens before");
        const bool logged = step < 3;
        // What a rejected row is must not matter: the next step starts with other tokens.
        const std::vector<uint32_t> state_before = store.state_bits(2);
        run(p, store,
            {{.first_row = done,
              .num_rows = step_rows,
              .slot = 2,
              .fresh = done == 0,
              .num_replayed = replayed,
              .logged = logged}},
            random.pick({GatedDeltaForm::kRecurrent, GatedDeltaForm::kAuto}), out);
        if (logged && replayed == 0 && done > 0) {
          EXPECT_EQ(store.state_bits(2), state_before);
        }
        const bool rolls_back_to_nothing = logged && done == 0 && step_kept == 0;
        if (!logged) step_kept = step_rows;
        run_plain(done, step_kept);
        for (int64_t t = done; t < done + step_kept; ++t) {
          ASSERT_TRUE(std::equal(out.row(t), out.row(t) + out.row_elements(), plain_out.row(t),
                                 [](float x, float y) {
                                   return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
                                 }))
              << "row " << t;
        }
        if (rolls_back_to_nothing) {
          // Nothing was kept: the state is zero, as at the sequence's start.
          for (const uint32_t bits : store.state_bits(2)) ASSERT_EQ(bits, 0u);
        }
        done += step_kept;
        replayed = logged ? static_cast<int32_t>(step_kept) : 0;
        step_rows = random.integer(1, 9);
        step_kept = random.integer(0, step_rows);
      }
      EXPECT_EQ(store.state_bits(2), plain.state_bits(0));
    }
  }
}

// Chunks after a logged step start from the replayed state.
TEST_P(GatedDeltaTest, ChunksReplayFirst) {
  const DeltaDims dims = random_dims();
  const DeltaProblem p(dims, 120, random_data(), random);
  for (int32_t kept = 0; kept <= 4; ++kept) {
    DeltaStore store(dims, 2, 4);
    fill_state(store, 0);
    store.copy_slot(0, 1);
    const PaddedTensor a = output(p), b = output(p);
    run(p, store, {{.num_rows = 4, .slot = 0, .logged = true}}, GatedDeltaForm::kRecurrent, a);
    run(p, store, {{.first_row = kept, .num_rows = 100, .slot = 0, .num_replayed = kept}},
        GatedDeltaForm::kChunks, a);
    if (kept > 0) {
      run(p, store, {{.num_rows = kept, .slot = 1}}, GatedDeltaForm::kRecurrent, b);
    }
    run(p, store, {{.first_row = kept, .num_rows = 100, .slot = 1}}, GatedDeltaForm::kChunks, b);
    EXPECT_EQ(store.state_bits(0), store.state_bits(1));
    for (int64_t t = kept; t < kept + 100; ++t) {
      ASSERT_TRUE(std::equal(a.row(t), a.row(t) + a.row_elements(), b.row(t)));
    }
  }
}

// A batch of every kind of sequence, against each alone, whatever the number of threads.
TEST_P(GatedDeltaTest, BatchMatesAndThreadsDoNotMatter) {
  for (int round = 0; round < 8; ++round) {
    const DeltaDims dims = random_dims();
    const int64_t num_sequences = random.integer(1, 9);
    constexpr int64_t kSlots = 12, kMaxLogged = 6;
    std::vector<int32_t> slots(kSlots);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random.engine());
    std::vector<RecurrentRows> sequences;
    int64_t tokens = random.integer(0, 2);  // rows of nobody
    for (int64_t i = 0; i < num_sequences; ++i) {
      RecurrentRows rows{.first_row = tokens, .slot = slots[i]};
      rows.logged = random.integer(0, 2) == 0;
      rows.fresh = random.integer(0, 3) == 0;
      if (!rows.fresh) rows.num_replayed = static_cast<int32_t>(random.integer(0, kMaxLogged));
      rows.num_rows = rows.logged ? random.integer(0, kMaxLogged)
                                  : random.pick<int64_t>({0, 1, 1, 2, 31, 32, 33, 64, 65, 200});
      tokens += rows.num_rows + random.integer(0, 1);
      sequences.push_back(rows);
    }
    tokens += 1;
    const DeltaProblem p(dims, tokens, random_data(), random);

    DeltaStore start(dims, kSlots, kMaxLogged);
    for (const RecurrentRows& rows : sequences) {
      if (rows.fresh) continue;
      fill_state(start, rows.slot);
      for (const Tensor* t : {&start.logged_keys, &start.logged_updates}) {
        float* x = t->view().row<float>(rows.slot);
        for (int64_t i = 0; i < t->view().row_stride(); ++i) x[i] = random.normal(0.2f);
      }
      float* decays = start.logged_decays.view().row<float>(rows.slot);
      for (int64_t i = 0; i < start.logged_decays.view().row_stride(); ++i) {
        decays[i] = random.uniform(0, 1);
      }
    }
    const auto copy = [&](const DeltaStore& to) {
      for (const auto& [from, target] :
           {std::pair{&start.states, &to.states}, std::pair{&start.logged_keys, &to.logged_keys},
            std::pair{&start.logged_updates, &to.logged_updates},
            std::pair{&start.logged_decays, &to.logged_decays}}) {
        std::ranges::copy(from->view().span<float>(), target->data<float>());
      }
    };

    DeltaStore alone(dims, kSlots, kMaxLogged);
    copy(alone);
    const PaddedTensor alone_out = output(p);
    for (const RecurrentRows& rows : sequences) {
      run(p, alone, {rows}, GatedDeltaForm::kAuto, alone_out);
      for (int64_t t = rows.first_row; t < rows.first_row + rows.num_rows; ++t) {
        for (int64_t i = 0; i < alone_out.row_elements(); ++i) {
          ASSERT_FALSE(std::isnan(alone_out.row(t)[i]));
        }
      }
    }
    for (const int threads : {1, 2, 5}) {
      OtherStream other(threads);
      DeltaStore batch(dims, kSlots, kMaxLogged);
      copy(batch);
      const PaddedTensor out = output(p);
      run(other, p, batch, sequences, GatedDeltaForm::kAuto, out);
      EXPECT_EQ(out.bits(), alone_out.bits()) << threads << " threads";
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        EXPECT_EQ(batch.slot_bits(slot), alone.slot_bits(slot)) << "slot " << slot;
      }
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      if (static_cast<int64_t>(i) >= num_sequences || sequences[i].num_rows == 0) {
        EXPECT_EQ(alone.slot_bits(slots[i]), start.slot_bits(slots[i]));
      }
    }
  }
}

TEST_P(GatedDeltaTest, AutoTakesChunksFromAThresholdAndNeverForLoggedRows) {
  const DeltaDims dims;
  const DeltaProblem p(dims, kMinDeltaChunkRows + 1, DeltaData::kModel, random);
  const auto bits = [&](int64_t rows, bool logged, GatedDeltaForm form) {
    DeltaStore store(dims, 1, kMinDeltaChunkRows + 1);
    const PaddedTensor out = output(p);
    run(p, store, {{.num_rows = rows, .fresh = true, .logged = logged}}, form, out);
    return out.bits();
  };
  for (const int64_t rows : {kMinDeltaChunkRows - 1, kMinDeltaChunkRows, kMinDeltaChunkRows + 1}) {
    const bool chunks = rows >= kMinDeltaChunkRows;
    EXPECT_EQ(bits(rows, false, GatedDeltaForm::kAuto), bits(rows, false, kForms[chunks]));
    EXPECT_EQ(bits(rows, true, GatedDeltaForm::kAuto), bits(rows, false, kForms[0]));
  }
}

TEST_P(GatedDeltaTest, NoSequencesAndNoRows) {
  const DeltaDims dims;
  const DeltaProblem p(dims, 3, DeltaData::kModel, random);
  DeltaStore store(dims, 1, 2);
  const std::vector<uint32_t> before = store.slot_bits(0);
  const PaddedTensor out = output(p);
  for (const GatedDeltaForm form : kForms) {
    run(p, store, {}, form, out);
    run(p, store, {{.fresh = true}, {.first_row = 3, .num_replayed = 2}}, form, out);
  }
  EXPECT_EQ(store.slot_bits(0), before);
  for (int64_t t = 0; t < 3; ++t) EXPECT_TRUE(std::isnan(out.row(t)[0]));

  const DeltaProblem none(dims, 0, DeltaData::kModel, random);
  const PaddedTensor nothing = output(none);
  run(none, store, {{.fresh = true}}, GatedDeltaForm::kAuto, nothing);
  EXPECT_EQ(store.slot_bits(0), before);
}

BRAID_INSTANTIATE_PER_TARGET(GatedDeltaTest);

}  // namespace
}  // namespace braid
