#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/weight_map.h"

namespace braid {

// The tensors of one safetensors file, which point into it. Strict, as the reference library: the
// header's sizes, types and offsets must agree with each other and with the file; data neither
// overlaps nor leaves holes; no name occurs twice. A scalar gets shape [1]. Tensors that are empty,
// of more than four dimensions or of a type other than F32, F16 and BF16 get no format.
// Throws Error naming the file and the tensor.
std::vector<StoredTensor> read_safetensors(const std::filesystem::path& path);

// The same from bytes in memory that `owner` keeps alive; `path` is for messages.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes,
                                            const std::shared_ptr<const void>& owner,
                                            const std::string& path);

// The checkpoint of a folder: model.safetensors, or the shards that model.safetensors.index.json
// lists. Index and shards must name exactly the same tensors. Throws Error with all names that are
// missing, and, if the folder holds no such files, with what it holds instead.
WeightMap read_safetensors_folder(const std::filesystem::path& folder);

}  // namespace braid
