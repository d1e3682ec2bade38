#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "sampling/row_scan.h"

namespace braid {
namespace {

void penalise(std::span<float> logits, const SamplingParams& params, const TokenHistory& history) {
  for (const TokenHistory::Entry& entry : history.entries()) {
    float& logit = logits[entry.token];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (entry.output_count == 0) continue;
    logit -= params.frequency_penalty * static_cast<float>(entry.output_count);
    logit -= params.presence_penalty;
  }
}

// The token whose exponential clock, of rate its weight, rings first: token i with probability
// w_i / Σw. Each clock has its own random number, so two models with similar weights mostly draw
// the same token with the same key (one drafts for the other: the shares that differ, d, cost at
// most 2d / (1 + d)), which a single number compared with summed weights would not give. Equal to
// adding Gumbel noise to the logits. -1 if all weights are 0.
int32_t race(std::span<const Candidate> candidates, const SamplingKey& key) {
  constexpr double kSmallestUniform = 0x1p-33;
  UniformByToken uniform(key);
  double first = std::numeric_limits<double>::infinity();
  int32_t token = -1;
  const auto run = [&](const Candidate& c) {
    const double limit = first * c.weight;
    // Even the smallest number would come too late. -log(1 - u) >= u.
    if (c.weight == 0 || limit <= kSmallestUniform) return;
    const double u = uniform(c.token);
    // Most clocks need no logarithm.
    if (u >= limit) return;
    const double time = -std::log1p(-u);
    if (time >= limit) return;
    first = time / c.weight;
    token = c.token;
  };
  // The likeliest one first: most of the others then need no random number at all.
  const auto by_weight = [](const Candidate& a, const Candidate& b) { return a.weight < b.weight; };
  const auto likeliest = std::max_element(candidates.begin(), candidates.end(), by_weight);
  if (likeliest != candidates.end()) run(*likeliest);
  for (const Candidate& c : candidates) run(c);
  return token;
}

std::optional<int32_t> if_any(int32_t token) {
  return token < 0 ? std::nullopt : std::optional<int32_t>(token);
}

}  // namespace

// Also makes +inf finite, which only an extreme repetition penalty brings about.
void Sampler::process(std::span<const float> logits, const SamplingParams& params,
                      const TokenHistory* history) {
  logits_.resize(logits.size());
  sanitise(logits, logits_.data());
  if (params.has_penalties()) {
    BRAID_CHECK(history != nullptr, "penalties without a history");
    penalise(logits_, params, *history);
    for (const TokenHistory::Entry& entry : history->entries()) {
      logits_[entry.token] = sanitised(logits_[entry.token]);
    }
  }
  for (const LogitBias& entry : params.logit_bias) logits_[entry.token] += entry.bias;
  for (const int32_t token : params.suppress_ids) logits_[token] = kMinusInfinity;
}

std::optional<int32_t> Sampler::pick(std::span<const float> logits, const SamplingParams& params,
                                     const TokenHistory* history, const SamplingKey& key) {
  process(logits, params, history);
  return if_any(params.greedy() ? argmax(logits_) : draw(params, key));
}

std::optional<SampledToken> Sampler::sample(std::span<const float> logits,
                                            const SamplingParams& params,
                                            const TokenHistory* history, const SamplingKey& key) {
  const std::optional<int32_t> token = pick(logits, params, history, key);
  if (!token) return std::nullopt;
  SampledToken sampled{.token = *token};
  if (params.num_logprobs) report_logprobs(logits, *params.num_logprobs, sampled);
  return sampled;
}

int32_t Sampler::draw(const SamplingParams& params, const SamplingKey& key) {
  if (params.top_k > 0) {
    select_top_k(logits_, params.top_k, candidates_);
  } else {
    select_all(logits_, candidates_);
  }
  if (candidates_.empty()) return -1;

  float highest = kMinusInfinity;
  for (const Candidate& c : candidates_) highest = std::max(highest, c.logit);
  // The difference first: no temperature, however small, can overflow then.
  for (Candidate& c : candidates_) c.weight = std::exp((c.logit - highest) / params.temperature);
  if (params.top_p < 1) keep_top_p(candidates_, params.top_p, scratch_);
  if (params.min_p > 0) keep_min_p(candidates_, params.min_p);

  return race(candidates_, key);
}

void Sampler::report_logprobs(std::span<const float> logits, int32_t num_logprobs,
                              SampledToken& sampled) {
  sanitise(logits, logits_.data());
  const float highest = logits_[argmax(logits_)];
  double sum = 0;
  for (const float logit : logits_) sum += std::exp(logit - highest);
  const double log_sum = std::log(sum);
  const auto logprob = [&](float logit) {
    return static_cast<float>(std::max(double{logit} - highest - log_sum, double{kMinLogprob}));
  };

  sampled.logprob = logprob(logits_[sampled.token]);
  if (num_logprobs == 0) return;
  select_top_k(logits_, num_logprobs, candidates_);
  std::sort(candidates_.begin(), candidates_.end(), ranks_before);
  for (const Candidate& c : candidates_)
    sampled.top_logprobs.push_back({c.token, logprob(c.logit)});
}

}  // namespace braid
