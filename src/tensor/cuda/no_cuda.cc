#include "base/error.h"
#include "tensor/cuda/copy_pieces.h"
#include "tensor/cuda/device_event.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/cuda/event_timeline.h"
#include "tensor/cuda/host_blocks.h"
#include "tensor/cuda/large_upload.h"
#include "tensor/cuda/pinned_upload.h"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {
namespace {

[[noreturn]] void refuse(int device) {
  throw Error("device cuda:{}: this build has no CUDA backend; configure with the preset 'cuda'",
              device);
}

}  // namespace

bool built_in() { return false; }
int num_devices() { return 0; }
std::byte* allocate(size_t, int device) { refuse(device); }
std::unique_ptr<GrowingMemory> reserve(size_t, int device) { refuse(device); }
ManagedMemoryScope::ManagedMemoryScope() { refuse(0); }
ManagedMemoryScope::~ManagedMemoryScope() = default;
void release(std::byte*, size_t, int) noexcept {}
MemoryUse memory_use(int) { return {}; }
void reset_peak(int) noexcept {}
void count_allocation(int64_t, int) noexcept {}
DeviceRoom device_room(int device) { refuse(device); }
void copy_to_device(std::byte*, const void*, size_t, int device) { refuse(device); }
void copy_to_host(void*, const std::byte*, size_t, int device) { refuse(device); }
void copy_pieces(std::byte*, size_t, const std::byte*, std::span<const int64_t>, size_t,
                 int device) {
  refuse(device);
}

std::unique_ptr<HostBlocks> make_host_blocks(const std::vector<size_t>&, int, int device) {
  refuse(device);
}
std::unique_ptr<PinnedUpload> make_pinned_upload(int device) { refuse(device); }

StreamState* create_stream_state(int device) { refuse(device); }
void destroy_stream_state(StreamState*) noexcept {}
void synchronize(StreamState&) { refuse(0); }
const int32_t* on_device(StreamState&, const IndexList&) { refuse(0); }
void upload(StreamState&, std::byte*, size_t, const std::function<void(std::byte*)>&) { refuse(0); }
std::byte* allocate_pinned(size_t) { refuse(0); }
void release_pinned(std::byte*) noexcept {}
void copy_to_host_async(StreamState&, void*, const void*, size_t) { refuse(0); }
void copy_to_device_async(StreamState&, void*, const void*, size_t) { refuse(0); }
void copy_on_device(StreamState&, void*, const void*, size_t) { refuse(0); }

std::unique_ptr<DeviceTimeline> make_event_timeline(StreamState&) { refuse(0); }
int64_t num_finished_ops(const StreamState&) { refuse(0); }

DeviceEvent::~DeviceEvent() = default;
void DeviceEvent::record(StreamState&) { refuse(0); }
void DeviceEvent::wait() {}

}  // namespace braid::cuda
