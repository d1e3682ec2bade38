// Prints where the time of a CUDA program's kernels goes, those in graphs included, without the
// program's help. Build it as a library and let the driver load it:
//
// clang-format off
//   g++ -std=c++20 -O2 -shared -fPIC kernel_trace.cc -o kernel_trace.so -I$CUDA/include -L$CUDA/lib64 -lcupti
//   CUDA_INJECTION64_PATH=$PWD/kernel_trace.so braid bench MODEL --device cuda ...
// clang-format on
//
// At exit, on stderr: by kernel, how often, its time and the idle time in front of it (negative
// where it began while the one before it was still running), over the second half of the run, so
// that warming up does not count. KERNEL_TRACE_SEQUENCE=N also lists the last N kernels in order.

#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Kernel {
  uint64_t begin, end;
  const char* name;  // kept by CUPTI
  int blocks, threads;
};

std::mutex mutex;
std::vector<Kernel> kernels;

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *size = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, *size));
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  const std::lock_guard lock(mutex);
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    kernels.push_back({k->start, k->end, k->name, k->gridX * k->gridY * k->gridZ,
                       k->blockX * k->blockY * k->blockZ});
  }
  std::free(buffer);
}

// Without template arguments and parameters.
std::string short_name(const char* mangled) {
  std::string name;
  for (const char* c = mangled; *c != '\0';) {
    if (*c < '0' || *c > '9') {
      ++c;
      continue;
    }
    char* end = nullptr;
    const long length = std::strtol(c, &end, 10);
    if (length > 3 && length < 64) {
      const std::string part(end, static_cast<size_t>(length));
      if (part.find("_GLOBAL__N") == std::string::npos && part != "braid") name = part;
      if (part.find("kernel") != std::string::npos || part.find("products") != std::string::npos) {
        break;
      }
      c = end + length;
    } else {
      c = end;
    }
  }
  return name.empty() ? mangled : name;
}

void report() {
  cuptiActivityFlushAll(1);
  const std::lock_guard lock(mutex);
  std::sort(kernels.begin(), kernels.end(),
            [](const Kernel& a, const Kernel& b) { return a.begin < b.begin; });
  struct Sum {
    int64_t count = 0, idle = 0;
    uint64_t busy = 0;
  };
  std::map<std::string, Sum> sums;
  uint64_t last_end = 0;
  uint64_t span = 0;
  const size_t first = kernels.size() / 2;
  for (size_t i = first; i < kernels.size(); ++i) {
    const Kernel& k = kernels[i];
    Sum& sum =
        sums[short_name(k.name) + " " + std::to_string(k.blocks) + "x" + std::to_string(k.threads)];
    ++sum.count;
    sum.busy += k.end - k.begin;
    const int64_t idle =
        i == first ? 0 : static_cast<int64_t>(k.begin) - static_cast<int64_t>(last_end);
    // Longer pauses are the host's.
    if (idle < 100000) sum.idle += idle;
    if (idle < 100000 && i > first) span += std::max(k.end, last_end) - last_end;
    last_end = std::max(last_end, k.end);
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second.busy + a.second.idle > b.second.busy + b.second.idle;
  });
  std::fprintf(stderr, "%zu kernels, %.3f ms from end to end\n", kernels.size() - first,
               static_cast<double>(span) / 1e6);
  std::fprintf(stderr, "%-56s %8s %10s %9s %9s\n", "kernel blocks x threads", "count", "ms",
               "us each", "idle us");
  for (const auto& [name, sum] : rows) {
    const double count = static_cast<double>(sum.count);
    std::fprintf(stderr, "%-56.56s %8lld %10.3f %9.2f %9.2f\n", name.c_str(),
                 static_cast<long long>(sum.count), static_cast<double>(sum.busy) / 1e6,
                 static_cast<double>(sum.busy) / 1e3 / count,
                 static_cast<double>(sum.idle) / 1e3 / count);
  }
  const char* wanted = std::getenv("KERNEL_TRACE_SEQUENCE");
  if (wanted == nullptr) return;
  const size_t length = std::min<size_t>(kernels.size(), std::strtoul(wanted, nullptr, 10));
  for (size_t i = kernels.size() - length; i < kernels.size(); ++i) {
    const Kernel& k = kernels[i];
    const int64_t idle =
        i == 0 ? 0 : static_cast<int64_t>(k.begin) - static_cast<int64_t>(kernels[i - 1].end);
    std::fprintf(stderr, "%9.2f us after %8.2f us  %s %dx%d\n",
                 static_cast<double>(k.end - k.begin) / 1e3, static_cast<double>(idle) / 1e3,
                 short_name(k.name).c_str(), k.blocks, k.threads);
  }
}

}  // namespace

extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  std::atexit(report);
  return 1;
}
