#include "ops/logits/row_drawer.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/logits/draw_math.h"
#include "ops/logits/row_scan.h"

namespace braid {
namespace {

// The token whose exponential clock, of rate its weight, rings first: token i with probability
// w_i / Σw. Each clock has its own random number, so two models with similar weights mostly draw
// the same token with the same key (one drafts for the other: the shares that differ, d, cost at
// most 2d / (1 + d)), which a single number compared with summed weights would not give. Equal to
// adding Gumbel noise to the logits. -1 if all weights are 0.
int32_t race(std::span<const Candidate> candidates, const SamplingKey& key) {
  UniformByToken uniform(key);
  double first = std::numeric_limits<double>::infinity();
  int32_t token = -1;
  const auto run = [&](const Candidate& c) {
    if (c.weight == 0) return;
    const double limit = latest_number(first, c.weight);
    // Even the smallest number would come too late.
    if (limit < kLeastChance) return;
    const double u = uniform(c.token);
    // Most clocks need no logarithm.
    if (u > limit) return;
    const double time = ring_time(u, c.weight);
    if (time > first || (time == first && c.token >= token)) return;
    first = time;
    token = c.token;
  };
  // The likeliest one first: most of the others then need no random number at all.
  const auto by_weight = [](const Candidate& a, const Candidate& b) { return a.weight < b.weight; };
  const auto likeliest = std::max_element(candidates.begin(), candidates.end(), by_weight);
  if (likeliest != candidates.end()) run(*likeliest);
  for (const Candidate& c : candidates) run(c);
  return token;
}

}  // namespace

void RowDrawer::draw(std::span<const float> logits, const DrawRule& rule, DrawnToken& drawn) {
  logits_.resize(logits.size());
  sanitise(logits, logits_.data());
  for (const LogitEdit& edit : rule.edits) {
    logits_[edit.token] = edited_logit(logits_[edit.token], edit.output_count, edit.bias, rule);
  }
  drawn.token = rule.greedy() ? argmax(logits_) : draw_token(rule);
  drawn.logprob = 0;
  drawn.top.clear();
  if (drawn.token >= 0 && rule.num_logprobs >= 0) {
    report_logprobs(logits, rule.num_logprobs, drawn);
  }
}

int32_t RowDrawer::draw_token(const DrawRule& rule) {
  if (rule.top_k > 0) {
    select_top_k(logits_, rule.top_k, candidates_);
  } else {
    select_all(logits_, candidates_);
  }
  if (candidates_.empty()) return -1;

  float highest = kMinusInfinity;
  for (const Candidate& c : candidates_) highest = std::max(highest, c.logit);
  for (Candidate& c : candidates_) c.weight = draw_weight(c.logit, highest, rule.temperature);
  if (rule.top_p < 1) keep_top_p(candidates_, rule.top_p, scratch_);
  if (rule.min_p > 0) keep_min_p(candidates_, rule.min_p);
  return race(candidates_, rule.key);
}

void RowDrawer::report_logprobs(std::span<const float> logits, int32_t num_logprobs,
                                DrawnToken& drawn) {
  sanitise(logits, logits_.data());
  const float highest = logits_[argmax(logits_)];
  uint64_t mass = 0;
  for (const float logit : logits_) mass += mass_of(draw_weight(logit, highest, 1));
  const double log_sum = log_of_mass(mass);
  drawn.logprob = logprob_of(logits_[drawn.token], highest, log_sum);
  if (num_logprobs == 0) return;
  select_top_k(logits_, num_logprobs, candidates_);
  for (const Candidate& c : candidates_) {
    drawn.top.push_back({c.token, logprob_of(c.logit, highest, log_sum)});
  }
  std::sort(drawn.top.begin(), drawn.top.end(), likelier);
}

}  // namespace braid
