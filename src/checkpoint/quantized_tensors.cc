#include "checkpoint/quantized_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/integer_matrix.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

constexpr size_t kMaxNamesTold = 5;

// A matrix and the parts it is stored in.
struct Joined {
  std::string name;  // of the matrix
  IntegerMatrix matrix;
  std::vector<StoredTensor> parts;
  std::string stored_as;  // "int4 group 128"
};

[[noreturn]] void fail(const StoredTensor& tensor, std::string_view message) {
  throw Error("{}: tensor {}: {}", tensor.file, printable(tensor.name), message);
}

void expect_type(const StoredTensor& tensor, std::string_view type) {
  if (tensor.dtype_name != type) {
    fail(tensor, fmt::format("type {}, but {} is needed", tensor.dtype_name, type));
  }
}

int32_t read_int32(const StoredTensor& tensor, int64_t i) {
  int32_t value;
  std::memcpy(&value, tensor.weight.data + 4 * i, sizeof(value));
  return value;
}
uint32_t read_word(const StoredTensor& tensor, int64_t i) {
  return static_cast<uint32_t>(read_int32(tensor, i));
}
float read_scale(const StoredTensor& tensor, int64_t i) {
  const QuantFormat& format = *tensor.weight.format;
  float value;
  dequantize(format, tensor.weight.data + i * format.block_bytes, 1, &value);
  return value;
}

// Code `i` of a run of packed codes that begins at word `first` and goes on every `stride` words.
int packed_code(const StoredTensor& tensor, int64_t first, int64_t stride, int64_t i, int bits) {
  const int64_t in_word = 32 / bits;
  const uint32_t word = read_word(tensor, first + i / in_word * stride);
  return static_cast<int>(word >> (i % in_word * bits)) & ((1 << bits) - 1);
}

