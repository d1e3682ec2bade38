// Measures which path computes the products of models fastest, by force, side by side, and writes
// the table that BRAID_PRODUCT_TABLE or src/ops/linear/cuda/tables takes. Weights rotate through
// memory that no cache holds, as a decode step sees them; times are those of a link of a CUDA graph
// with programmatic edges.
//
//   cuda_product_table FOLDER:WEIGHTS... [--tokens N,N] [--seconds S] [--out FILE]
//
// FOLDER has a config.json; WEIGHTS: bf16, w4a16, w8a8, or a format with tiles (q4_0, w4g64).

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench_data.cuh"
#include "chain_timer.h"
#include "model_products.h"
#include "ops/cuda/launch.cuh"
#include "ops/fused/gated_mlps.h"
#include "ops/fused/prepared_input.h"
#include "ops/fused/residual.h"
#include "ops/linear/cuda/library_product.h"
#include "ops/linear/cuda/product_paths.h"
#include "ops/linear/cuda/row_warps.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"
#include "quant/device_tiles.h"
#include "tensor/buffer.h"
#include "tensor/cuda/device_memory.h"

namespace {

using namespace braid;
using namespace braid::cuda;
using enum ProductPath;

constexpr size_t kPoolBytes = size_t{4} << 30;
constexpr int64_t kHeadTokens = 64;  // of heads, and of what gated blocks of w8a8 do with bfloat16
constexpr int64_t kMostByFew = 128;  // beyond, paths for few tokens are not tried
constexpr int kLibraryCandidates = 5;
constexpr int kRounds = 3;
constexpr double kChainUs = 800;
constexpr double kLeastGain = 0.02;  // a choice must be that much faster than the usual one

struct Options {
  std::vector<std::pair<std::string, std::string>> models;  // folder, weights
  std::vector<int64_t> tokens{1, 2, 4, 8, 10, 16, 32, 64, 128, 256, 512, 1024, 2048};
  double seconds = 40;
  std::string out;
};

struct Machine {
  ThreadPool pool{{.num_threads = 1}};
  Stream stream{pool, Device{DeviceKind::kCuda, 0}};
  Buffer weights{kPoolBytes, stream.device()};
  Buffer x{size_t{256} << 20, stream.device()};
  Buffer y{size_t{512} << 20, stream.device()};
  Buffer offsets{size_t{64} << 10, stream.device()};
  Buffer pairs{size_t{1} << 20, stream.device()};
  Workspace workspace{size_t{2} << 30, stream.device()};
  double read_rate = 0;                 // bytes a second
  double bf16_rate = 0, int8_rate = 0;  // operations a second
};

// A product, or gated block, of some tokens, with all that calls need.
struct Problem {
  ModelProduct product;
  const QuantFormat* format = nullptr;       // of the layout on the device
  const QuantFormat* down_format = nullptr;  // gated: of the second matrix
  bool codes = false;
  int64_t tokens = 0;   // of the model
  int64_t touched = 1;  // matrices

