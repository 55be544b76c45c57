// Counts what libtorch allocates for tensors on behalf of one thread and of the backward that it starts, exactly and at most.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <mutex>

namespace {
// libtorch looks for a listener of this kind at each allocation and hands it on to the threads of autograd, so the backward of a GPU,
// which runs in another thread, counts too. What was taken before the meter began is not known to it and its return is not counted.
struct Meter : c10::MemoryReportingInfoBase {
  explicit Meter(bool host) : host(host) {}

  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.is_cpu() != host) return;
    const std::lock_guard<std::mutex> lock(mutex);
    now += bytes;
    if (now > most) most = now;
  }

  bool memoryProfilingEnabled() const override { return true; }

  const bool host;
  std::mutex mutex;
  int64_t now = 0;
  int64_t most = 0;
};

struct Running {
  explicit Running(bool host)
      : meter(std::make_shared<Meter>(host)), guard(c10::DebugInfoKind::PROFILER_STATE, meter) {}
  std::shared_ptr<Meter> meter;
  c10::DebugInfoGuard guard;
};
}  // namespace

extern "C" {
// Begins to count the host's memory, or that of all other devices; null if there is no memory for the meter itself.
void* vt_meter_begin(int host) {
  try {
    return new Running(host != 0);
  } catch (...) {
    return nullptr;
  }
}

// Bytes that are taken now, and at most since the beginning.
void vt_meter_read(void* running, int64_t* now, int64_t* most) {
  Meter& meter = *static_cast<Running*>(running)->meter;
  const std::lock_guard<std::mutex> lock(meter.mutex);
  *now = meter.now;
  *most = meter.most;
}

// Ends it, in the thread that began it.
void vt_meter_end(void* running) { delete static_cast<Running*>(running); }
}
