#include "ops/linear/cuda/product_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace braid::cuda {
namespace {

constexpr std::string_view kTitle = "braid product table 1";
constexpr std::array<std::string_view, 4> kKinds = {"matrix", "experts", "gated", "gated-experts"};
constexpr std::array<std::string_view, kNumProductPaths> kPaths = {
    "few-rows", "stream", "few-tokens", "tiles", "wide", "library", "exact", "parts"};
constexpr std::array<std::string_view, 2> kLayouts = {"rows", "tiles"};
constexpr std::array<std::string_view, 2> kInputs = {"bf16", "int8"};
constexpr int64_t kMostSize = int64_t{1} << 30;

// The words of a line; errors name it.
class Line {
 public:
  Line(std::string_view text, const std::string& name, int number)
      : rest_(text), name_(name), number_(number) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("{}: line {}: {}; measure the table again with cuda_product_table, or do without",
                name_, number_, what);
  }
  bool at_end() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r"), rest_.size()));
    return rest_.empty();
  }
  std::string_view word(std::string_view what) {
    if (at_end()) fail(fmt::format("{} is missing", what));
    const size_t end = std::min(rest_.find_first_of(" \t\r"), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return word;
  }
  // What is left, without blanks at the ends.
  std::string_view remainder(std::string_view what) {
    if (at_end()) fail(fmt::format("{} is missing", what));
    return rest_.substr(0, rest_.find_last_not_of(" \t\r") + 1);
  }
  int64_t number(std::string_view word, std::string_view what, int64_t low,
                 int64_t high = kMostSize) const {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size() || value < low || value > high) {
      fail(fmt::format("{} '{}' is no number from {} to {}", what, word, low, high));
    }
    return value;
  }
  int64_t number(std::string_view what, int64_t low, int64_t high = kMostSize) {
    return number(word(what), what, low, high);
  }
  template <size_t kCount>
  size_t choice(std::string_view word, std::string_view what,
                const std::array<std::string_view, kCount>& names) const {
    const auto found = std::find(names.begin(), names.end(), word);
    if (found == names.end()) fail(fmt::format("{} '{}' is unknown", what, word));
    return static_cast<size_t>(found - names.begin());
  }

 private:
  std::string_view rest_;
  const std::string& name_;
  int number_;
};

double ratio(int64_t a, int64_t b) {
  return static_cast<double>(std::max(a, b)) / static_cast<double>(std::min(a, b));
}

// One of the kinds, weights and inputs, whatever the sizes.
bool alike(const ProductSize& a, const ProductSize& b) {
  return a.kind == b.kind && a.format == b.format && a.tiles == b.tiles && a.codes == b.codes;
}

ProductSize without_tokens(ProductSize size) {
  size.tokens = 0;
  return size;
}

ProductSize read_shape(Line& line) {
  ProductSize size;
  size.kind = static_cast<ProductKind>(line.choice(line.word("the kind"), "the kind", kKinds));
  const std::string_view format = line.word("the weights' format");
  const QuantFormat* found = find_quant_format(format);
  if (found == nullptr) line.fail(fmt::format("the weights' format '{}' is unknown", format));
  size.format = found->id;
  size.tiles = line.choice(line.word("the layout"), "the layout", kLayouts) == 1;
  size.codes = line.choice(line.word("the inputs"), "the inputs", kInputs) == 1;
  size.experts = line.number("the number of experts", 0);
  if ((size.experts > 0) != size.has_experts()) {
    line.fail(fmt::format("{} experts of '{}'", size.experts, kKinds[static_cast<int>(size.kind)]));
  }
  size.rows = line.number("the number of rows", 1);
  size.cols = line.number("the number of columns", 1);
  return size;
}

ProductChoice read_choice(Line& line, const ProductSize& size) {
  const std::string_view word = line.word("a choice");
  const size_t slash = std::min(word.find('/'), word.size());
  ProductChoice choice;
  choice.path = static_cast<ProductPath>(line.choice(word.substr(0, slash), "the path", kPaths));
  if (slash < word.size()) {
    choice.variant = static_cast<int>(line.number(word.substr(slash + 1), "the variant", 0));
  }
  if (!product_choice_exists(size, choice)) {
    line.fail(fmt::format("there is no '{}' for '{}' with such weights and inputs", word,
                          kKinds[static_cast<int>(size.kind)]));
  }
  return choice;
}

}  // namespace

bool product_choice_exists(const ProductSize& size, ProductChoice choice) {
  const bool gated = size.kind == ProductKind::kGated || size.kind == ProductKind::kGatedExperts;
  const bool matrix = size.kind == ProductKind::kMatrix;
  const int variant = choice.variant;
  switch (choice.path) {
    case ProductPath::kFewRows:
      return matrix && !size.codes && variant == 0;
    case ProductPath::kStream:
      if (size.codes) return matrix && variant == 0;
      return variant == 0 ||
             (matrix && (variant == 1 || variant == 2 || variant == 4 || variant == 8));
    case ProductPath::kFewTokens:
      return !gated && !size.codes && variant == 0;
    case ProductPath::kTiles:
      if (!size.codes) return !gated && variant == 0;
      return variant == 0 || variant == 64 || variant == 128 || (matrix && variant == 256);
    case ProductPath::kWide:
      return size.kind == ProductKind::kGatedExperts && !size.codes && variant == 0;
    case ProductPath::kLibrary:
      return matrix && !size.codes && variant >= 0 && variant < kLibraryRanks;
    case ProductPath::kExact:
      return !gated && !size.codes && variant == 0;
    case ProductPath::kParts:
      return gated && variant == 0;
  }
  return false;
}