  bool gated() const {
    return product.kind == ProductKind::kGated || product.kind == ProductKind::kGatedExperts;
  }
  bool routed() const { return product.experts > 0; }
  int64_t rows_of_x() const { return routed() ? tokens * product.picks : tokens; }
  ProductSize size() const {
    return {.kind = product.kind,
            .format = format->id,
            .tiles = in_tiles(*format),
            .codes = codes,
            .experts = product.experts,
            .rows = product.rows,
            .cols = product.cols,
            .tokens = rows_of_x()};
  }
  static int64_t padded(int64_t rows, const QuantFormat& format) {
    return in_tiles(format) ? ceil_divide<int64_t>(rows, kTileRows) * kTileRows : rows;
  }
  int64_t matrix_bytes() const {
    if (!gated()) return padded(product.rows, *format) * format->row_bytes(product.cols);
    return 2 * padded(product.rows, *format) * format->row_bytes(product.cols) +
           padded(product.cols, *down_format) * down_format->row_bytes(product.rows);
  }
  int64_t bytes() const { return std::max<int64_t>(product.experts, 1) * matrix_bytes(); }
  double operations() const {
    return (gated() ? 6.0 : 2.0) * static_cast<double>(rows_of_x()) *
           static_cast<double>(product.rows) * static_cast<double>(product.cols);
  }
  double floor_us(const Machine& m) const {
    const double moved = static_cast<double>(touched) * static_cast<double>(matrix_bytes());
    return 1e6 * std::max(moved / m.read_rate, operations() / (codes ? m.int8_rate : m.bf16_rate));
  }
  int links() const {
    return static_cast<int>(
        std::clamp<int64_t>(static_cast<int64_t>(kPoolBytes / 2) / bytes(), 2, 192));
  }
};

class TableBench {
 public:
  TableBench(Machine& m, const Options& options)
      : m_(m), options_(options), start_(std::chrono::steady_clock::now()) {
    cudaDeviceProp properties{};
    BRAID_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    table_ = ProductTable(properties.name, properties.multiProcessorCount,
                          static_cast<int64_t>(cublasLtGetVersion()));
  }

  const ProductTable& table() const { return table_; }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  bool out_of_time() const { return seconds() > options_.seconds; }

  void measure(const ModelProduct& product, const QuantFormat& in_file, bool codes) {
    Problem problem{.product = product};
    problem.format = layout_of(in_file, product.cols);
    if (problem.gated()) problem.down_format = layout_of(in_file, product.rows);
    problem.codes = codes;
    if (problem.bytes() > static_cast<int64_t>(kPoolBytes / 2)) return;
    // Gated blocks are one format.
    if (problem.gated() && problem.down_format->id != problem.format->id) return;
    if (!seen_.insert(key_of(problem.size())).second) return;
    std::printf(
        "\n%s: %s%s%s, %lld x %lld", product.what.c_str(), problem.format->name.data(),
        codes ? ", int8 inputs" : "",
        problem.routed()
            ? fmt::format(", {} experts, {} a token", product.experts, product.picks).c_str()
            : "",
        static_cast<long long>(product.rows), static_cast<long long>(product.cols));
    std::printf(", %.1f MiB\n%6s %9s %6s  %-12s %-12s  us of each\n", problem.bytes() / 1048576.0,
                "tokens", "floor us", "share", "usual", "best");
    for (const int64_t tokens : options_.tokens) {
      if (product.few_tokens && tokens > kHeadTokens) break;
      if (problem.gated() && problem.format->id == FormatId::kW8C && !codes && tokens > kHeadTokens)
        break;
      problem.tokens = tokens;
      if (out_of_time() || !fits(problem)) break;
      measure_tokens(problem);
    }
  }

 private:
  static std::string key_of(const ProductSize& s) {
    return fmt::format("{} {} {} {} {} {} {}", static_cast<int>(s.kind), static_cast<int>(s.format),
                       s.tiles, s.codes, s.experts, s.rows, s.cols);
  }

  // As placing a model chooses it.
  static const QuantFormat* layout_of(const QuantFormat& in_file, int64_t cols) {
    const QuantFormat* format = &in_file;
    for (const FormatId smaller : {FormatId::kW4G64, FormatId::kW4G32}) {
      if (in_file.id == FormatId::kW4G128 && cols % format->block_elements != 0) {
        format = &quant_format(smaller);
      }
    }
    const QuantFormat* tiles = tile_format(*format, cols);
    return tiles != nullptr ? tiles : format;
  }

  bool fits(const Problem& p) const {
    const int64_t rows = p.rows_of_x(), width = std::max(p.product.rows, p.product.cols);
    return rows * width * 4 <= static_cast<int64_t>(m_.y.size_bytes()) &&
           rows * p.product.cols * 2 + rows * 8 <= static_cast<int64_t>(m_.x.size_bytes()) &&
           rows * 4 <= static_cast<int64_t>(m_.pairs.size_bytes());
  }

