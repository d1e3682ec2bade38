#include <fmt/format.h>

#include <cmath>

#include "evaluate/eval_report.h"
#include "report/html_page.h"
#include "report/plot.h"

namespace braid {
namespace {

std::string with_interval(const Estimate& estimate, double factor = 1) {
  if (!std::isfinite(estimate.half_width)) return fmt::format("{:.4f}", factor * estimate.mean);
  return fmt::format("{:.4f} ± {:.4f}", factor * estimate.mean, factor * estimate.half_width);
}

std::string share(double value, double error) {
  const std::string text = fmt::format("{:.1f} %", 100 * value);
  return std::isfinite(error) ? text + fmt::format(" ± {:.1f}", 100 * error) : text;
}

void add_buckets(HtmlPage& page, const NllResult& nll) {
  page.add("<h2>Loss by length</h2><p>{}</p>", escape_html(interval_method(nll)));
  page.add(
      "<table><tr><th>length</th><th>chunks</th><th>tokens</th><th>NLL</th><th>perplexity</th>"
      "<th>bits per byte</th>");
  if (nll.has_reference) {
    page.add(
        "<th>reference NLL</th><th>ΔNLL</th><th>KL</th><th>KL median</th><th>KL 99 %</th>"
        "<th>KL max</th><th>same top token</th>");
  }
  page.add("</tr>");
  for (const NllBucket& b : nll.buckets) {
    page.add("<tr><td>{}</td><td>{}</td><td>{}</td>", bucket_name(b.length), b.num_chunks,
             b.num_tokens);
    if (b.num_chunks > 0) {
      page.add("<td>{}</td><td>{:.3f}</td><td>{:.4f}</td>", with_interval(b.nll), b.perplexity,
               b.bits_per_byte);
      if (nll.has_reference) {
        page.add(
            "<td>{:.4f}</td><td>{}</td><td>{}</td><td>{:.2e}</td><td>{:.2e}</td><td>{:.2e}</td>"
            "<td>{:.2f} %</td>",
            b.reference_nll.mean, with_interval(b.delta), with_interval(b.kl), b.kl_median, b.kl_99,
            b.kl_max, 100 * b.agreement.mean);
      }
    }
    page.add("</tr>");
  }
  page.add("</table>");
}

void add_positions(HtmlPage& page, const NllResult& nll) {
  page.add(
      "<h2>Loss by position</h2><p>Chunks of length {}; a point is the mean over a range of "
      "positions.</p>",
      bucket_name(nll.position_bucket));
  PlotLine model{.name = "model"}, reference{.name = "reference"};
  for (const PositionLoss& point : nll.positions) {
    const double middle = static_cast<double>(point.begin + point.end - 1) / 2;
    model.x.push_back(middle);
    model.y.push_back(point.nll);
    reference.x.push_back(middle);
    reference.y.push_back(point.reference_nll);
  }
  LinePlot plot{.x_label = "position in the chunk", .y_label = "nats a token", .lines = {model}};
  if (nll.has_reference) plot.lines.push_back(reference);
  page.add("{}", to_svg(plot));
}

void add_deltas(HtmlPage& page, const NllResult& nll) {
  page.add("<h2>ΔNLL by length</h2><p>Above zero: worse than the reference.</p>");
  BarPlot plot{.x_label = "length", .y_label = "ΔNLL, nats a token"};
  for (const NllBucket& bucket : nll.buckets) {
    if (bucket.num_chunks == 0) continue;
    plot.bars.push_back({.label = bucket_name(bucket.length),
                         .value = bucket.delta.mean,
                         .half_width = bucket.delta.half_width,
                         .title = with_interval(bucket.delta)});
  }
  page.add("{}", to_svg(plot));
}

void add_histogram(HtmlPage& page, const NllResult& nll) {
  page.add(
      "<h2>KL divergence of single tokens</h2><p>KL(reference ‖ model), nats; chunks of "
      "length {}; {} tokens at exactly 0 are not drawn.</p>",
      bucket_name(nll.position_bucket), nll.kl_histogram.num_zero);
  BarPlot plot{.x_label = "KL from", .y_label = "tokens"};
  for (int i = 0; i < KlHistogram::kNumBins; ++i) {
    const auto count = static_cast<double>(nll.kl_histogram.counts[static_cast<size_t>(i)]);
    plot.bars.push_back({.label = i % KlHistogram::kPartsPerPower == 0 ? kl_bin_label(i) : "",
                         .value = count,
                         .title = fmt::format("from {}: {:.0f}", kl_bin_label(i), count)});
  }
  page.add("{}", to_svg(plot));
}

void add_worst(HtmlPage& page, const EvalReport& report) {
  page.add(
      "<h2>Where they differ most</h2><table><tr><th>KL</th><th>ΔNLL</th><th>where</th>"
      "<th>after</th><th>came</th><th>model</th><th>reference</th></tr>");
  for (const WorstPlace& place : report.worst) {
    const TokenScore& score = place.token.score;
    page.add(
        "<tr><td>{:.3f}</td><td>{:+.3f}</td><td class=\"text\">{}, token {} (length {})</td>"
        "<td class=\"text\">{}</td><td class=\"text\"><b>{}</b></td><td class=\"text\">{}</td>"
        "<td class=\"text\">{}</td></tr>",
        score.kl, score.nll - score.reference_nll, escape_html(place.document), place.token.offset,
        bucket_name(place.token.bucket), escape_html(place.context), escape_html(place.target),
        escape_html(place.top), escape_html(place.reference_top));
  }
  page.add("</table>");
}

void add_tasks(HtmlPage& page, const EvalReport& report) {
  page.add(
      "<h2>Tasks</h2><p>± standard error.</p><table><tr><th>task</th><th>items</th>"
      "<th>measure</th><th>model</th><th>reference</th></tr>");
  const auto row = [&](const TaskResult& task, int64_t items, const char* measure,
                       const std::string& model, const std::string& reference) {
    page.add(
        "<tr><td class=\"text\">{}</td><td>{}</td><td class=\"text\">{}</td><td>{}</td>"
        "<td>{}</td></tr>",
        escape_html(task.name), items, measure, model, reference);
  };
  for (const TaskResult& task : report.tasks) {
    if (task.choices) {
      const ChoiceScore& own = *task.choices;
      const auto& other = task.reference_choices;
      row(task, own.num_items, "accuracy", share(own.accuracy, own.accuracy_error),
          other ? share(other->accuracy, other->accuracy_error) : "");
      row(task, own.num_items, "accuracy by length",
          share(own.normalised_accuracy, own.normalised_accuracy_error),
          other ? share(other->normalised_accuracy, other->normalised_accuracy_error) : "");
    }
    if (task.generation) {
      const auto& other = task.reference_generation;
      row(task, task.generation->num_items, "exact match",
          share(task.generation->exact_match, task.generation->exact_match_error),
          other ? share(other->exact_match, other->exact_match_error) : "");
    }
  }
  page.add("</table>");
}

void add_layers(HtmlPage& page, const EvalReport& report) {
  page.add(
      "<h2>Error of each layer</h2><p>As the quantiser reported it: relative error of the "
      "output on the calibration text, or of the weight where there was none.</p>");
  BarPlot plot{.x_label = "layer", .y_label = "relative error", .log_scale = true};
  for (size_t i = 0; i < report.layers.size(); ++i) {
    const LayerError& layer = report.layers[i];
    plot.bars.push_back({.label = std::to_string(i),
                         .value = layer.error,
                         .title = fmt::format("{}: {:.3g}", layer.name, layer.error)});
  }
  page.add("{}", to_svg(plot));
}

}  // namespace

std::string to_html(const EvalReport& report) {
  HtmlPage page("braid eval: " + report.model);
  page.add("<h1>{}</h1>", escape_html(report.model));
  if (!report.reference.empty()) {
    page.add("<p>Compared with {}</p>", escape_html(report.reference));
  }
  std::string facts;
  for (const auto& [name, value] : report.facts) {
    facts += fmt::format("{}{}: {}", facts.empty() ? "" : "; ", name, value);
  }
  page.add("<p>{}</p>", escape_html(facts));
  if (report.nll) {
    add_buckets(page, *report.nll);
    add_positions(page, *report.nll);
    if (report.nll->has_reference) {
      add_deltas(page, *report.nll);
      add_histogram(page, *report.nll);
      add_worst(page, report);
    }
  }
  if (!report.layers.empty()) add_layers(page, report);
  if (!report.tasks.empty()) add_tasks(page, report);
  return page.take();
}

std::string bucket_name(int64_t length) { return length == 0 ? "shorter" : std::to_string(length); }

std::string kl_bin_label(int bin) {
  const double power =
      KlHistogram::kFirstPower + static_cast<double>(bin) / KlHistogram::kPartsPerPower;
  return fmt::format("{:.0e}", std::pow(10.0, power));
}

std::string interval_method(const NllResult& result) {
  return fmt::format(
      "± is half a 95 % interval: Student's t over {}, taken as independent",
      result.units_are_documents ? "documents (chunks where there are fewer than 20)" : "chunks");
}

}  // namespace braid
