#include "quantize/work_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "quantize/text_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kMark = ".quantizing";
constexpr const char* kKeyName = "key";
constexpr const char* kOutputName = "output";
constexpr int kVersion = 1;  // of the parts' layout

json to_json(const RoundingError& error) { return {error.error, error.output}; }

json to_json(const MatrixResult& result) {
  json object = {{"name", result.name},
                 {"format", result.format},
                 {"method", result.method},
                 {"num_inputs", result.num_inputs},
                 {"weight_error", result.weight_error},
                 {"weight_square", result.weight_square},
                 {"damping", result.damping},
                 {"dead", result.num_dead_columns}};
  if (result.nearest) object["nearest"] = to_json(*result.nearest);
  if (result.stored) object["stored"] = to_json(*result.stored);
  for (const MatrixResult::Starved& one : result.starved) {
    object["starved"].push_back({one.expert, one.num_inputs});
  }
  return object;
}

RoundingError error_from(const json& pair) { return {pair.at(0), pair.at(1)}; }

MatrixResult result_from(const json& object) {
  MatrixResult result;
  result.name = object.at("name");
  result.format = object.at("format");
  result.method = object.at("method");
  result.num_inputs = object.at("num_inputs");
  result.weight_error = object.at("weight_error");
  result.weight_square = object.at("weight_square");
  result.damping = object.at("damping");
  result.num_dead_columns = object.at("dead");
  if (object.contains("nearest")) result.nearest = error_from(object["nearest"]);
  if (object.contains("stored")) result.stored = error_from(object["stored"]);
  for (const json& pair : object.value("starved", json::array())) {
    result.starved.push_back({pair.at(0), pair.at(1)});
  }
  return result;
}

json to_json(const ScaleFit& fit) {
  return {{"scale", fit.scale},         {"largest", fit.largest}, {"count", fit.count},
          {"saturated", fit.saturated}, {"error", fit.error},     {"square", fit.square}};
}

ScaleFit scale_fit_from(const json& object) {
  return {.scale = object.at("scale"),
          .largest = object.at("largest"),
          .count = object.at("count"),
          .saturated = object.at("saturated"),
          .error = object.at("error"),
          .square = object.at("square")};
}

// What is in a file, or which names a folder holds, outlives a loss of power from here on.
void make_durable(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool done = fd >= 0 && ::fsync(fd) == 0;
  const int reason = errno;
  if (fd >= 0) ::close(fd);
  // Some file systems have nothing to do for folders, and say so.
  if (!done && reason != EINVAL) {
    throw Error("{}: cannot write: {}", path.string(), std::strerror(reason));
  }
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void refuse_existing(const fs::path& out) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(out, error);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status) && fs::is_empty(out, error) && !error) return;
  throw Error("{}: already exists; name another place or remove it", out.string());
}

}  // namespace

WorkFolder::WorkFolder(const fs::path& out, uint64_t key) : out_(out) {
  if (out_.filename().empty()) out_ = out_.parent_path();
  refuse_existing(out_);
  path_ = out_;
  path_ += kMark;
  std::error_code error;
  fs::create_directory(path_, error);
  if (error) throw Error("{}: cannot create the folder: {}", path_.string(), error.message());
  lock_fd_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_fd_ < 0) throw Error("{}: cannot open: {}", path_.string(), std::strerror(errno));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(lock_fd_);
    throw Error("{}: another program is at work on it", path_.string());
  }
  try {
    const std::string wanted = fmt::format("braid quantize {} {:016x}\n", kVersion, key);
    const fs::path key_path = path_ / kKeyName;
    if (!fs::exists(key_path, error) || read_file(key_path, 4096) != wanted) {
      for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
        fs::remove_all(entry.path());
      }
      write_text_file(key_path, wanted);
    }
    // What an interrupted program was writing.
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
      if (entry.path().extension() == ".partial") fs::remove(entry.path());
    }
  } catch (const fs::filesystem_error& failure) {
    ::close(lock_fd_);
    throw Error("{}: {}", path_.string(), failure.code().message());
  } catch (...) {
    ::close(lock_fd_);
    throw;
  }
}

WorkFolder::~WorkFolder() {
  if (lock_fd_ < 0) return;
  // With nothing to go on with it would only be in the way.
  std::error_code error;
  fs::directory_iterator entry(path_, error);
  const bool has_key = !error && entry != fs::end(entry) && entry->path().filename() == kKeyName;
  if (has_key && entry.increment(error) == fs::end(entry) && !error) {
    fs::remove(path_ / kKeyName, error);
    fs::remove(path_, error);
  }
  ::close(lock_fd_);
}

fs::path WorkFolder::part_path(int64_t index, const char* extension) const {
  return path_ / fmt::format("part-{:05}.{}", index, extension);
}