  // The columns of x that a problem's calls read.
  LinearInput input_of(const Problem& p, int64_t rows) const {
    const Device device = m_.stream.device();
    const int64_t cols = p.product.cols;
    LinearInput input;
    input.x = TensorView(m_.x.data(), DType::kF32, {rows, cols}, device);
    if (!p.codes) {
      input.precision = ActivationPrecision::kBF16;
      input.packed = TensorView(m_.x.data(), DType::kBF16, {rows, cols}, device);
      return input;
    }
    input.precision = ActivationPrecision::kInt8;
    input.token_codes = TensorView(m_.x.data(), DType::kI8, {rows, cols}, device);
    input.token_packed = input.token_codes;
    input.token_scales = TensorView(m_.x.data() + ceil_divide<int64_t>(rows * cols, 256) * 256,
                                    DType::kF32, {rows}, device);
    return input;
  }

  const std::byte* weights_of(const Problem& p, int link) const {
    return m_.weights.data() + link % p.links() * p.bytes();
  }
  Weight weight(const Problem& p, const QuantFormat& format, int64_t rows, int64_t cols,
                const std::byte* data) const {
    Weight w;
    w.format = &format;
    w.shape = p.routed() ? Shape{p.product.experts, rows, cols} : Shape{rows, cols};
    w.data = data;
    w.device = m_.stream.device();
    return w;
  }

  void run_single(const Problem& p, int link, ProductChoice choice) {
    const Weight w = weight(p, *p.format, p.product.rows, p.product.cols, weights_of(p, link));
    const LinearInput input = input_of(p, p.rows_of_x());
    const auto* offsets = reinterpret_cast<const int32_t*>(m_.offsets.data());
    if (p.codes) {
      Int8Products products = int8_products_of(w, input);
      products.y = reinterpret_cast<float*>(m_.y.data());
      products.y_stride = p.product.rows;
      products.experts = static_cast<int>(p.routed() ? p.product.experts : 0);
      products.offsets = offsets;
      return run_path(m_.stream, products, choice);
    }
    run_path(m_.stream, single_products(p, w, input), choice);
  }
  Products single_products(const Problem& p, const Weight& w, const LinearInput& input) const {
    Products products = products_of(w, input);
    products.y = reinterpret_cast<float*>(m_.y.data());
    products.y_stride = p.product.rows;
    products.experts = static_cast<int>(p.routed() ? p.product.experts : 0);
    products.offsets = reinterpret_cast<const int32_t*>(m_.offsets.data());
    return products;
  }

  // As a layer does it; false: not by that path.
  bool run_gated(const Problem& p, int link, ProductPath path) {
    const int64_t width = p.product.rows, hidden = p.product.cols;
    const Device device = m_.stream.device();
    Workspace::Scope scope(m_.workspace);
    const std::byte* data = weights_of(p, link);
    const Weight gate = weight(p, *p.format, 2 * width, hidden, data);
    const Weight down = weight(p, *p.down_format, hidden, width, data + gate.size_bytes());
    const Weight none;
    const LinearInput input = input_of(p, p.tokens);
    const int64_t rows = p.rows_of_x();
    ExpertGroups groups;
    if (p.routed()) {
      groups.offsets = TensorView(m_.offsets.data(), DType::kI32, {p.product.experts + 1}, device);
      groups.tokens = TensorView(m_.pairs.data(), DType::kI32, {rows}, device);
    }
    const TensorView out(m_.y.data(), DType::kF32, {rows, hidden}, device);
    if (path == kParts) {
      parts(p, gate, down, input, groups, out);
      return true;
    }
    const bool rounded =
        path == kWide || (p.codes && p.routed() && rows > kFewTokensPerExpert * p.product.experts);
    const GatedMlpCall calls[] = {
        {Activation::kGeluTanh, &gate, &none, &down, &input, p.routed() ? &groups : nullptr,
         rounded ? TensorView(out.raw(), DType::kBF16, out.shape(), device) : out}};
    return gated_mlps(m_.stream, m_.workspace, calls);
  }
  void parts(const Problem& p, const Weight& gate_up, const Weight& down, const LinearInput& input,
             const ExpertGroups& groups, const TensorView& out) {
    const int64_t width = p.product.rows;
    const TensorView both = m_.workspace.take(DType::kF32, {p.rows_of_x(), 2 * width});
    if (p.routed()) {
      grouped_linear(m_.stream, gate_up,
                     gather_input(m_.stream, m_.workspace, input, groups.tokens), groups.offsets,
                     both);
    } else {
      linear(m_.stream, gate_up, input, both);
    }
    InputRounding rounding{ActivationPrecision::kBF16, {}};
    if (p.codes) {
      rounding = {ActivationPrecision::kInt8, {.per_block = false, .per_token = true}};
    }
    const LinearInput activated =
        prepare_gated_input(m_.stream, m_.workspace, Activation::kGeluTanh, both.columns(0, width),
                            both.columns(width, width), rounding);
    if (p.routed()) {
      grouped_linear(m_.stream, down, activated, groups.offsets, out);
    } else {
      linear(m_.stream, down, activated, out);
    }
  }

