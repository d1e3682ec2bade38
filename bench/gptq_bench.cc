// Times of GPTQ's parts for one matrix of made-up weights and inputs that resemble one another:
//
//   gptq_bench [COLUMNS ROWS TOKENS THREADS]      (4096 3840 2048 2)

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "quant/group_format.h"
#include "quantize/cholesky.h"
#include "quantize/gptq.h"

namespace {

using namespace braid;

template <typename Part>
auto timed(const char* name, double operations, const Part& part) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = part();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%-14s %7.2f s  %6.1f GFLOP/s\n", name, seconds, operations / seconds / 1e9);
  std::fflush(stdout);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) {
    return i < argc ? std::atoi(argv[i]) : otherwise;
  };
  const int64_t cols = argument(1, 4096), rows = argument(2, 3840), tokens = argument(3, 2048);
  ThreadPool pool({.num_threads = argument(4, 2)});
  std::vector<float> x(static_cast<size_t>(tokens * cols)), w(static_cast<size_t>(rows * cols));
  std::mt19937 engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& value : x) value = uniform(engine);
  for (float& value : w) value = uniform(engine);
  for (size_t i = 1; i < x.size(); ++i) x[i] = 0.7f * (x[i - 1] + x[i]);

  const double n = static_cast<double>(cols), m = static_cast<double>(rows);
  Hessian hessian(cols);
  timed("Hessian", static_cast<double>(tokens) * n * (n + 1), [&] {
    hessian.add(pool, x.data(), tokens, cols);
    return 0;
  });
  hessian.finish(pool);
  const auto inverse = timed("factors", 2.0 / 3 * n * n * n, [&] {
    return invert_hessian(pool, hessian, 0.01, ColumnOrder::kBySize, 128);
  });
  const auto grid = rounding_grid(*find_group_format({.group = 128}), cols);
  auto rounded = timed("rounding", m * n * n, [&] {
    return round_gptq(pool, grid, w.data(), rows, hessian, inverse, {});
  });
  timed("refinement", 4 * m * n * n, [&] {
    refine(pool, grid, w.data(), hessian, 0.01, 1, rounded);
    return 0;
  });
  timed("output errors", 4 * m * n * n,
        [&] { return rounding_error(pool, grid, w.data(), rounded, hessian); });
  return 0;
}