// At most `count` codes, the lowest first.
void unpack_word(uint32_t word, int bits, int64_t count, uint8_t* codes) {
  const int in_word = static_cast<int>(std::min<int64_t>(count, 32 / bits));
  const uint32_t mask = (1u << bits) - 1;
  for (int k = 0; k < in_word; ++k) codes[k] = static_cast<uint8_t>(word >> (k * bits) & mask);
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// g_idx, or equal groups. `group_size` (0: not told) counts where groups do not divide the columns.
std::vector<int32_t> groups_of(const StoredTensor* indices, const StoredTensor& scales,
                               int64_t cols, int64_t groups, int64_t group_size) {
  std::vector<int32_t> group_of(static_cast<size_t>(cols));
  if (indices != nullptr) {
    expect_type(*indices, "I32");
    if (indices->weight.shape != Shape{cols}) {
      fail(*indices,
           fmt::format("shape {} for {} columns", to_string(indices->weight.shape), cols));
    }
    bool given = false;
    for (int64_t c = 0; c < cols; ++c) {
      group_of[c] = read_int32(*indices, c);
      given |= group_of[c] != -1;
      if (group_of[c] < -1 || group_of[c] >= groups) {
        fail(*indices, fmt::format("group {} of {}", group_of[c], groups));
      }
    }
    if (given) {
      if (std::find(group_of.begin(), group_of.end(), -1) != group_of.end()) {
        fail(*indices, "some columns have no group");
      }
      return group_of;
    }
  }
  const int64_t size = cols % groups == 0 ? cols / groups : group_size;
  if (groups < 1 || size < 1 || ceil_divide(cols, size) != groups) {
    fail(scales, fmt::format("{} groups do not divide {} columns", groups, cols));
  }
  for (int64_t c = 0; c < cols; ++c) group_of[c] = static_cast<int32_t>(c / size);
  return group_of;
}

void set_scales(IntegerMatrix& matrix, const StoredTensor& scales) {
  const QuantFormat* format = scales.weight.format;
  if (format == nullptr || !format->plain()) {
    fail(scales, fmt::format("scales of type {} cannot be read", scales.dtype_name));
  }
  matrix.bf16_scales = format->id == FormatId::kBF16;
}

std::string describe(const IntegerMatrix& matrix, bool ordered) {
  std::string text = fmt::format("int{}", matrix.bits);
  if (matrix.groups == 1) {
    text += " per channel";
  } else {
    text += fmt::format(" group {}", std::count(matrix.group_of.begin(), matrix.group_of.end(), 0));
  }
  if (!matrix.symmetric) text += " asymmetric";
  if (ordered) text += " reordered";
  return text;
}

class Joiner {
 public:
  Joiner(WeightMap& weights, const QuantizationConfig& config)
      : weights_(weights), config_(config) {}

  void run() {
    std::vector<Joined> joined;
    for (const auto& [name, tensor] : weights_.tensors()) {
      if (config_.method() == QuantizationConfig::Method::kGptq) {
        if (name.ends_with(".qweight")) joined.push_back(join_gptq(tensor));
      } else if (name.ends_with("_packed")) {
        joined.push_back(join_packed(tensor));
      } else if (tensor.dtype_name == "I8" && weights_.find(name + "_scale") != nullptr) {
        joined.push_back(join_int8(tensor));
      }
    }
    settle_symmetry(joined);
    std::set<std::string> names;
    for (Joined& part : joined) {
      names.insert(part.name);
      replace(std::move(part));
    }
    compare_with_config(names);
  }

 private:
  const StoredTensor& need(const StoredTensor& of, const std::string& name) const {
    const StoredTensor* tensor = weights_.find(name);
    if (tensor == nullptr) fail(of, fmt::format("{} is missing beside it", printable(name)));
    return *tensor;
  }
  const StoredTensor* find(const std::string& name, Joined& joined) const {
    const StoredTensor* tensor = weights_.find(name);
    if (tensor != nullptr) joined.parts.push_back(*tensor);
    return tensor;
  }

  // The shape that scales must have: the matrix's, with its groups in place of its columns.
  static void check_scales(const StoredTensor& scales, const Shape& shape, int64_t groups) {
    if (scales.weight.shape.num_elements() != shape.num_elements() / shape.dim(-1) * groups) {
      fail(scales, fmt::format("shape {} for a matrix {}", to_string(scales.weight.shape),
                               to_string(shape)));
    }
  }

  Joined join_packed(const StoredTensor& packed) {
    Joined joined;
    joined.name = packed.name.substr(0, packed.name.size() - std::strlen("_packed"));
    const StoredTensor& scales = need(packed, joined.name + "_scale");
    const Shape& words = packed.weight.shape;
    expect_type(packed, "I32");
    if (words.rank() != 2 && words.rank() != 3)
      fail(packed, "neither a matrix nor a stack of them");
    joined.parts = {packed, scales};

    IntegerMatrix& matrix = joined.matrix;
    matrix.groups = scales.weight.shape.rank() >= 2 ? scales.weight.shape.dim(-1) : 1;
    int64_t cols = 0;
    if (const StoredTensor* shape = find(joined.name + "_shape", joined)) {
      if (shape->dtype_name != "I64" && shape->dtype_name != "I32") expect_type(*shape, "I64");
      const int64_t last = shape->weight.shape.num_elements() - 1;
      if (last < 0) fail(*shape, "empty");
      if (shape->dtype_name == "I64") {
        std::memcpy(&cols, shape->weight.data + 8 * last, sizeof(cols));
      } else {
        cols = read_int32(*shape, last);
      }
    } else {
      cols = words.dim(-1) * 8;
    }
    const bool possible = cols > 0 && cols / 8 <= words.dim(-1);
    for (const int bits : {4, 8}) {
      if (possible && ceil_divide(cols, 32 / bits) == words.dim(-1)) matrix.bits = bits;
    }
    if (!possible || ceil_divide(cols, 32 / matrix.bits) != words.dim(-1)) {
      fail(packed,
           fmt::format("{} words a row do not hold {} codes of 4 or 8 bits", words.dim(-1), cols));
    }
    matrix.shape = words;
    matrix.shape =
        words.rank() == 2 ? Shape{words.dim(0), cols} : Shape{words.dim(0), words.dim(1), cols};
    const StoredTensor* zeros = find(joined.name + "_zero_point", joined);
    const StoredTensor* indices = find(joined.name + "_g_idx", joined);
    finish(joined, scales, indices, zeros != nullptr);
    if (zeros != nullptr) {
      expect_type(*zeros, "I32");
      const int64_t rows = matrix.shape.dim(-2);
      const int64_t matrices = matrix.shape.num_elements() / (rows * cols);
      if (zeros->weight.shape.num_elements() !=
          matrices * ceil_divide(rows, 32 / matrix.bits) * matrix.groups) {
        fail(*zeros, fmt::format("shape {} for a matrix {}", to_string(zeros->weight.shape),
                                 to_string(matrix.shape)));
      }
    }
    matrix.read = [packed, scales, zeros = zeros != nullptr ? *zeros : StoredTensor(),
                   shape = matrix.shape, bits = matrix.bits,
                   groups = matrix.groups](int64_t first, int64_t count, IntegerMatrix::Rows& out) {
      const int64_t cols = shape.dim(-1), rows = shape.dim(-2);
      const int64_t words = packed.weight.shape.dim(-1);
      const int64_t zero_words = ceil_divide(rows, 32 / bits);  // of a column of groups
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = first + i;
        uint8_t* const codes = out.codes.data() + i * cols;
        for (int64_t w = 0; w < words; ++w) {
          unpack_word(read_word(packed, row * words + w), bits, cols - w * (32 / bits),
                      codes + w * (32 / bits));
        }
        for (int64_t g = 0; g < groups; ++g) {
          out.scales[i * groups + g] = read_scale(scales, row * groups + g);
          const int64_t column = row / rows * zero_words * groups + g;
          out.zeros[i * groups + g] = zeros.weight.data != nullptr
                                          ? packed_code(zeros, column, groups, row % rows, bits)
                                          : 1 << (bits - 1);
        }
      }
    };
    return joined;
  }

  Joined join_int8(const StoredTensor& codes) {
    Joined joined;
    joined.name = codes.name;
    const StoredTensor& scales = need(codes, joined.name + "_scale");
    const Shape& shape = codes.weight.shape;
    if (shape.rank() != 2 && shape.rank() != 3) fail(codes, "neither a matrix nor a stack of them");
    if (shape.num_elements() == 0) fail(codes, "empty");
    joined.parts = {codes, scales};
    IntegerMatrix& matrix = joined.matrix;
    matrix.shape = shape;
    matrix.bits = 8;
    const bool one_scale = scales.weight.shape.num_elements() == 1;
    const int64_t rows = shape.num_elements() / shape.dim(-1);
    matrix.groups = one_scale ? 1 : scales.weight.shape.num_elements() / rows;
    const StoredTensor* zeros = find(joined.name + "_zero_point", joined);
    bool symmetric = true;
    if (zeros != nullptr) {
      expect_type(*zeros, "I8");
      if (zeros->weight.shape.num_elements() != scales.weight.shape.num_elements()) {
        fail(*zeros, "not of the shape of the scales");
      }
      const auto* values = reinterpret_cast<const int8_t*>(zeros->weight.data);
      symmetric = std::all_of(values, values + zeros->weight.shape.num_elements(),
                              [](int8_t zero) { return zero == 0; });
    }
    finish(joined, scales, find(joined.name + "_g_idx", joined), !symmetric, one_scale);
    matrix.read = [codes, scales, one_scale, zeros = symmetric ? StoredTensor() : *zeros,
                   cols = shape.dim(-1),
                   groups = matrix.groups](int64_t first, int64_t count, IntegerMatrix::Rows& out) {
      const auto* values = reinterpret_cast<const int8_t*>(codes.weight.data) + first * cols;
      for (int64_t i = 0; i < count * cols; ++i) {
        out.codes[i] = static_cast<uint8_t>(values[i] + 128);
      }
      const auto* zero = reinterpret_cast<const int8_t*>(zeros.weight.data);
      for (int64_t i = 0; i < count * groups; ++i) {
        const int64_t at = one_scale ? 0 : first * groups + i;
        out.scales[i] = read_scale(scales, at);
        out.zeros[i] = 128 + (zero != nullptr ? zero[at] : 0);
      }
    };
    return joined;
  }

  // [in / codes of a word, out] words, in columns; zeros packed along out.
  Joined join_gptq(const StoredTensor& packed) {
    const std::string module = packed.name.substr(0, packed.name.rfind('.'));
    Joined joined;
    joined.name = module + ".weight";
    const StoredTensor& scales = need(packed, module + ".scales");
    const StoredTensor& zeros = need(packed, module + ".qzeros");
    joined.parts = {packed, scales, zeros};
    expect_type(packed, "I32");
    expect_type(zeros, "I32");
    const Shape& words = packed.weight.shape;
    if (words.rank() != 2 || zeros.weight.shape.rank() != 2 || scales.weight.shape.rank() != 2) {
      fail(packed, "no matrix, or its scales or zeros are none");
    }
    IntegerMatrix& matrix = joined.matrix;
    const int64_t rows = words.dim(1), zero_words = zeros.weight.shape.dim(1);
    matrix.groups = scales.weight.shape.dim(0);
    matrix.bits = rows > 0 ? static_cast<int>(zero_words * 32 / rows) : 0;
    if ((matrix.bits != 4 && matrix.bits != 8) || rows % (32 / matrix.bits) != 0 ||
        zeros.weight.shape.dim(0) != matrix.groups || scales.weight.shape.dim(1) != rows) {
      fail(packed,
           fmt::format("{} does not fit scales {} and zeros {} of 4 or 8 bits", to_string(words),
                       to_string(scales.weight.shape), to_string(zeros.weight.shape)));
    }
    const int bits = matrix.bits;
    const int64_t cols = words.dim(0) * (32 / bits), groups = matrix.groups;
    matrix.shape = {rows, cols};
    const int less = config_.zeros_less_one() ? 1 : 0;
    const int mask = (1 << bits) - 1, middle = 1 << (bits - 1);
    bool symmetric = true;
    for (int64_t g = 0; g < groups && symmetric; ++g) {
      for (int64_t r = 0; r < rows && symmetric; ++r) {
        symmetric = ((packed_code(zeros, g * zero_words, 1, r, bits) + less) & mask) == middle;
      }
    }
    finish(joined, scales, find(module + ".g_idx", joined), !symmetric);
    drop_zero_bias(module + ".bias", joined);
    matrix.read = [packed, scales, zeros, rows, cols, groups, bits, less, mask](
                      int64_t first, int64_t count, IntegerMatrix::Rows& out) {
      const int64_t in_word = 32 / bits, zero_words = rows / in_word;
      for (int64_t c = 0; c < cols; c += in_word) {
        for (int64_t i = 0; i < count; ++i) {
          const uint32_t word = read_word(packed, c / in_word * rows + first + i);
          unpack_word(word, bits, in_word, out.codes.data() + i * cols + c);
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t g = 0; g < groups; ++g) {
          out.scales[i * groups + g] = read_scale(scales, g * rows + first + i);
          out.zeros[i * groups + g] =
              (packed_code(zeros, g * zero_words, 1, first + i, bits) + less) & mask;
        }
      }
    };
    return joined;
  }

  // Some writers give every matrix a bias.
  void drop_zero_bias(const std::string& name, Joined& joined) const {
    const StoredTensor* bias = weights_.find(name);
    if (bias == nullptr || bias->weight.format == nullptr || !bias->weight.format->plain()) return;
    for (int64_t i = 0; i < bias->weight.shape.num_elements(); ++i) {
      if (read_scale(*bias, i) != 0) return;
    }
    joined.parts.push_back(*bias);
  }

  // What all kinds have in common.
  void finish(Joined& joined, const StoredTensor& scales, const StoredTensor* indices,
              bool asymmetric, bool one_scale = false) const {
    IntegerMatrix& matrix = joined.matrix;
    const int64_t cols = matrix.shape.dim(-1);
    if (matrix.shape.num_elements() == 0) fail(joined.parts.front(), "empty");
    set_scales(matrix, scales);
    if (!one_scale) check_scales(scales, matrix.shape, matrix.groups);
    matrix.group_of = groups_of(indices, scales, cols, matrix.groups, config_.group_size());
    matrix.symmetric = !asymmetric;
    const bool in_order = std::is_sorted(matrix.group_of.begin(), matrix.group_of.end());
    joined.stored_as = describe(matrix, !in_order);
  }

  // The experts of a layer must share a format.
  static void settle_symmetry(std::vector<Joined>& joined) {
    std::map<std::string, bool> all_symmetric;
    const auto family = [](const std::string& name) {
      const size_t at = name.find("experts.");
      if (at == name.npos) return name;
      const size_t dot = name.find('.', at + 8);
      return dot == name.npos ? name : name.substr(0, at) + name.substr(dot);
    };
    for (const Joined& part : joined) {
      bool& symmetric = all_symmetric.try_emplace(family(part.name), true).first->second;
      symmetric = symmetric && part.matrix.symmetric;
    }
    for (Joined& part : joined) part.matrix.symmetric = all_symmetric[family(part.name)];
  }

  void replace(Joined part) {
    const QuantFormat& format = exact_format(part.matrix);
    if (format.plain()) {
      spdlog::warn("{}: {} ({}) is kept as float32, as no compact format holds it", part.name,
                   part.stored_as, part.parts.front().file);
    }
    StoredTensor tensor;
    tensor.name = part.name;
    tensor.file_name = part.parts.front().name == part.name ? "" : part.parts.front().name;
    tensor.file = part.parts.front().file;
    tensor.dtype_name = std::string(format.name);
    tensor.weight.shape = part.matrix.shape;
    for (const StoredTensor& source : part.parts) {
      tensor.stored_bytes += source.stored_bytes;
      weights_.remove(source.name);
    }
    tensor.parts = std::make_shared<const std::vector<StoredTensor>>(std::move(part.parts));
    tensor.convert = [matrix = std::move(part.matrix), &format] {
      return to_weight(matrix, format);
    };
    weights_.add(std::move(tensor));
  }

  // A list of modules that does not tell the truth costs only a warning.
  void compare_with_config(const std::set<std::string>& joined) const {
    const auto module_of = [](std::string_view name) {
      return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
    };
    std::vector<std::string> unexpected, plain;
    for (const std::string& name : joined) {
      if (!config_.covers(module_of(name))) unexpected.push_back(printable(name));
    }
    for (const auto& [name, tensor] : weights_.tensors()) {
      if (!name.ends_with("_proj.weight") || tensor.weight.shape.rank() != 2) continue;
      if (!joined.contains(name) && config_.covers(module_of(name))) {
        plain.push_back(printable(name));
      }
    }
    if (!unexpected.empty()) {
      spdlog::warn("{}: quantised, though quantization_config leaves them out: {}",
                   weights_.origin(), join_some(unexpected, ", ", kMaxNamesTold));
    }
    if (!plain.empty()) {
      spdlog::warn("{}: not quantised, though quantization_config says so: {}", weights_.origin(),
                   join_some(plain, ", ", kMaxNamesTold));
    }
  }

  WeightMap& weights_;
  const QuantizationConfig& config_;
};

}  // namespace

void join_quantized_tensors(WeightMap& weights, const QuantizationConfig& config) {
  Joiner(weights, config).run();
}

}  // namespace braid
