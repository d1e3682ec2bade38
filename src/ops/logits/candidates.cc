#include "ops/logits/candidates.h"

#include <algorithm>

#include "ops/logits/draw_math.h"
#include "ops/logits/row_scan.h"

namespace braid {
namespace {

// Up to here a heap, which most tokens leave untouched, beats a partition of the vocabulary.
constexpr int64_t kMaxHeap = 1024;

bool by_token(const Candidate& a, const Candidate& b) { return a.token < b.token; }

void select_by_heap(std::span<const float> logits, size_t k, std::vector<Candidate>& heap) {
  heap.clear();
  float threshold = kMinusInfinity;  // once the heap is full, the logit of its last in rank
  for_each_above(logits, threshold, [&](int32_t token, float logit) {
    if (heap.size() == k) {  // equals come later by id, so only a higher logit gets in
      std::pop_heap(heap.begin(), heap.end(), ranks_before);
      heap.pop_back();
    }
    heap.push_back({logit, token});
    std::push_heap(heap.begin(), heap.end(), ranks_before);
    if (heap.size() == k) threshold = heap.front().logit;
  });
}

}  // namespace

void select_top_k(std::span<const float> logits, int64_t k, std::vector<Candidate>& candidates) {
  if (k <= kMaxHeap) {
    select_by_heap(logits, static_cast<size_t>(k), candidates);
  } else {
    select_all(logits, candidates);
    if (k >= static_cast<int64_t>(candidates.size())) return;
    std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), ranks_before);
    candidates.resize(static_cast<size_t>(k));
  }
  std::sort(candidates.begin(), candidates.end(), by_token);
}

void select_all(std::span<const float> logits, std::vector<Candidate>& candidates) {
  candidates.clear();
  for_each_above(logits, kMinusInfinity, [&](int32_t token, float logit) {
    candidates.push_back({logit, token});
  });
}

void keep_top_p(std::vector<Candidate>& candidates, double top_p, std::vector<Candidate>& scratch) {
  if (candidates.empty()) return;
  uint64_t total = 0;
  for (const Candidate& c : candidates) total += mass_of(c.weight);
  const double target = top_p_target(top_p, total);

  // All weights below the floor together are less than what is left over, so the kept ones are
  // above it.
  const double floor = top_p_floor(target, total, static_cast<int64_t>(candidates.size()));
  scratch.clear();
  for (const Candidate& c : candidates) {
    if (static_cast<double>(mass_of(c.weight)) >= floor) scratch.push_back(c);
  }

  // Bisects the rank of the last one to keep: the first `low` weigh less than the target, the first
  // `high` do not (or are all).
  size_t low = 0;
  size_t high = scratch.size();
  uint64_t mass_before_low = 0;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(scratch.begin() + low, scratch.begin() + middle, scratch.begin() + high,
                     ranks_before);
    uint64_t mass = mass_before_low;
    for (size_t i = low; i < middle; ++i) mass += mass_of(scratch[i].weight);
    if (static_cast<double>(mass) >= target) {
      high = middle;
    } else {
      low = middle;
      mass_before_low = mass;
    }
  }
  const Candidate last = scratch[low];
  std::erase_if(candidates, [&](const Candidate& c) { return ranks_before(last, c); });
}

void keep_min_p(std::vector<Candidate>& candidates, double min_p) {
  double largest = 0;
  for (const Candidate& c : candidates) largest = std::max(largest, double{c.weight});
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < min_p * largest; });
}

}  // namespace braid
