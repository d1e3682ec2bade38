#include "apps/eval_output.h"

#include <fmt/format.h>

#include <cmath>

#include "apps/table.h"

namespace braid {
namespace {

std::string half(double half_width, int decimals) {
  return std::isfinite(half_width) ? fmt::format("{:.{}f}", half_width, decimals) : "?";
}

std::string loss_table(const NllResult& nll) {
  Table table({"length", "chunks", "tokens", "NLL", "±", "perplexity", "bits/byte"});
  for (const NllBucket& b : nll.buckets) {
    if (b.num_chunks == 0) {
      table.add({bucket_name(b.length), "0", "0", "", "", "", ""});
      continue;
    }
    table.add({bucket_name(b.length), std::to_string(b.num_chunks), std::to_string(b.num_tokens),
               fmt::format("{:.4f}", b.nll.mean), half(b.nll.half_width, 4),
               fmt::format("{:.3f}", b.perplexity), fmt::format("{:.4f}", b.bits_per_byte)});
  }
  return table.to_string();
}

std::string comparison_table(const NllResult& nll) {
  Table table({"length", "reference", "ΔNLL", "±", "KL", "±", "KL 99 %", "KL max", "same top"});
  for (const NllBucket& b : nll.buckets) {
    if (b.num_chunks == 0) continue;
    table.add({bucket_name(b.length), fmt::format("{:.4f}", b.reference_nll.mean),
               fmt::format("{:.5f}", b.delta.mean), half(b.delta.half_width, 5),
               fmt::format("{:.5f}", b.kl.mean), half(b.kl.half_width, 5),
               fmt::format("{:.3g}", b.kl_99), fmt::format("{:.3g}", b.kl_max),
               fmt::format("{:.2f} %", 100 * b.agreement.mean)});
  }
  return table.to_string();
}

std::string worst_table(const EvalReport& report) {
  Table table({"KL", "ΔNLL", "where", "text", "model", "reference"});
  for (const WorstPlace& place : report.worst) {
    const TokenScore& score = place.token.score;
    table.add({fmt::format("{:.3f}", score.kl),
               fmt::format("{:+.3f}", score.nll - score.reference_nll),
               fmt::format("{} @{}", place.document, place.token.offset),
               fmt::format("{}[{}]", place.context, place.target), place.top, place.reference_top});
  }
  return table.to_string();
}

std::string share(double value, double error) {
  if (!std::isfinite(error)) return fmt::format("{:.1f} %", 100 * value);
  return fmt::format("{:.1f} % ± {:.1f}", 100 * value, 100 * error);
}

std::string task_table(const EvalReport& report) {
  Table table({"task", "items", "measure", "model", "reference"});
  for (const TaskResult& task : report.tasks) {
    if (task.choices) {
      const auto& other = task.reference_choices;
      table.add({task.name, std::to_string(task.choices->num_items), "accuracy",
                 share(task.choices->accuracy, task.choices->accuracy_error),
                 other ? share(other->accuracy, other->accuracy_error) : ""});
      table.add({task.name, std::to_string(task.choices->num_items), "accuracy by length",
                 share(task.choices->normalised_accuracy, task.choices->normalised_accuracy_error),
                 other ? share(other->normalised_accuracy, other->normalised_accuracy_error) : ""});
    }
    if (task.generation) {
      const auto& other = task.reference_generation;
      table.add({task.name, std::to_string(task.generation->num_items), "exact match",
                 share(task.generation->exact_match, task.generation->exact_match_error),
                 other ? share(other->exact_match, other->exact_match_error) : ""});
    }
  }
  return table.to_string() + "± standard error\n";
}

}  // namespace

std::string eval_tables(const EvalReport& report) {
  std::string text = report.model;
  text += '\n';
  if (!report.reference.empty()) text += fmt::format("reference: {}\n", report.reference);
  if (report.nll) {
    const NllResult& nll = *report.nll;
    text += fmt::format("{} {}, {} tokens", nll.num_documents,
                        nll.num_documents == 1 ? "document" : "documents", nll.num_tokens);
    if (nll.num_empty_documents > 0) {
      text += fmt::format(" ({} without a token to score)", nll.num_empty_documents);
    }
    text += fmt::format("; nats a token; {}\n\n{}", interval_method(nll), loss_table(nll));
    for (const NllBucket& bucket : nll.buckets) {
      if (bucket.num_chunks > 0) continue;
      text += fmt::format("{}: no document is that long\n", bucket_name(bucket.length));
    }
    if (nll.has_reference) {
      text += fmt::format("\n{}", comparison_table(nll));
      if (!report.worst.empty()) text += fmt::format("\n{}", worst_table(report));
    }
  }
  if (!report.tasks.empty()) text += fmt::format("\n{}", task_table(report));
  return text;
}

}  // namespace braid
