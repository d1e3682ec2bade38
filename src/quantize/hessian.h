#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"
#include "tensor/workspace.h"

namespace braid {

// H = 2/n · Xᵀ·X of the n inputs X, [n, cols], that a matrix is seen to multiply: the second
// derivative of its mean squared output error. Summed in float32, on the CPU in the order of the
// inputs. On a CUDA device the tensor cores multiply: inputs in bfloat16 exactly, those in float32
// as the sum of two bfloat16, which leaves out less than 2^-15 of a product; and their sums over
// the inputs of one call are as exact as theirs are.
class Hessian {
 public:
  explicit Hessian(int64_t cols, Device device = {});

  int64_t cols() const { return cols_; }
  int64_t num_inputs() const { return num_inputs_; }
  Device device() const { return sums_.device(); }

  // x: [count, cols], rows row_stride apart.
  void add(ThreadPool& pool, const float* x, int64_t count, int64_t row_stride);
  // x: [count, cols], float32, on a CUDA device also bfloat16; where the Hessian is, as the stream.
  void add(Stream& stream, Workspace& workspace, const TensorView& x);
  // What the same rows of the last add() are in the model as it was: y, as x is. Of all additions
  // or of none.
  void add_source(Stream& stream, Workspace& workspace, const TensorView& y, const TensorView& x);
  // To be called once, when all inputs have been added. Without inputs all is zero.
  void finish(ThreadPool& pool);
  void finish(Stream& stream);

  // After finish(): [cols, cols], on its device.
  const float* data() const { return reinterpret_cast<const float*>(sums_.data()); }
  // Yᵀ·X of the source's inputs Y, [cols, cols]; null without. factor() makes it 2/n of that.
  const float* source_sums() const { return source_ ? sums_of(*source_) : nullptr; }
  float factor() const { return num_inputs_ > 0 ? 2.0f / static_cast<float>(num_inputs_) : 0.0f; }
  // On the CPU.
  float diagonal(int64_t i) const { return data()[i * cols_ + i]; }

 private:
  static float* sums_of(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
  float* sums() { return sums_of(sums_); }
  void add_blocks(Stream& stream, const void* a, const void* b, int64_t count, int64_t stride);

  int64_t cols_;
  int64_t num_inputs_ = 0;
  Buffer sums_;  // until finish(): only the upper triangle
  std::optional<Buffer> source_;
};

// In which order columns are rounded. Groups keep their columns whichever it is.
enum class ColumnOrder : uint8_t {
  kInPlace,  // from left to right
  kBySize,   // by descending diagonal
  kByGroup,  // groups by the sum of their diagonal, and so within each
};
std::vector<int32_t> order_columns(std::span<const float> diagonal, ColumnOrder order,
                                   int64_t group);

// How the inverse of a damped Hessian came about.
struct InverseFactor {
  // [cols, cols], upper triangular, zeros below: H'⁻¹ = Uᵀ·U, where H' is H with its rows and
  // columns in `order`, plus damping · mean(diagonal) on the diagonal.
  std::vector<float> factor;
  std::vector<int32_t> order;    // of the columns
  double damping = 0;            // what was used in the end
  int64_t num_dead_columns = 0;  // never met by an input other than zero
};

// Calls factor(damping) until it says that there is a factor, with ten times the damping each time;
// the damping that was enough. Throws Error if there never is one. cols: for the message.
double damp_until_factored(double damping, int64_t cols,
                           const std::function<bool(double damping)>& factor);

// Damping is multiplied by 10 as often as needed for the matrix to be positive definite. Columns
// whose diagonal is zero count as 1 there, and have no bearing on others.
// group: columns of a group, for kByGroup.
InverseFactor invert_hessian(ThreadPool& pool, const Hessian& hessian, double damping,
                             ColumnOrder order, int64_t group);

}  // namespace braid
