#include "benchmark/ceilings.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/cpu_features.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "benchmark/ceiling_kernels.h"
#include "benchmark/environment.h"
#include "tensor/buffer.h"

namespace braid {
namespace {

constexpr int64_t kReadBytes = int64_t{512} << 20;
constexpr int64_t kReadPiece = int64_t{4} << 20;
constexpr int kReadRuns = 10;
constexpr int kComputeRuns = 8;
constexpr double kRunSeconds = 0.03;

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A cache line for each thread.
struct Sinks {
  explicit Sinks(const ThreadPool& pool) : values(static_cast<size_t>(pool.num_threads()) * 16) {}
  float* of(int thread) { return values.data() + thread * 16; }
  std::vector<float> values;
};

double measure_read(ThreadPool& pool, const CeilingKernels& kernels) {
  const Buffer buffer(kReadBytes, Device{});
  Sinks sinks(pool);
  const auto pieces = kReadBytes / kReadPiece;
  pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t, int) {
    std::memset(buffer.data() + begin * kReadPiece, 1, kReadPiece);
  });
  double best = 1e30;
  for (int run = 0; run < kReadRuns; ++run) {
    best =
        std::min(best, seconds_of([&] {
                   pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t, int thread) {
                     kernels.read(buffer.data() + begin * kReadPiece, kReadPiece, sinks.of(thread));
                   });
                 }));
  }
  return static_cast<double>(kReadBytes) / best;
}

double measure_operations(ThreadPool& pool, void (*kernel)(int64_t, float*), int64_t operations) {
  Sinks sinks(pool);
  const auto run = [&](int64_t rounds) {
    return seconds_of([&] { pool.run([&](int thread) { kernel(rounds, sinks.of(thread)); }); });
  };
  int64_t rounds = 100'000;
  run(rounds);
  rounds = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(rounds) * kRunSeconds /
                                                     std::max(1e-6, run(rounds))));
  double best = 1e30;
  for (int i = 0; i < kComputeRuns; ++i) best = std::min(best, run(rounds));
  return static_cast<double>(rounds * operations * pool.num_threads()) / best;
}

std::string key_of(int threads) {
  return fmt::format("{} | {} threads | {}", cpu_model(), threads, isa_name(active_isa()));
}

nlohmann::json read_entries(const std::filesystem::path& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::is_regular_file(path, error)) return {};
  try {
    const auto json = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
    return json.is_object() ? json : nlohmann::json();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

Ceilings measure_ceilings(ThreadPool& pool) {
  const CeilingKernels& kernels = BRAID_KERNELS(kCeilingKernels);
  Ceilings ceilings;
  ceilings.threads = pool.num_threads();
  ceilings.read_bytes_per_second = measure_read(pool, kernels);
  const auto set = [&](Arithmetic arithmetic, void (*kernel)(int64_t, float*), int64_t operations) {
    ceilings.operations_per_second[static_cast<int>(arithmetic)] =
        measure_operations(pool, kernel, operations);
  };
  set(Arithmetic::kF32, kernels.f32, kernels.f32_operations);
  set(Arithmetic::kBF16, kernels.bf16, kernels.bf16_operations);
  set(Arithmetic::kInt8, kernels.int8, kernels.int8_operations);
  return ceilings;
}

Bound bound_of(const Profiler::Entry& work, const Ceilings& ceilings) {
  const double memory = (work.weight_bytes + work.state_bytes) / ceilings.read_bytes_per_second;
  double computing = 0, largest = 0;
  std::string_view name;
  for (int i = 0; i < kNumArithmetics; ++i) {
    const double seconds = work.operations[i] / ceilings.operations_per_second[i];
    computing += seconds;
    if (seconds > largest) {
      largest = seconds;
      name = arithmetic_name(static_cast<Arithmetic>(i));
    }
  }
  if (memory >= computing) return {"memory", memory};
  return {std::string(name), computing};
}

std::filesystem::path CeilingCache::default_path() {
  const auto variable = [](const char* name) -> std::filesystem::path {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  std::filesystem::path folder = variable("XDG_CACHE_HOME");
  if (!folder.is_absolute()) {
    folder = variable("HOME");
    if (!folder.is_absolute()) return {};
    folder /= ".cache";
  }
  return folder / "braid" / "ceilings.json";
}

std::optional<Ceilings> CeilingCache::find(int threads) const {
  const nlohmann::json entries = read_entries(path_);
  const auto it = entries.find(key_of(threads));
  if (it == entries.end() || !it->is_object()) return std::nullopt;
  Ceilings ceilings;
  ceilings.threads = threads;
  const auto read = [&](std::string_view name) {
    const auto field = it->find(name);
    return field != it->end() && field->is_number() ? field->get<double>() : 0.0;
  };
  ceilings.read_bytes_per_second = read("read_bytes_per_second");
  bool complete = ceilings.read_bytes_per_second > 0;
  for (int i = 0; i < kNumArithmetics; ++i) {
    const auto name = arithmetic_name(static_cast<Arithmetic>(i));
    ceilings.operations_per_second[i] = read(fmt::format("{}_operations_per_second", name));
    complete &= ceilings.operations_per_second[i] > 0;
  }
  if (!complete) return std::nullopt;
  return ceilings;
}

void CeilingCache::put(const Ceilings& ceilings) const {
  if (path_.empty()) return;
  nlohmann::json entries = read_entries(path_);
  nlohmann::json& entry = entries[key_of(ceilings.threads)];
  entry = {{"read_bytes_per_second", ceilings.read_bytes_per_second}};
  for (int i = 0; i < kNumArithmetics; ++i) {
    const auto name = arithmetic_name(static_cast<Arithmetic>(i));
    entry[fmt::format("{}_operations_per_second", name)] = ceilings.operations_per_second[i];
  }
  // Written aside and renamed, so that nobody reads half of it.
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  const std::filesystem::path aside = fmt::format("{}.{}", path_.string(), ::getpid());
  std::ofstream file(aside);
  file << entries.dump(2) << "\n";
  file.close();
  if (file) std::filesystem::rename(aside, path_, error);
  if (!file || error) {
    std::filesystem::remove(aside, error);
    throw Error("{}: cannot write the measured ceilings", path_.string());
  }
}

}  // namespace braid