// The list of results is written last: it tells that the part is whole.
bool WorkFolder::has_part(int64_t index) const {
  std::error_code error;
  return fs::is_regular_file(part_path(index, "json"), error);
}

void WorkFolder::save_part(int64_t index, const Part& part) {
  std::vector<SafetensorsWriter::Declaration> tensors;
  json shapes = json::object();
  for (const auto& [name, weight] : part.weights) {
    tensors.push_back({name, DType::kU8, Shape{weight.size_bytes()}});
    const auto sizes = weight.shape.sizes();
    shapes[name] = {{"format", std::string(weight.format->name)},
                    {"shape", std::vector<int64_t>(sizes.begin(), sizes.end())}};
  }
  if (!tensors.empty()) {
    SafetensorsWriter writer(part_path(index, "safetensors"), tensors);
    for (const auto& [name, weight] : part.weights) {
      writer.write(name, {weight.data, static_cast<size_t>(weight.size_bytes())});
    }
    writer.finish();
    make_durable(part_path(index, "safetensors"));
  }
  json results = json::array();
  for (const MatrixResult& result : part.results) results.push_back(to_json(result));
  write_text_file(part_path(index, "json"), json{{"tensors", shapes}, {"results", results}}.dump());
  make_durable(part_path(index, "json"));
  make_durable(path_);
}

WorkFolder::Part WorkFolder::load_part(int64_t index) const {
  Part part;
  const fs::path path = part_path(index, "json");
  try {
    const json object = json::parse(read_file(path));
    const json& shapes = object.at("tensors");
    if (!shapes.empty()) {
      for (const StoredTensor& tensor : read_safetensors(part_path(index, "safetensors"))) {
        const json& facts = shapes.at(tensor.name);
        Weight weight = tensor.weight;
        weight.format = find_quant_format(facts.at("format").get<std::string>());
        const auto sizes = facts.at("shape").get<std::vector<int64_t>>();
        weight.shape = Shape(std::span<const int64_t>(sizes));
        if (weight.format == nullptr || weight.size_bytes() != tensor.stored_bytes) {
          throw Error("{}: does not fit its list", tensor.file);
        }
        part.weights.emplace(tensor.name, std::move(weight));
      }
    }
    for (const json& result : object.at("results")) part.results.push_back(result_from(result));
  } catch (const json::exception&) {
    fail_damaged(path);
  }
  return part;
}

void WorkFolder::fail_damaged(const fs::path& path) const {
  throw Error("{}: is damaged; remove {} to start anew", path.string(), path_.string());
}

fs::path WorkFolder::kv_path(int64_t layer) const {
  return path_ / fmt::format("kv-{:05}.json", layer);
}

bool WorkFolder::has_kv(int64_t layer) const {
  std::error_code error;
  return fs::is_regular_file(kv_path(layer), error);
}

void WorkFolder::save_kv(const KvLayerResult& result) {
  const fs::path path = kv_path(result.layer);
  write_text_file(path,
                  json{{"key", to_json(result.key)}, {"value", to_json(result.value)}}.dump());
  make_durable(path);
  make_durable(path_);
}

KvLayerResult WorkFolder::load_kv(int64_t layer) const {
  const fs::path path = kv_path(layer);
  try {
    const json object = json::parse(read_file(path));
    return {.layer = layer,
            .key = scale_fit_from(object.at("key")),
            .value = scale_fit_from(object.at("value"))};
  } catch (const json::exception&) {
    fail_damaged(path);
  }
}

fs::path WorkFolder::start_output() {
  const fs::path path = path_ / kOutputName;
  std::error_code error;
  fs::remove_all(path, error);
  fs::create_directory(path, error);
  if (error) throw Error("{}: cannot create the folder: {}", path.string(), error.message());
  return path;
}

void WorkFolder::settle_output() const {
  const fs::path output = path_ / kOutputName;
  for (const fs::directory_entry& entry : fs::directory_iterator(output)) {
    make_durable(entry.path());
  }
  make_durable(output);
}

void WorkFolder::publish() {
  settle_output();
  // A folder takes the place of an empty one only.
  if (::rename((path_ / kOutputName).c_str(), out_.c_str()) != 0) {
    throw Error("{}: cannot put the folder in place: {}", out_.string(), std::strerror(errno));
  }
  make_durable(folder_of(out_));
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void WorkFolder::publish_files(
    const std::vector<std::pair<std::string, std::filesystem::path>>& files) {
  refuse_existing(out_);
  settle_output();
  for (const auto& [name, path] : files) {
    if (::rename((path_ / kOutputName / name).c_str(), path.c_str()) != 0) {
      throw Error("{}: cannot put the file in place: {}", path.string(), std::strerror(errno));
    }
  }
  make_durable(folder_of(out_));
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace braid