  std::vector<ProductChoice> choices_of(const Problem& p) {
    const ProductSize size = p.size();
    std::vector<ProductChoice> choices;
    const auto add = [&](ProductChoice choice) {
      if (product_choice_exists(size, choice)) choices.push_back(choice);
    };
    if (p.codes) {
      if (!p.gated() && !p.routed() && p.tokens <= kHeadTokens) add({kStream});
      for (const int tokens : {0, 64, 128, 256}) add({kTiles, tokens});
      if (p.gated()) add({kParts});
      return choices;
    }
    if (p.gated()) {
      for (const ProductPath path : {kStream, kWide, kParts}) add({path});
      return choices;
    }
    const Weight w = weight(p, *p.format, p.product.rows, p.product.cols, weights_of(p, 0));
    const Products products = single_products(p, w, input_of(p, p.rows_of_x()));
    const PathSet possible = possible_paths(m_.stream, products);
    const bool few = p.tokens <= kMostByFew;
    if (possible.has(kFewRows)) add({kFewRows});
    if (possible.has(kStream) && few) {
      add({kStream});
      for (const int warps : {1, 2, 4, 8}) {
        const bool own = !p.routed() && row_warps_can(products, warps);
        if (own && p.tokens <= kHeadTokens) add({kStream, warps});
      }
    }
    if (possible.has(kFewTokens) && few) add({kFewTokens});
    if (possible.has(kTiles) && p.rows_of_x() >= 8) add({kTiles});
    if (possible.has(kLibrary) && p.tokens >= 8) {
      const int count = library_candidates(m_.stream, products, kLibraryCandidates);
      for (int rank = 0; rank < count; ++rank) add({kLibrary, rank});
    }
    if (!possible.has(kFewTokens)) add({kExact});
    return choices;
  }

  // What is taken without a table; of the choices.
  ProductChoice usual_of(const Problem& p, const std::vector<ProductChoice>& choices) {
    PathSet possible;
    for (const ProductChoice choice : choices) possible.add(choice.path, true);
    return usual_choice(p.size(), possible);
  }

  // Microseconds; nothing if the path cannot, or takes so long that it is out of the question.
  std::optional<double> time(const Problem& p, ProductChoice choice, double best) {
    ProductTable forced = table_;
    forced.add(p.size(), choice);
    const ProductTableScope by_force(forced);
    bool done = true;
    const auto link = [&](int i) {
      if (p.gated()) {
        done = run_gated(p, i, choice.path) && done;
      } else {
        run_single(p, i, choice);
      }
    };
    cudaStream_t stream = m_.stream.cuda().handle();
    const double once = 1e6 * median_seconds(stream, {1, 1}, [&] { link(0); });
    std::optional<double> us;
    if (done && (best == 0 || once < 4 * best + 60)) {
      const double guess = std::max(2.0, once);
      const int links = static_cast<int>(std::clamp(kChainUs / guess, 2.0, double(p.links())));
      us = 1e6 * link_seconds(m_.stream, links, {1, kRounds}, link);
    }
    return us;
  }

