#include "ops/linear/cuda/product_table.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "ops/linear/cuda/product_choice.h"
#include "ops/op_test.h"
#include "support/temp_folder.h"

namespace braid::cuda {
namespace {

using enum ProductPath;

constexpr char kText[] = R"(braid product table 1
# of a test
device NVIDIA H200
multiprocessors 132
cublaslt 130001

# kind  weights layout inputs experts rows cols
matrix bf16 rows bf16 0 8192 2816  1 stream 2 stream/4  4 few-tokens 64 library/3 2048 library/2
matrix w4g128 tiles bf16 0 8192 3840  16 few-tokens 32 tiles
experts bf16 rows bf16 128 1408 2816  1024 stream 16384 tiles
gated-experts w8c tiles int8 512 512 2048  20480 tiles/128
)";

ProductSize matrix(int64_t rows, int64_t cols, int64_t tokens) {
  return {.format = FormatId::kBF16, .rows = rows, .cols = cols, .tokens = tokens};
}
std::optional<ProductChoice> choice(ProductPath path, int variant = 0) {
  return ProductChoice{path, variant};
}

TEST(ProductTable, IsWrittenAsItIsRead) {
  const ProductTable table = ProductTable::parse(kText, "table.txt");
  EXPECT_EQ(table.device(), "NVIDIA H200");
  EXPECT_EQ(table.multiprocessors(), 132);
  EXPECT_EQ(table.library_version(), 130001);
  EXPECT_EQ(table.num_shapes(), 4u);
  const std::string text = table.to_text();
  EXPECT_EQ(ProductTable::parse(text, "again").to_text(), text);
  for (const char* line :
       {"\ndevice NVIDIA H200\n", "\nmultiprocessors 132\n", "\ncublaslt 130001\n",
        "matrix bf16 rows bf16 0 8192 2816  1 stream 2 stream/4 4 few-tokens 64 library/3 2048 "
        "library/2\n",
        "\nmatrix w4g128 tiles bf16 0 8192 3840  16 few-tokens 32 tiles\n",
        "\ngated-experts w8c tiles int8 512 512 2048  20480 tiles/128\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "is not in\n" << text;
  }
}

TEST(ProductTable, TakesWindowsLineEnds) {
  std::string text;
  for (const char c : std::string_view(kText))
    text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(ProductTable::parse(text, "a").to_text(), ProductTable::parse(kText, "b").to_text());
}

TEST(ProductTable, AddedInAnyOrderItIsSorted) {
  ProductTable table("GPU", 8, 0);
  table.add(matrix(64, 32, 8), {kStream});
  table.add(matrix(64, 32, 1), {kFewRows});
  table.add(matrix(64, 32, 4), {kFewTokens});
  table.add(matrix(64, 32, 8), {kLibrary, 1});
  EXPECT_NE(table.to_text().find("0 64 32  1 few-rows 4 few-tokens 8 library/1\n"),
            std::string::npos)
      << table.to_text();
}

TEST(ProductTable, TokensGoUpToTheNextMeasuredNumber) {
  const ProductTable table = ProductTable::parse(kText, "table.txt");
  const auto find = [&](int64_t tokens) { return table.find(matrix(8192, 2816, tokens)); };
  EXPECT_EQ(find(1), choice(kStream));
  EXPECT_EQ(find(2), choice(kStream, 4));
  EXPECT_EQ(find(3), choice(kFewTokens));
  EXPECT_EQ(find(4), choice(kFewTokens));
  // 64 is more than twice as many, or twice.
  for (const int64_t tokens : {5, 17, 32}) EXPECT_EQ(find(tokens), std::nullopt) << tokens;
  EXPECT_EQ(find(33), choice(kLibrary));
  EXPECT_EQ(find(64), choice(kLibrary, 3));
  EXPECT_EQ(find(1024), std::nullopt);
  EXPECT_EQ(find(1025), choice(kLibrary));
  EXPECT_EQ(find(2048), choice(kLibrary, 2));
  // Beyond what was measured, if that is many.
  EXPECT_EQ(find(2049), choice(kLibrary));
  EXPECT_EQ(find(100000), choice(kLibrary));
  ProductSize tiles = matrix(8192, 3840, 32);
  tiles.format = FormatId::kW4G128;
  tiles.tiles = true;
  EXPECT_EQ(table.find(tiles), choice(kTiles));
  tiles.tokens = 33;
  EXPECT_EQ(table.find(tiles), std::nullopt);
}

TEST(ProductTable, NearShapesCount) {
  ProductTable table("GPU", 8, 0);
  table.add(matrix(1000, 1000, 8), {kStream});
  table.add(matrix(1200, 1000, 8), {kFewTokens});
  table.add(matrix(1000, 1440, 8), {kLibrary, 2});
  EXPECT_EQ(table.find(matrix(1000, 1000, 8)), choice(kStream));
  EXPECT_EQ(table.find(matrix(1190, 1000, 8)), choice(kFewTokens));
  EXPECT_EQ(table.find(matrix(1000, 1400, 8)), choice(kLibrary)) << "a rank is of one size";
  EXPECT_EQ(table.find(matrix(1000, 1440, 7)), choice(kLibrary)) << "a rank is of one size";
  EXPECT_EQ(table.find(matrix(1000, 1440, 8)), choice(kLibrary, 2));
  // As far from the first as from the third: the first.
  EXPECT_EQ(table.find(matrix(1000, 1200, 8)), choice(kStream));
  // 1.5 times as many in all are near, more are not.
  EXPECT_EQ(table.find(matrix(800, 832, 8)), std::nullopt);
  EXPECT_EQ(table.find(matrix(800, 834, 8)), choice(kStream));
  EXPECT_EQ(table.find(matrix(1800, 1000, 8)), choice(kFewTokens));
  EXPECT_EQ(table.find(matrix(1801, 1000, 8)), std::nullopt);
}

TEST(ProductTable, OtherKindsDoNotCount) {
  ProductTable table("GPU", 8, 0);
  const ProductSize size{.kind = ProductKind::kExperts,
                         .format = FormatId::kW8C,
                         .tiles = true,
                         .codes = true,
                         .experts = 64,
                         .rows = 512,
                         .cols = 256,
                         .tokens = 128};
  table.add(size, {kTiles, 64});
  EXPECT_EQ(table.find(size), choice(kTiles, 64));
  ProductSize other = size;
  other.experts = 96;
  EXPECT_EQ(table.find(other), choice(kTiles, 64));
  other.experts = 97;
  EXPECT_EQ(table.find(other), std::nullopt);
  other = size;
  other.kind = ProductKind::kGatedExperts;
  EXPECT_EQ(table.find(other), std::nullopt);
  other = size;
  other.codes = false;
  EXPECT_EQ(table.find(other), std::nullopt);
  other = size;
  other.tiles = false;
  EXPECT_EQ(table.find(other), std::nullopt);
  other = size;
  other.format = FormatId::kQ8_0;
  EXPECT_EQ(table.find(other), std::nullopt);
}

TEST(ProductTable, RanksCanBeForgotten) {
  ProductTable table = ProductTable::parse(kText, "table.txt");
  table.forget_library_ranks();
  EXPECT_EQ(table.find(matrix(8192, 2816, 64)), choice(kLibrary));
  EXPECT_EQ(table.find(matrix(8192, 2816, 2)), choice(kStream, 4));
}

std::string error_of(const std::string& text) {
  try {
    ProductTable::parse(text, "bad.txt");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ProductTable, BadFilesAreRefused) {
  const std::string head = "braid product table 1\ndevice GPU\nmultiprocessors 8\n";
  struct Case {
    std::string text, line, what;
  };
  const Case cases[] = {
      {"", "line 0", "no title"},
      {"braid product table 2\n", "line 1", "no 'braid product table 1'"},
      {"\n{\"device\": 1}\n", "line 2", "no 'braid product table 1'"},
      {"braid product table 1\ndevice GPU\n", "line 2", "multiprocessors"},
      {"braid product table 1\nmultiprocessors 8\n", "line 2", "device"},
      {"braid product table 1\ndevice\n", "line 2", "the device's name is missing"},
      {"braid product table 1\nmultiprocessors 0\n", "line 2", "multiprocessors '0'"},
      {"braid product table 1\nmultiprocessors 8 9\n", "line 2", "one number"},
      {head + "cublaslt new\n", "line 4", "version 'new'"},
      {head + "vector bf16 rows bf16 0 8 8 1 exact\n", "line 4", "the kind 'vector' is unknown"},
      {head + "matrix bf17 rows bf16 0 8 8 1 exact\n", "line 4", "format 'bf17' is unknown"},
      {head + "matrix bf16 cols bf16 0 8 8 1 exact\n", "line 4", "layout 'cols' is unknown"},
      {head + "matrix bf16 rows fp8 0 8 8 1 exact\n", "line 4", "inputs 'fp8' is unknown"},
      {head + "matrix bf16 rows bf16 4 8 8 1 exact\n", "line 4", "4 experts of 'matrix'"},
      {head + "experts bf16 rows bf16 0 8 8 1 exact\n", "line 4", "0 experts of 'experts'"},
      {head + "matrix bf16 rows bf16 0 -8 8 1 exact\n", "line 4", "rows '-8'"},
      {head + "matrix bf16 rows bf16 0 8 8.5 1 exact\n", "line 4", "columns '8.5'"},
      {head + "matrix bf16 rows bf16 0 8 99999999999999999999 1 exact\n", "line 4", "columns"},
      {head + "matrix bf16 rows bf16 0 8\n", "line 4", "the number of columns is missing"},
      {head + "matrix bf16 rows bf16 0 8 8\n", "line 4", "the number of tokens is missing"},
      {head + "matrix bf16 rows bf16 0 8 8 1\n", "line 4", "a choice is missing"},
      {head + "matrix bf16 rows bf16 0 8 8 0 exact\n", "line 4", "tokens '0'"},
      {head + "matrix bf16 rows bf16 0 8 8 2 exact 2 stream\n", "line 4", "2 tokens after 2"},
      {head + "matrix bf16 rows bf16 0 8 8 2 exact 1 stream\n", "line 4", "1 tokens after 2"},
      {head + "matrix bf16 rows bf16 0 8 8 1 magic\n", "line 4", "the path 'magic' is unknown"},
      {head + "matrix bf16 rows bf16 0 8 8 1 stream/3\n", "line 4", "no 'stream/3' for 'matrix'"},
      {head + "matrix bf16 rows bf16 0 8 8 1 stream/\n", "line 4", "variant ''"},
      {head + "matrix bf16 rows bf16 0 8 8 1 library/8\n", "line 4", "'library/8'"},
      {head + "matrix bf16 rows bf16 0 8 8 1 wide\n", "line 4", "no 'wide' for 'matrix'"},
      {head + "matrix bf16 rows bf16 0 8 8 1 parts\n", "line 4", "no 'parts'"},
      {head + "experts bf16 rows bf16 4 8 8 1 library\n", "line 4", "no 'library'"},
      {head + "gated bf16 rows bf16 0 8 8 1 exact\n", "line 4", "no 'exact'"},
      {head + "matrix w8c tiles int8 0 8 8 1 tiles/32\n", "line 4", "no 'tiles/32'"},
      {head + "experts w8c tiles int8 4 8 8 1 tiles/256\n", "line 4", "no 'tiles/256'"},
      {head + "matrix bf16 rows bf16 0 8 8 1 exact\n\nmatrix bf16 rows bf16 0 8 8 2 exact\n",
       "line 6", "had a line before"},
  };
  for (const Case& bad : cases) {
    const std::string error = error_of(bad.text);
    EXPECT_EQ(error.rfind("bad.txt: " + bad.line, 0), 0u) << error << "\n for " << bad.text;
    EXPECT_NE(error.find(bad.what), std::string::npos) << error << "\n for " << bad.text;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(ProductTable, AnyBytesAreReadOrRefused) {
  Random random;
  SCOPED_TRACE(random.seed());
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = kText;
    for (int64_t n = random.integer(1, 4); n > 0; --n) {
      const auto at = static_cast<size_t>(random.integer(0, std::ssize(text) - 1));
      if (random.integer(0, 1) == 0) {
        text[at] = static_cast<char>(random.integer(0, 255));
      } else {
        text.erase(at, static_cast<size_t>(random.integer(1, 30)));
      }
    }
    try {
      const std::string written = ProductTable::parse(text, "bytes").to_text();
      EXPECT_EQ(ProductTable::parse(written, "again").to_text(), written);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 3000);
}

TEST(ProductTable, FilesThatCannotBeReadAreNamed) {
  try {
    ProductTable::read("/no/such/table.txt");
    FAIL() << "read";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "/no/such/table.txt: the product table cannot be read");
  }
}

TEST(ProductTable, ThoseOfThisProgramAreGood) {
  for (const std::string_view text : built_in_product_tables()) {
    const ProductTable table = ProductTable::parse(text, "built in");
    EXPECT_GT(table.num_shapes(), 0u) << table.device();
  }
}

TEST(ProductTable, IsThatOfTheFileOrTheDevice) {
  const std::string other = "braid product table 1\ndevice NVIDIA H200\nmultiprocessors 100\n";
  const std::string_view built_in[] = {other, kText};
  const ProductDevice h200{"NVIDIA H200", 132, 130001};
  const ProductSize size = matrix(8192, 2816, 2048);

  const auto known = find_product_table(h200, nullptr, built_in);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->find(size), choice(kLibrary, 2));
  EXPECT_EQ(find_product_table(h200, "", built_in)->num_shapes(), 4u);
  const auto newer = find_product_table({"NVIDIA H200", 132, 130002}, nullptr, built_in);
  EXPECT_EQ(newer->find(size), choice(kLibrary)) << "ranks are of another version";

  EXPECT_FALSE(find_product_table({"NVIDIA H200", 131, 130001}, nullptr, built_in));
  EXPECT_FALSE(find_product_table({"NVIDIA H100", 132, 130001}, nullptr, built_in));
  EXPECT_FALSE(find_product_table(h200, nullptr, {}));

  const testing::TempFolder folder;
  const std::string path = folder.path() / "table.txt";
  std::ofstream(path) << other << "matrix bf16 rows bf16 0 8192 2816 2048 exact\n";
  EXPECT_EQ(find_product_table(h200, path.c_str(), built_in)->find(size), choice(kExact));
  EXPECT_TRUE(find_product_table({"other", 1, 0}, path.c_str(), {}));
  std::ofstream(path) << "nothing\n";
  EXPECT_THROW(find_product_table(h200, path.c_str(), built_in), Error);
}

// Constants, as they were found before there were tables.
TEST(ProductChoice, WithoutATableConstantsDecide) {
  const PathSet all{kFewRows, kStream, kFewTokens, kTiles, kWide, kLibrary, kExact, kParts};
  const PathSet hopper{kStream, kFewTokens, kTiles, kLibrary, kExact};  // of a large matrix
  const PathSet ampere{kFewTokens, kTiles, kLibrary, kExact};
  const PathSet float32{kLibrary, kExact};
  struct Case {
    ProductSize size;
    PathSet possible;
    ProductPath expected;
  };
  const auto sized = [](ProductKind kind, FormatId format, bool tiles, int64_t experts,
                        int64_t tokens, bool codes = false) {
    return ProductSize{kind, format, tiles, codes, experts, 512, 512, tokens};
  };
  const auto one = ProductKind::kMatrix, many = ProductKind::kExperts, gated = ProductKind::kGated,
             mixture = ProductKind::kGatedExperts;
  const auto bf16 = FormatId::kBF16, w4 = FormatId::kW4G128, w8c = FormatId::kW8C;
  ProductSize wide_coded = sized(gated, w8c, true, 0, 1, true);
  wide_coded.rows = 2049;
  const Case cases[] = {
      {sized(one, bf16, false, 0, 64), all, kFewRows},
      {sized(one, bf16, false, 0, 1), hopper, kStream},
      {sized(one, bf16, false, 0, 32), hopper, kStream},
      {sized(one, bf16, false, 0, 33), hopper, kLibrary},
      {sized(one, bf16, false, 0, 8), ampere, kFewTokens},
      {sized(one, bf16, false, 0, 9), ampere, kLibrary},
      {sized(one, w4, true, 0, 64), hopper, kStream},
      {sized(one, w4, true, 0, 65), hopper, kLibrary},
      {sized(one, w4, true, 0, 64), ampere, kFewTokens},
      {sized(one, FormatId::kQ4_0, false, 0, 32), ampere, kFewTokens},
      {sized(one, FormatId::kQ4_0, false, 0, 33), ampere, kLibrary},
      {sized(one, FormatId::kF32, false, 0, 64), float32, kExact},
      {sized(one, FormatId::kF32, false, 0, 65), float32, kLibrary},
      {sized(one, FormatId::kF32, false, 0, 65), {}, kExact},
      {sized(one, w8c, true, 0, 64, true), {kStream, kTiles}, kStream},
      {sized(one, w8c, true, 0, 65, true), {kTiles}, kTiles},
      {sized(many, bf16, false, 16, 128), hopper, kStream},
      {sized(many, bf16, false, 16, 129), hopper, kTiles},
      {sized(many, bf16, false, 16, 128), ampere, kFewTokens},
      {sized(many, bf16, false, 16, 129), ampere, kTiles},
      {sized(many, FormatId::kF32, false, 16, 9999), {kExact}, kExact},
      {sized(many, w8c, true, 16, 1, true), {kTiles}, kTiles},
      {sized(gated, bf16, false, 0, 32), {kStream, kParts}, kStream},
      {sized(gated, bf16, false, 0, 33), {kStream, kParts}, kParts},
      {sized(gated, bf16, false, 0, 1), {kParts}, kParts},
      {sized(gated, w8c, true, 0, 999, true), {kTiles, kParts}, kTiles},
      {wide_coded, {kTiles, kParts}, kParts},
      {wide_coded, {kTiles}, kTiles},
      {sized(mixture, bf16, false, 16, 128), {kStream, kWide, kParts}, kStream},
      {sized(mixture, bf16, false, 16, 129), {kStream, kWide, kParts}, kWide},
      {sized(mixture, w4, true, 16, 129), {kStream, kParts}, kParts},
      {sized(mixture, w8c, true, 16, 129, true), {kTiles, kParts}, kTiles},
  };
  for (const Case& c : cases) {
    const size_t index = static_cast<size_t>(&c - cases);
    EXPECT_EQ(to_string(usual_choice(c.size, c.possible)), to_string({c.expected})) << index;
    EXPECT_EQ(choose(nullptr, c.size, c.possible), (ProductChoice{c.expected})) << index;
    const ProductTable far("GPU", 8, 0);
    EXPECT_EQ(choose(&far, c.size, c.possible), (ProductChoice{c.expected})) << index;
  }
}

TEST(ProductChoice, ATableDecidesWhereItCan) {
  ProductTable table("GPU", 8, 0);
  const ProductSize size = matrix(512, 512, 8);
  table.add(size, {kLibrary, 3});
  EXPECT_EQ(choose(&table, size, {kStream, kLibrary}), (ProductChoice{kLibrary, 3}));
  EXPECT_EQ(choose(&table, size, {kStream}), (ProductChoice{kStream})) << "not possible";
}

TEST(ProductChoice, TheFixedOneIsOfTheMatrix) {
  EXPECT_EQ(fixed_choice({kFewRows, kStream, kFewTokens, kLibrary, kExact}),
            (ProductChoice{kFewRows}));
  EXPECT_EQ(fixed_choice({kStream, kFewTokens, kLibrary, kExact}), (ProductChoice{kStream}));
  EXPECT_EQ(fixed_choice({kFewTokens, kLibrary, kExact}), (ProductChoice{kExact}));
}

}  // namespace
}  // namespace braid::cuda