std::string to_string(ProductChoice choice) {
  const std::string_view path = kPaths[static_cast<size_t>(choice.path)];
  return choice.variant == 0 ? std::string(path) : fmt::format("{}/{}", path, choice.variant);
}

ProductTable ProductTable::parse(std::string_view text, const std::string& name) {
  ProductTable table;
  bool titled = false;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    Line line(text.substr(0, end), name, ++number);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.at_end()) continue;
    if (!titled) {
      if (line.remainder("the title") != kTitle) line.fail(fmt::format("no '{}'", kTitle));
      titled = true;
      continue;
    }
    Line ahead = line;
    const std::string_view first = ahead.word("a word");
    if (first[0] == '#') continue;
    if (first == "device") {
      table.device_ = ahead.remainder("the device's name");
      continue;
    }
    if (first == "multiprocessors") {
      table.multiprocessors_ =
          static_cast<int>(ahead.number("the number of multiprocessors", 1, 1 << 20));
      if (!ahead.at_end()) ahead.fail("one number is expected");
      continue;
    }
    if (first == "cublaslt") {
      table.library_version_ = ahead.number("the library's version", 0);
      if (!ahead.at_end()) ahead.fail("one number is expected");
      continue;
    }
    Shape shape{read_shape(line), {}};
    const auto same = [&](const Shape& other) { return other.size == shape.size; };
    if (std::any_of(table.shapes_.begin(), table.shapes_.end(), same)) {
      line.fail("these weights had a line before");
    }
    do {
      const int64_t tokens = line.number("the number of tokens", 1);
      if (!shape.measured.empty() && tokens <= shape.measured.back().tokens) {
        line.fail(fmt::format("{} tokens after {}", tokens, shape.measured.back().tokens));
      }
      shape.measured.push_back({tokens, read_choice(line, shape.size)});
    } while (!line.at_end());
    table.shapes_.push_back(std::move(shape));
  }
  if (!titled || table.device_.empty() || table.multiprocessors_ == 0) {
    Line("", name, number).fail("no title, or no lines 'device' and 'multiprocessors'");
  }
  return table;
}

ProductTable ProductTable::read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw Error("{}: the product table cannot be read", path.string());
  return parse(text, path.string());
}

std::string ProductTable::to_text() const {
  std::string text = fmt::format("{}\ndevice {}\nmultiprocessors {}\ncublaslt {}\n", kTitle,
                                 device_, multiprocessors_, library_version_);
  for (const Shape& shape : shapes_) {
    const ProductSize& size = shape.size;
    text += fmt::format("{} {} {} {} {} {} {} ", kKinds[static_cast<size_t>(size.kind)],
                        quant_format(size.format).name, kLayouts[size.tiles ? 1 : 0],
                        kInputs[size.codes ? 1 : 0], size.experts, size.rows, size.cols);
    for (const Measured& measured : shape.measured) {
      text += fmt::format(" {} {}", measured.tokens, to_string(measured.choice));
    }
    text += '\n';
  }
  return text;
}

void ProductTable::add(const ProductSize& size, ProductChoice choice) {
  const ProductSize key = without_tokens(size);
  auto shape = std::find_if(shapes_.begin(), shapes_.end(),
                            [&](const Shape& known) { return known.size == key; });
  if (shape == shapes_.end()) shape = shapes_.insert(shape, Shape{key, {}});
  auto& measured = shape->measured;
  const auto place =
      std::lower_bound(measured.begin(), measured.end(), size.tokens,
                       [](const Measured& m, int64_t tokens) { return m.tokens < tokens; });
  if (place != measured.end() && place->tokens == size.tokens) {
    place->choice = choice;
  } else {
    measured.insert(place, {size.tokens, choice});
  }
}

const ProductTable::Shape* ProductTable::nearest(const ProductSize& size) const {
  const Shape* best = nullptr;
  double least = kNear;
  for (const Shape& shape : shapes_) {
    if (!alike(shape.size, size)) continue;
    double distance = ratio(shape.size.rows, size.rows) * ratio(shape.size.cols, size.cols);
    if (size.has_experts()) distance *= ratio(shape.size.experts, size.experts);
    if (distance < least || (best == nullptr && distance == least)) {
      best = &shape;
      least = distance;
    }
  }
  return best;
}

std::optional<ProductChoice> ProductTable::find(const ProductSize& size) const {
  const Shape* const shape = nearest(size);
  if (shape == nullptr || shape->measured.empty()) return std::nullopt;
  auto found = std::find_if(shape->measured.begin(), shape->measured.end(),
                            [&](const Measured& m) { return m.tokens >= size.tokens; });
  if (found == shape->measured.end()) {
    --found;
    if (found->tokens < kManyTokens) return std::nullopt;
  } else if (found->tokens >= 2 * size.tokens) {
    return std::nullopt;
  }
  ProductChoice choice = found->choice;
  const bool same = shape->size == without_tokens(size) && found->tokens == size.tokens;
  if (choice.path == ProductPath::kLibrary && !same) choice.variant = 0;
  return choice;
}

void ProductTable::forget_library_ranks() {
  for (Shape& shape : shapes_) {
    for (Measured& measured : shape.measured) {
      if (measured.choice.path == ProductPath::kLibrary) measured.choice.variant = 0;
    }
  }
}

}  // namespace braid::cuda
