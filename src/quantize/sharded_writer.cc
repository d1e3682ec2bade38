#include "quantize/sharded_writer.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/safetensors_writer.h"
#include "quantize/text_file.h"

namespace braid {

int64_t OutputTensors::bytes() const {
  int64_t sum = 0;
  for (const Part& part : parts) sum += part.bytes();
  return sum;
}

std::vector<std::string> write_sharded(const std::filesystem::path& folder,
                                       const std::vector<OutputTensors>& tensors,
                                       int64_t max_shard_bytes,
                                       const std::function<void(int64_t bytes)>& written) {
  std::vector<std::vector<const OutputTensors*>> shards(1);
  int64_t shard_bytes = 0, total_bytes = 0;
  for (const OutputTensors& one : tensors) {
    if (shard_bytes > 0 && shard_bytes + one.bytes() > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(&one);
    shard_bytes += one.bytes();
    total_bytes += one.bytes();
  }

  std::vector<std::string> names;
  nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes}}},
                                  {"weight_map", nlohmann::ordered_json::object()}};
  for (size_t i = 0; i < shards.size(); ++i) {
    names.push_back(shards.size() == 1
                        ? "model.safetensors"
                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    std::vector<SafetensorsWriter::Declaration> declarations;
    for (const OutputTensors* one : shards[i]) {
      for (const OutputTensors::Part& part : one->parts) {
        declarations.push_back({part.name, part.dtype, part.shape});
        index["weight_map"][part.name] = names.back();
      }
    }
    SafetensorsWriter writer(folder / names.back(), declarations, {{"format", "pt"}});
    for (const OutputTensors* one : shards[i]) {
      if (one->make) {
        const std::vector<std::vector<std::byte>> bytes = one->make();
        for (size_t p = 0; p < one->parts.size(); ++p) writer.write(one->parts[p].name, bytes[p]);
      } else {
        writer.write(one->parts[0].name, one->stored);
      }
      if (written) written(one->bytes());
    }
    writer.finish();
  }
  if (shards.size() > 1) {
    write_text_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  return names;
}

}  // namespace braid
