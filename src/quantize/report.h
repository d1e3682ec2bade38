#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "quantize/balance.h"
#include "quantize/kv_scales.h"
#include "quantize/matrix_result.h"
#include "quantize/quantizer.h"

namespace braid {

struct QuantizeReport {
  const std::vector<TensorPlan>& plans;
  const std::map<std::string, MatrixResult>& results;
  const std::vector<BalancedGroup>& balanced;
  const std::vector<KvLayerResult>& kv;  // with static scales
  const QuantizeResult& result;
  const CalibrationTokens& calibration;
  const QuantizeOptions& options;
  const std::filesystem::path& model;
};

// Counts, bytes and seconds, as they stand in report.json.
nlohmann::ordered_json result_json(const QuantizeResult& result);

// report.json and report.md in `folder`: every tensor, errors, starved experts, sizes and times.
void write_reports(const std::filesystem::path& folder, const QuantizeReport& report);

// Where the report of a GGUF file lies: "m.report.json" beside "m.gguf" (extension ".json").
std::filesystem::path gguf_report_path(const std::filesystem::path& gguf, const char* extension);

}  // namespace braid
