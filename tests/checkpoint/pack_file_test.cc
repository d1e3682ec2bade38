#include "checkpoint/pack_file.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>

#include "checkpoint/checksum.h"
#include "checkpoint/expect_error.h"
#include "checkpoint/gguf_builder.h"
#include "checkpoint/model_files.h"
#include "checkpoint/pack_writer.h"
#include "checkpoint/safetensors_builder.h"
#include "checkpoint/source_fingerprint.h"
#include "quant/panels.h"
#include "support/fresh_seed.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using testing::expect_error;
using testing::GgufBuilder;
using testing::SafetensorsBuilder;
using testing::TempFolder;
namespace fs = std::filesystem;

std::string random_bytes(testing::FreshRandom& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random.integer(0, 255));
  return bytes;
}

// Matrices of several formats, a stack, a vector and tables that are looked up.
fs::path write_gguf(const TempFolder& folder, testing::FreshRandom& random) {
  GgufBuilder gguf;
  gguf.add("general.architecture", "gemma4").add("split.count", uint16_t{1});
  gguf.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
  gguf.tensor("q4_0.weight", {64, 20}, 2, random_bytes(random, 20 * 36));
  gguf.tensor("q8_0.weight", {32, 17, 3}, 8, random_bytes(random, 51 * 34));
  gguf.tensor("q6_k.weight", {256, 5}, 14, random_bytes(random, 5 * 210));
  gguf.tensor("bf16.weight", {7, 3}, 30, random_bytes(random, 42));
  gguf.tensor("vector", {32}, 8, random_bytes(random, 34));
  gguf.tensor("strange", {4}, 26, random_bytes(random, 16));  // integers
  gguf.tensor("token_embd.weight", {32, 20}, 2, random_bytes(random, 20 * 18));
  gguf.tensor("output.weight", {32, 20}, 2, random_bytes(random, 20 * 18));
  return folder.write("model.gguf", gguf.build());
}

PackResult pack(const fs::path& from, const fs::path& to) {
  ThreadPool pool({.num_threads = 2});
  return pack_model(from, ModelFiles::open(from), to, pool);
}

std::vector<float> expand(const Weight& weight) {
  const int64_t rows = weight.shape.num_elements() / weight.cols();
  std::vector<float> values(static_cast<size_t>(weight.shape.num_elements()));
  for (int64_t r = 0; r < rows; ++r) expand_row(weight, r, values.data() + r * weight.cols());
  return values;
}

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t num_entries(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(PackFile, GgufComesBackInPanels) {
  testing::FreshRandom random;
  const TempFolder folder;
  const fs::path source = write_gguf(folder, random), out = folder.path() / "packed";
  const PackResult result = pack(source, out);
  EXPECT_EQ(result.num_tensors, 8);
  EXPECT_EQ(result.num_panels, 4);
  EXPECT_EQ(result.bytes, static_cast<int64_t>(fs::file_size(out / kPackFileName)));
  EXPECT_EQ(num_entries(folder.path()), 2u);

  const ModelFiles before = ModelFiles::open(source), after = ModelFiles::open(out);
  EXPECT_TRUE(after.is_packed() && after.is_gguf() && !before.is_packed());
  EXPECT_EQ(after.origin(), out.string());
  EXPECT_EQ(after.model_type(), "gemma4");
  EXPECT_EQ(after.gguf().values, before.gguf().values);
  ASSERT_EQ(after.weights().size(), before.weights().size());
  for (const auto& [name, tensor] : before.weights().tensors()) {
    SCOPED_TRACE(name);
    const StoredTensor* packed = after.weights().find(name);
    ASSERT_NE(packed, nullptr);
    EXPECT_EQ(packed->weight.shape, tensor.weight.shape);
    if (tensor.weight.format == nullptr) {
      EXPECT_EQ(packed->weight.format, nullptr);
      continue;
    }
    const bool panels = name == "q4_0.weight" || name == "q8_0.weight" || name == "q6_k.weight" ||
                        name == "output.weight";
    EXPECT_EQ(packed->weight.format->panels(), panels);
    EXPECT_EQ(packed->dtype_name, packed->weight.format->name);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(packed->weight.data) % 64, 0u);
    const std::vector<float> expected = expand(tensor.weight), actual = expand(packed->weight);
    EXPECT_EQ(0, std::memcmp(expected.data(), actual.data(), 4 * expected.size()));
    WeightBinder binder(after.weights());
    const Tensor bound = binder.f32(name, tensor.weight.shape);
    EXPECT_EQ(0, std::memcmp(expected.data(), bound.data<float>(), 4 * expected.size()));
  }
  const PackFile file = PackFile::open(out / kPackFileName);
  EXPECT_EQ(file.source, "model.gguf");
  EXPECT_EQ(file.fingerprint, fingerprint(before));
  file.verify();
}

