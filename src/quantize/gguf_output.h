#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/gguf_writer.h"
#include "convert/gguf_layout.h"
#include "quantize/plan.h"

namespace braid {

// Lets the plans know how the file lies: what is left out, where each tensor goes, in which order
// columns are to be rounded. Throws Error if experts of a stack are to be stored differently.
void fit_plans_to_layout(const GgufLayout& layout, const WeightMap& weights,
                         std::vector<TensorPlan>& plans);

// A model as one GGUF file.
class GgufOutput {
 public:
  // `quantised`: by canonical name, in the plans' formats; the others come from `source`. All must
  // outlive this.
  GgufOutput(const GgufLayout& layout, const std::vector<TensorPlan>& plans,
             const WeightMap& source, const std::map<std::string, Weight, std::less<>>& quantised);

  int64_t bytes() const;  // of all tensors
  // Names of tensors that the source has not.
  std::vector<std::string> added() const;

  // `written` is called after each tensor.
  void write(const std::filesystem::path& path, const GgufMetadataWriter& metadata,
             ThreadPool& pool, const std::function<void()>& written) const;

 private:
  struct Source {
    Weight weight;
    bool columns_in_place = false;
  };
  Source source_of(const std::string& name) const;
  void write_tensor(const GgufTensor& tensor, const GgufWriter::Declaration& as, ThreadPool& pool,
                    GgufWriter& writer) const;

  const GgufLayout& layout_;
  const WeightMap& source_;
  const std::map<std::string, Weight, std::less<>>& quantised_;
  std::map<std::string_view, const TensorPlan*> plans_;
  std::vector<GgufWriter::Declaration> declarations_;
};

}  // namespace braid
