#pragma once

// Times on a CUDA device, from event to event.

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/stream.h"

namespace braid {

struct Rounds {
  int unmeasured, measured;
};

// Median time in seconds of what `queue` puts on the stream.
inline double median_seconds(cudaStream_t stream, const Rounds& rounds,
                             const std::function<void()>& queue) {
  cudaEvent_t begin, end;
  BRAID_CUDA_CHECK(cudaEventCreate(&begin));
  BRAID_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < rounds.unmeasured + rounds.measured; ++i) {
    BRAID_CUDA_CHECK(cudaEventRecord(begin, stream));
    queue();
    BRAID_CUDA_CHECK(cudaEventRecord(end, stream));
    BRAID_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= rounds.unmeasured) times.push_back(ms);
  }
  BRAID_CUDA_CHECK(cudaEventDestroy(begin));
  BRAID_CUDA_CHECK(cudaEventDestroy(end));
  const auto median = times.begin() + static_cast<int64_t>(times.size() / 2);
  std::nth_element(times.begin(), median, times.end());
  return *median * 1e-3;
}

// Median time in seconds of a link of a chain that runs as a CUDA graph; link(i) queues link i of
// `count`. It is called once before, for what is set up at first use.
inline double link_seconds(Stream& stream, int count, const Rounds& rounds,
                           const std::function<void(int)>& link) {
  stream.cuda().begin_step();
  const cudaStream_t handle = stream.cuda().handle();
  link(0);
  stream.synchronize();
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  BRAID_CUDA_CHECK(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < count; ++i) link(i);
  BRAID_CUDA_CHECK(cudaStreamEndCapture(handle, &graph));
  BRAID_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  const double seconds = median_seconds(
      handle, rounds, [&] { BRAID_CUDA_CHECK(cudaGraphLaunch(executable, handle)); });
  BRAID_CUDA_CHECK(cudaGraphExecDestroy(executable));
  BRAID_CUDA_CHECK(cudaGraphDestroy(graph));
  stream.cuda().end_step();
  return seconds / count;
}

}  // namespace braid