TEST(PackFile, FoldersKeepTheirFiles) {
  const TempFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  folder.write("config.json", R"({"model_type": "x"})");
  folder.write("tokenizer.json", "tokens");
  folder.write("chat_template.jinja", "template");
  folder.write("notes.txt", "not of the model");
  const int64_t ids[2] = {5, 6};
  folder.write("model.safetensors",
               SafetensorsBuilder()
                   .add_f32("a", {2, 3}, values)
                   .add("ids", "I64", {2}, {reinterpret_cast<const char*>(ids), sizeof(ids)})
                   .build());
  const TempFolder target;
  const fs::path out = target.path() / "out/";
  EXPECT_EQ(pack(folder.path(), out).num_panels, 0);
  const ModelFiles files = ModelFiles::open(out);
  EXPECT_TRUE(files.is_packed() && !files.is_gguf());
  EXPECT_EQ(files.model_type(), "x");
  EXPECT_EQ(files.tokenizer_json(), "tokens");
  EXPECT_EQ(files.chat_template(), "template");
  EXPECT_EQ(num_entries(out), 4u);
  EXPECT_EQ(expand(files.weights().find("a")->weight), values);
  WeightBinder binder(files.weights());
  EXPECT_EQ(binder.integers("ids", {2}), (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(ModelFiles::open(out, false).weights().size(), 0u);
}

// For other devices than the CPU: only what is made of parts is made.
TEST(PackFile, RowsHoldWhatPartsMake) {
  for (const char* name : {"gemma3_w4a16", "qwen3_next_w8a8"}) {
    SCOPED_TRACE(name);
    const fs::path source = fs::path(BRAID_TEST_DATA) / "models" / name;
    const TempFolder folder;
    const fs::path out = folder.path() / "out";
    ThreadPool pool({.num_threads = 2});
    const ModelFiles before = ModelFiles::open(source);
    const PackSize size = packed_size(before);
    EXPECT_GT(size.num_made, 0);
    EXPECT_EQ(pack_model(source, before, out, pool, {.layout = PackLayout::kRows}).num_panels, 0);
    const ModelFiles after = ModelFiles::open(out);
    EXPECT_TRUE(after.is_packed());
    EXPECT_EQ(packed_size(after).num_made, 0);
    EXPECT_EQ(after.weights().size(), before.weights().size());
    for (const auto& [tensor_name, tensor] : before.weights().tensors()) {
      const StoredTensor* packed = after.weights().find(tensor_name);
      ASSERT_NE(packed, nullptr);
      const Weight expected = tensor.payload();
      EXPECT_FALSE(packed->convert);
      ASSERT_EQ(packed->weight.format, expected.format) << tensor_name;
      ASSERT_EQ(packed->weight.shape, expected.shape) << tensor_name;
      if (expected.format == nullptr) continue;
      EXPECT_EQ(std::memcmp(packed->weight.data, expected.data,
                            static_cast<size_t>(expected.size_bytes())),
                0)
          << tensor_name;
    }
  }
}

TEST(PackFile, NothingIsOverwritten) {
  testing::FreshRandom random;
  const TempFolder folder;
  const fs::path source = write_gguf(folder, random);
  folder.write("file", "");
  fs::create_directory(folder.path() / "empty");
  fs::create_directory(folder.path() / "full");
  folder.write("full/x", "");
  expect_error([&] { pack(source, folder.path() / "file"); }, {"file", "already exists"});
  expect_error([&] { pack(source, folder.path() / "full"); }, {"full", "already exists"});
  pack(source, folder.path() / "empty");
  expect_error([&] { pack(folder.path() / "empty", folder.path() / "again"); },
               {"empty", "packed already"});
  expect_error([&] { pack(source, folder.path() / "file" / "x"); }, {"cannot create"});
  EXPECT_EQ(num_entries(folder.path()), 4u);
}

TEST(PackFile, WhatFailsLeavesNothing) {
  testing::FreshRandom random;
  const TempFolder folder;
  const fs::path source = write_gguf(folder, random);
  ThreadPool pool({.num_threads = 1});
  EXPECT_THROW(pack_model(source, ModelFiles::open(source), folder.path() / "out", pool,
                          {.progress =
                               [&](int64_t done, int64_t total) {
                                 EXPECT_GT(done, 0);
                                 EXPECT_LT(done, total);
                                 throw Error("stop");
                               }}),
               Error);
  EXPECT_EQ(num_entries(folder.path()), 1u);
}

TEST(PackFile, OneOfManyAtOnceSucceeds) {
  testing::FreshRandom random;
  const TempFolder folder;
  const fs::path source = write_gguf(folder, random), out = folder.path() / "packed";
  std::atomic<int> done = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      try {
        pack(source, out);
        ++done;
      } catch (const Error&) {
        ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 1);
  EXPECT_EQ(refused, 5);
  EXPECT_EQ(num_entries(folder.path()), 2u);
  PackFile::open(out / kPackFileName).verify();
}

// The bytes of a pack, and how to damage them.
class PackBytes {
 public:
  PackBytes() {
    const TempFolder folder;
    const fs::path source = write_gguf(folder, random_);
    pack(source, folder.path() / "packed");
    bytes_ = read_all(folder.path() / "packed" / kPackFileName);
    // Fixed part, source name, fingerprint, number.
    first_entry_ = 40 + 8 + std::string("model.gguf").size() + 8 + 8;
  }
  std::string& bytes() { return bytes_; }
  testing::FreshRandom& random() { return random_; }
  size_t first_entry() const { return first_entry_; }
  template <typename T>
  T get(size_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }
  template <typename T>
  void set(size_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  // Where the field after the string at `at` begins.
  size_t after_string(size_t at) const { return at + 8 + get<uint64_t>(at); }
  // Places of the first tensor's format, dimensions and offset.
  size_t format_at() const { return after_string(after_string(first_entry_)); }
  size_t rank_at() const { return after_string(format_at()); }
  size_t offset_at() const { return rank_at() + 4 + 8 * get<uint32_t>(rank_at()); }
  // Makes sizes and checksum true again.
  void seal() {
    set(24, static_cast<uint64_t>(bytes_.size()));
    Checksum checksum;
    checksum.add(std::as_bytes(std::span(bytes_)).subspan(40, get<uint64_t>(16) - 40));
    set(32, checksum.value());
  }
  PackFile parse() const {
    return PackFile::parse(std::as_bytes(std::span(bytes_)), nullptr, "pack");
  }

 private:
  testing::FreshRandom random_;
  std::string bytes_;
  size_t first_entry_;
};

TEST(PackFile, DamageIsFound) {
  PackBytes pack;
  const std::string good = pack.bytes();
  pack.parse().verify();
  const auto header = pack.get<uint64_t>(16);
  for (size_t size = 0; size < good.size(); size += pack.random().integer(1, 50)) {
    pack.bytes() = good.substr(0, size);
    expect_error([&] { pack.parse(); }, {"pack: "});
  }
  pack.bytes() = good + "x";
  expect_error([&] { pack.parse(); }, {"cut short"});
  // Any bit of the header; of the data when asked to look.
  for (int i = 0; i < 300; ++i) {
    pack.bytes() = good;
    pack.bytes()[pack.random().integer(0, header - 1)] ^= 1 << pack.random().integer(0, 7);
    expect_error([&] { pack.parse(); }, {"pack: "});
  }
  pack.bytes() = good;
  pack.bytes().back() ^= 1;  // the end of the last tensor, "vector"
  const PackFile parsed = pack.parse();
  expect_error([&] { parsed.verify(); }, {"vector", "damaged", "pack the model again"});
}

TEST(PackFile, OtherVersionsAreRefused) {
  for (const size_t at : {size_t{8}, size_t{12}}) {
    PackBytes pack;
    pack.set(at, pack.get<uint32_t>(at) + 1);
    pack.seal();
    expect_error([&] { pack.parse(); }, {"pack: packed for layout", "pack the model again"});
  }
}

TEST(PackFile, HeadersThatLieAreRefused) {
  const auto refuse = [](const std::function<void(PackBytes&)>& change,
                         std::initializer_list<std::string_view> parts) {
    PackBytes pack;
    change(pack);
    pack.seal();
    expect_error([&] { pack.parse(); }, parts);
  };
  refuse([](PackBytes& p) { p.set<uint64_t>(p.offset_at(), 1 << 20); }, {"bf16.weight", "within"});
  refuse([](PackBytes& p) { p.set<uint64_t>(p.offset_at(), ~uint64_t{63}); }, {"within"});
  refuse([](PackBytes& p) { p.set<uint64_t>(p.offset_at(), 0); }, {"within"});
  refuse([](PackBytes& p) { p.set(p.offset_at(), p.get<uint64_t>(p.offset_at()) + 8); },
         {"within"});
  refuse([](PackBytes& p) { p.set(p.offset_at(), p.get<uint64_t>(p.offset_at()) + 64); },
         {"overlaps"});
  refuse([](PackBytes& p) { p.set<uint64_t>(p.offset_at() + 8, ~uint64_t{0}); }, {"within"});
  refuse([](PackBytes& p) { p.set<uint64_t>(p.offset_at() + 8, 41); }, {"41 bytes", "has 42"});
  refuse([](PackBytes& p) { p.set<uint64_t>(p.rank_at() + 4, 4); }, {"42 bytes", "has 56"});
  refuse([](PackBytes& p) { p.set<uint64_t>(p.rank_at() + 4, uint64_t{1} << 62); },
         {"impossibly large"});
  refuse([](PackBytes& p) { p.set<uint64_t>(p.rank_at() + 4, 0); }, {"shape [0, 7]"});
  refuse([](PackBytes& p) { p.set<uint32_t>(p.rank_at(), 5); }, {"5 dimensions"});
  refuse([](PackBytes& p) { p.set<uint32_t>(p.rank_at(), 0); }, {"0 dimensions"});
  refuse([](PackBytes& p) { p.bytes()[p.format_at() + 8] = 'x'; }, {"unknown format 'xf16'"});
  refuse([](PackBytes& p) { p.set<uint64_t>(p.first_entry() - 8, uint64_t{1} << 40); },
         {"number of tensors"});
  refuse([](PackBytes& p) { p.set<uint64_t>(40, uint64_t{1} << 40); }, {"source"});
}

}  // namespace
}  // namespace braid