  void measure_tokens(Problem& p) {
    if (p.routed()) {
      const std::vector<int32_t> offsets =
          random_offsets(p.tokens, p.product.picks, p.product.experts);
      p.touched = 0;
      for (size_t e = 1; e < offsets.size(); ++e) p.touched += offsets[e] > offsets[e - 1] ? 1 : 0;
      copy_to_device(m_.offsets.data(), offsets.data(), offsets.size() * sizeof(int32_t), 0);
      std::vector<int32_t> rows(static_cast<size_t>(p.rows_of_x()));  // any will do
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i] = static_cast<int32_t>(static_cast<int64_t>(i) % p.tokens);
      }
      copy_to_device(m_.pairs.data(), rows.data(), rows.size() * sizeof(int32_t), 0);
    }
    const std::vector<ProductChoice> choices = choices_of(p);
    if (choices.empty()) return;
    struct Time {
      ProductChoice choice;
      double us;
    };
    std::vector<Time> times;
    double best = 0;
    const ProductChoice usual = usual_of(p, choices);
    for (const ProductChoice choice : choices) {
      const std::optional<double> us = time(p, choice, best);
      if (!us) continue;
      times.push_back({choice, *us});
      best = best == 0 ? *us : std::min(best, *us);
    }
    if (times.empty()) return;
    const auto faster = [](const Time& a, const Time& b) { return a.us < b.us; };
    Time winner = *std::min_element(times.begin(), times.end(), faster);
    for (const Time& time : times) {
      if (time.choice == usual && time.us * (1 - kLeastGain) <= winner.us) winner = time;
    }
    table_.add(p.size(), winner.choice);
    const double floor = p.floor_us(m_);
    std::printf("%6lld %9.1f %5.0f%%  %-12s %-12s ", static_cast<long long>(p.tokens), floor,
                100 * floor / winner.us, to_string(usual).c_str(),
                winner.choice == usual ? "=" : to_string(winner.choice).c_str());
    for (const Time& time : times) {
      std::printf(" %s %.1f", to_string(time.choice).c_str(), time.us);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  Machine& m_;
  const Options& options_;
  std::chrono::steady_clock::time_point start_;
  ProductTable table_;
  std::set<std::string> seen_;
};

void measure_ceilings(Machine& m) {
  m.read_rate = measure_read_rate(m.stream, m.weights.data(), kPoolBytes,
                                  reinterpret_cast<uint32_t*>(m.y.data()));
  constexpr int64_t kSide = 8192;
  const Device device = m.stream.device();
  const auto rate_of = [&](const QuantFormat& format, const LinearInput& input) {
    Weight w;
    w.format = &format;
    w.shape = {kSide, kSide};
    w.data = m.weights.data();
    const TensorView y(m.y.data(), DType::kF32, {kSide, kSide}, device);
    const auto link = [&](int) { linear(m.stream, w, input, y); };
    return 2.0 * kSide * kSide * kSide / link_seconds(m.stream, 4, {1, kRounds}, link);
  };
  LinearInput input;
  input.x = TensorView(m.x.data(), DType::kF32, {kSide, kSide}, device);
  input.packed = TensorView(m.x.data(), DType::kBF16, {kSide, kSide}, device);
  input.precision = ActivationPrecision::kBF16;
  m.bf16_rate = rate_of(quant_format(FormatId::kBF16), input);
  m.int8_rate = 2 * m.bf16_rate;
  if (has_int8_products(m.stream)) {
    input.packed = {};
    input.token_codes = TensorView(m.x.data(), DType::kI8, {kSide, kSide}, device);
    input.token_packed = input.token_codes;
    input.token_scales = TensorView(m.x.data() + kSide * kSide, DType::kF32, {kSide}, device);
    input.precision = ActivationPrecision::kInt8;
    m.int8_rate = rate_of(*tile_format(quant_format(FormatId::kW8C), kSide), input);
  }
  std::printf("read %.2f TB/s, bf16 %.0f TFLOP/s, int8 %.0f TOP/s (8192^3)\n", m.read_rate * 1e-12,
              m.bf16_rate * 1e-12, m.int8_rate * 1e-12);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool takes_value =
        argument == "--tokens" || argument == "--seconds" || argument == "--out";
    if (takes_value && i + 1 >= argc) throw Error("{}: a value is missing", argument);
    if (argument == "--out") {
      options.out = argv[++i];
    } else if (argument == "--seconds") {
      options.seconds = std::stod(argv[++i]);
    } else if (argument == "--tokens") {
      options.tokens.clear();
      std::istringstream counts(argv[++i]);
      for (std::string count; std::getline(counts, count, ',');) {
        options.tokens.push_back(std::stoll(count));
      }
      std::sort(options.tokens.begin(), options.tokens.end());
    } else {
      const size_t colon = argument.rfind(':');
      if (colon == argument.npos) throw Error("{}: FOLDER:WEIGHTS is expected", argument);
      options.models.emplace_back(argument.substr(0, colon), argument.substr(colon + 1));
    }
  }
  if (options.models.empty()) {
    throw Error("cuda_product_table FOLDER:WEIGHTS... [--tokens N,N] [--seconds S] [--out FILE]");
  }
  return options;
}

