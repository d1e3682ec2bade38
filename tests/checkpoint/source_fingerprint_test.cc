#include "checkpoint/source_fingerprint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "checkpoint/gguf_builder.h"
#include "checkpoint/safetensors_builder.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using testing::GgufBuilder;
using testing::SafetensorsBuilder;
using testing::TempFolder;
namespace fs = std::filesystem;

// A model file, written so that its time does not tell it from another.
class Source {
 public:
  uint64_t write(char fill, const std::string& architecture = "gemma4", int rows = 16) {
    GgufBuilder gguf;
    gguf.add("general.architecture", architecture);
    gguf.tensor("a.weight", {32, static_cast<uint64_t>(rows)}, 8,
                std::string(static_cast<size_t>(34 * rows), fill));
    path_ = folder_.write("model.gguf", gguf.build());
    fs::last_write_time(path_, time_);
    return now();
  }
  uint64_t now() const { return fingerprint(ModelFiles::open(path_)); }
  const fs::path& path() const { return path_; }

 private:
  TempFolder folder_;
  fs::path path_;
  fs::file_time_type time_ = fs::file_time_type::clock::now();
};

TEST(SourceFingerprint, TellsGgufFilesApart) {
  Source source;
  const uint64_t first = source.write('a');
  EXPECT_EQ(source.write('a'), first);
  EXPECT_NE(source.write('b'), first);            // other weights of the same size and time
  EXPECT_NE(source.write('a', "gemma3"), first);  // other metadata
  EXPECT_NE(source.write('a', "gemma4", 8), first);
  EXPECT_EQ(source.write('a'), first);
  fs::last_write_time(source.path(), fs::last_write_time(source.path()) + std::chrono::seconds(1));
  EXPECT_NE(source.now(), first);
}

TEST(SourceFingerprint, SameFilesElsewhereAreTheSame) {
  Source source;
  const uint64_t first = source.write('a');
  const TempFolder elsewhere;
  const fs::path copy = elsewhere.path() / "model.gguf";
  fs::copy_file(source.path(), copy);
  fs::last_write_time(copy, fs::last_write_time(source.path()));
  EXPECT_EQ(fingerprint(ModelFiles::open(copy)), first);
}

TEST(SourceFingerprint, FoldersCountWithTheirTexts) {
  const TempFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  folder.write("config.json", R"({"model_type": "x"})");
  folder.write("model.safetensors", SafetensorsBuilder().add_f32("a", {2, 3}, values).build());
  const auto now = [&] { return fingerprint(ModelFiles::open(folder.path())); };
  const uint64_t first = now();
  folder.write("chat_template.jinja", "template");
  const uint64_t second = now();
  EXPECT_NE(second, first);
  folder.write("chat_template.jinja", "TEMPLATE");
  EXPECT_NE(now(), second);
  folder.write("chat_template.jinja", "template");
  EXPECT_EQ(now(), second);
  folder.write("notes.txt", "not of the model");
  EXPECT_EQ(now(), second);
}

}  // namespace
}  // namespace braid
