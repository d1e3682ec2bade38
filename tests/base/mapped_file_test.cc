#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& content) {
    return temp_folder_.write(name, content);
  }
  static std::string message_of(const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  testing::TempFolder temp_folder_;
  fs::path folder_ = temp_folder_.path();
};

TEST_F(MappedFileTest, ShowsTheBytes) {
  const std::string content("a\0b\xff", 4);
  const fs::path path = write("file", content);
  const auto file = MappedFile::open(path);
  EXPECT_EQ(file->path(), path);
  ASSERT_EQ(file->bytes().size(), 4u);
  EXPECT_EQ(std::memcmp(file->bytes().data(), content.data(), 4), 0);
  EXPECT_EQ(read_file(path), content);
}

TEST_F(MappedFileTest, OutlivesTheDirectoryEntry) {
  const fs::path path = write("file", std::string(100000, 'x'));
  const auto file = MappedFile::open(path);
  fs::remove(path);
  EXPECT_EQ(file->bytes().back(), std::byte{'x'});
}

TEST_F(MappedFileTest, EmptyFile) {
  const fs::path path = write("empty", "");
  EXPECT_EQ(MappedFile::open(path)->bytes().size(), 0u);
  EXPECT_EQ(read_file(path), "");
}

TEST_F(MappedFileTest, NamesThePathInErrors) {
  const fs::path missing = folder_ / "missing";
  for (const std::string& message :
       {message_of([&] { MappedFile::open(missing); }), message_of([&] { read_file(missing); })}) {
    EXPECT_THAT(message, HasSubstr(missing.string()));
    EXPECT_THAT(message, HasSubstr("No such file"));
  }
  for (const std::string& message :
       {message_of([&] { MappedFile::open(folder_); }), message_of([&] { read_file(folder_); })}) {
    EXPECT_THAT(message, HasSubstr(folder_.string() + ": not a regular file"));
  }
}

TEST_F(MappedFileTest, DoesNotWaitForANamedPipe) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { MappedFile::open(pipe); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of([&] { read_file(pipe); }), HasSubstr("not a regular file"));
}

TEST_F(MappedFileTest, RefusesLargeFiles) {
  const fs::path path = write("file", "12345");
  EXPECT_EQ(read_file(path, 5), "12345");
  EXPECT_THAT(message_of([&] { read_file(path, 4); }), HasSubstr("5 bytes, more than the 4"));
}

}  // namespace
}  // namespace braid