const QuantFormat& weights_format(const std::string& name) {
  if (name == "w4a16") return quant_format(FormatId::kW4G128);
  if (name == "w8a8") return quant_format(FormatId::kW8C);
  const QuantFormat* format = find_quant_format(name);
  if (format == nullptr) throw Error("'{}': unknown weights", name);
  return *format;
}

void measure_models(Machine& m, const Options& options) {
  TableBench bench(m, options);
  for (const auto& [folder, weights] : options.models) {
    std::printf("\n== %s, %s\n", folder.c_str(), weights.c_str());
    const QuantFormat& format = weights_format(weights);
    for (const ModelProduct& product : model_products(folder)) {
      if (bench.out_of_time()) break;
      const QuantFormat& own = product.kept ? quant_format(FormatId::kBF16) : format;
      const bool gated =
          product.kind == ProductKind::kGated || product.kind == ProductKind::kGatedExperts;
      const bool codes = weights == "w8a8" && !product.kept && has_int8_products(m.stream);
      if (codes) bench.measure(product, own, true);
      if (!codes || gated) bench.measure(product, own, false);
    }
  }
  std::printf("\n%zu shapes in %.1f s%s\n", bench.table().num_shapes(), bench.seconds(),
              bench.out_of_time() ? "; out of time: what is missing is left to constants" : "");
  if (options.out.empty()) return;
  std::ofstream file(options.out);
  file << bench.table().to_text();
  file.close();
  if (!file) throw Error("{}: cannot be written", options.out);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    if (num_devices() == 0) {
      // What would be measured.
      for (const auto& [folder, weights] : options.models) {
        static_cast<void>(weights_format(weights));
        for (const ModelProduct& p : model_products(folder)) {
          std::printf("%-40s kind %d, %4lld experts, %7lld x %5lld%s\n", p.what.c_str(),
                      static_cast<int>(p.kind), static_cast<long long>(p.experts),
                      static_cast<long long>(p.rows), static_cast<long long>(p.cols),
                      p.kept ? ", kept" : "");
        }
      }
      throw Error("no CUDA device here");
    }
    Machine m;
    cudaStream_t stream = m.stream.cuda().handle();
    fill_small<<<1024, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(m.weights.data()),
                                         kPoolBytes / 4);
    fill_small<<<1024, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(m.x.data()),
                                         static_cast<int64_t>(m.x.size_bytes() / 4));
    measure_ceilings(m);
    measure_models(m, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
