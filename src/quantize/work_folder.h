#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "quant/weight.h"
#include "quantize/kv_scales.h"
#include "quantize/matrix_result.h"

namespace braid {

// The folder beside the one to be written ("OUT.quantizing") that keeps finished parts of the work
// (layers, in order; the rest as one more) for a program that goes on after an interruption. One
// program at a time has it.
class WorkFolder {
 public:
  // `key` tells work that can be gone on with from other work, which is thrown away. Throws Error
  // if `out` exists or another program is at work on it.
  WorkFolder(const std::filesystem::path& out, uint64_t key);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  // Rows in the tensor's format, all matrices of a stack one after the other.
  struct Part {
    std::map<std::string, Weight, std::less<>> weights;  // by canonical name
    std::vector<MatrixResult> results;
  };
  bool has_part(int64_t index) const;
  void save_part(int64_t index, const Part& part);
  // Mapped.
  Part load_part(int64_t index) const;

  // Scales of a layer's keys and values.
  bool has_kv(int64_t layer) const;
  void save_kv(const KvLayerResult& result);
  KvLayerResult load_kv(int64_t layer) const;

  // Where the files to be published are written; empty when asked for.
  std::filesystem::path start_output();
  // Waits until the files in it would outlive a loss of power; publishing does so, too.
  void settle_output() const;
  // Gives that folder the final name and removes the rest.
  void publish();
  // Of a file as the output: gives files of that folder, by their names there, the names beside OUT
  // that go with them, in this order, and removes the rest.
  void publish_files(const std::vector<std::pair<std::string, std::filesystem::path>>& files);

 private:
  std::filesystem::path part_path(int64_t index, const char* extension) const;
  std::filesystem::path kv_path(int64_t layer) const;
  [[noreturn]] void fail_damaged(const std::filesystem::path& path) const;

  std::filesystem::path out_, path_;
  int lock_fd_ = -1;
};

}  // namespace braid
