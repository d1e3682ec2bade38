#include <cmath>
#include <nlohmann/json.hpp>

#include "evaluate/eval_report.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN: what is not known is null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json estimate_json(const Estimate& estimate) {
  return {{"mean", number(estimate.mean)},
          {"ci95_half_width", number(estimate.half_width)},
          {"units", estimate.num_units}};
}

Json bucket_json(const NllBucket& bucket, bool has_reference) {
  Json json = {{"bucket", bucket_name(bucket.length)},
               {"length", bucket.length},
               {"chunks", bucket.num_chunks},
               {"documents", bucket.num_documents},
               {"tokens", bucket.num_tokens},
               {"tokens_left_out", bucket.num_left_out},
               {"bytes", bucket.num_bytes}};
  if (bucket.num_chunks == 0) return json;
  json["nll"] = estimate_json(bucket.nll);
  json["perplexity"] = number(bucket.perplexity);
  json["bits_per_byte"] = number(bucket.bits_per_byte);
  if (!has_reference) return json;
  json["reference_nll"] = estimate_json(bucket.reference_nll);
  json["delta_nll"] = estimate_json(bucket.delta);
  json["kl"] = estimate_json(bucket.kl);
  json["kl"]["median"] = number(bucket.kl_median);
  json["kl"]["p99"] = number(bucket.kl_99);
  json["kl"]["max"] = number(bucket.kl_max);
  json["top1_agreement"] = estimate_json(bucket.agreement);
  return json;
}

Json histogram_json(const KlHistogram& histogram) {
  Json json = {{"zero", histogram.num_zero}, {"bins", Json::array()}};
  for (int i = 0; i < KlHistogram::kNumBins; ++i) {
    const double power =
        KlHistogram::kFirstPower + static_cast<double>(i) / KlHistogram::kPartsPerPower;
    json["bins"].push_back(
        {{"from", std::pow(10.0, power)}, {"count", histogram.counts[static_cast<size_t>(i)]}});
  }
  return json;
}

Json nll_json(const EvalReport& report) {
  const NllResult& nll = *report.nll;
  Json json = {
      {"documents", nll.num_documents}, {"empty_documents", nll.num_empty_documents},
      {"tokens", nll.num_tokens},       {"intervals", interval_method(nll)},
      {"buckets", Json::array()},       {"position_bucket", bucket_name(nll.position_bucket)},
      {"positions", Json::array()}};
  for (const NllBucket& bucket : nll.buckets) {
    json["buckets"].push_back(bucket_json(bucket, nll.has_reference));
  }
  for (const PositionLoss& point : nll.positions) {
    Json entry = {{"begin", point.begin},
                  {"end", point.end},
                  {"tokens", point.num_tokens},
                  {"nll", number(point.nll)}};
    if (nll.has_reference) entry["reference_nll"] = number(point.reference_nll);
    json["positions"].push_back(std::move(entry));
  }
  if (!nll.has_reference) return json;
  json["kl_histogram"] = histogram_json(nll.kl_histogram);
  json["worst"] = Json::array();
  for (const WorstPlace& place : report.worst) {
    const TokenScore& score = place.token.score;
    json["worst"].push_back({{"document", place.document},
                             {"offset", place.token.offset},
                             {"bucket", bucket_name(place.token.bucket)},
                             {"position", place.token.position},
                             {"kl", number(score.kl)},
                             {"nll", number(score.nll)},
                             {"reference_nll", number(score.reference_nll)},
                             {"context", place.context},
                             {"token", place.target},
                             {"top", place.top},
                             {"reference_top", place.reference_top}});
  }
  return json;
}

Json choice_json(const ChoiceScore& score) {
  return {{"accuracy", number(score.accuracy)},
          {"accuracy_stderr", number(score.accuracy_error)},
          {"accuracy_norm", number(score.normalised_accuracy)},
          {"accuracy_norm_stderr", number(score.normalised_accuracy_error)}};
}

Json generation_json(const GenerationScore& score) {
  return {{"exact_match", number(score.exact_match)},
          {"exact_match_stderr", number(score.exact_match_error)}};
}

Json task_json(const TaskResult& task) {
  Json json = {{"task", task.name}};
  if (task.choices) {
    json["kind"] = "multiple_choice";
    json["items"] = task.choices->num_items;
    json.update(choice_json(*task.choices));
    if (task.reference_choices) json["reference"] = choice_json(*task.reference_choices);
    json["answers"] = Json::array();
    for (size_t i = 0; i < task.choice_items->size(); ++i) {
      const ChoiceAnswer& answer = task.choices->answers[i];
      json["answers"].push_back({{"id", (*task.choice_items)[i].id},
                                 {"gold", (*task.choice_items)[i].gold},
                                 {"by_sum", answer.by_sum},
                                 {"by_length", answer.by_length},
                                 {"log_likelihoods", answer.log_likelihoods}});
    }
  }
  if (task.generation) {
    json["kind"] = "generation";
    json["items"] = task.generation->num_items;
    json.update(generation_json(*task.generation));
    if (task.reference_generation) {
      json["reference"] = generation_json(*task.reference_generation);
    }
    json["answers"] = Json::array();
    for (size_t i = 0; i < task.generation_items->size(); ++i) {
      const GenerationAnswer& answer = task.generation->answers[i];
      json["answers"].push_back({{"id", (*task.generation_items)[i].id},
                                 {"text", answer.text},
                                 {"extracted", answer.extracted ? Json(*answer.extracted) : Json()},
                                 {"correct", answer.correct}});
    }
  }
  return json;
}

}  // namespace

Json to_json(const EvalReport& report) {
  Json json = {{"kind", "braid eval"}, {"version", 1}, {"model", report.model}};
  if (!report.reference.empty()) json["reference"] = report.reference;
  for (const auto& [name, value] : report.facts) json["facts"][name] = value;
  if (report.nll) json["nll"] = nll_json(report);
  for (const TaskResult& task : report.tasks) json["tasks"].push_back(task_json(task));
  for (const LayerError& layer : report.layers) {
    json["layers"].push_back({{"name", layer.name}, {"error", number(layer.error)}});
  }
  return json;
}

}  // namespace braid
