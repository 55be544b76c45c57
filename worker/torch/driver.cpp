// What the driver says of a GPU. The driver's library is loaded at run time and its few functions are declared here, so that no CUDA
// headers are needed to build. Returns 0, or < 0 after writing what is wrong to `why`.
#include <cstdint>
#include <cstdio>
#include <dlfcn.h>

namespace {

struct Context;

// The functions' names in the library; the newest version of those that have several.
struct Driver {
  int (*init)(unsigned);
  int (*device)(int*, int);
  int (*name)(char*, int, int);
  int (*retain)(Context**, int);
  int (*release)(int);
  int (*push)(Context*);
  int (*pop)(Context**);
  int (*memory)(size_t*, size_t*);

  template <typename F>
  static bool find(void* library, const char* symbol, F& f) {
    f = reinterpret_cast<F>(dlsym(library, symbol));
    return f != nullptr;
  }

  bool open(void* library) {
    return find(library, "cuInit", init) && find(library, "cuDeviceGet", device) &&
           find(library, "cuDeviceGetName", name) && find(library, "cuDevicePrimaryCtxRetain", retain) &&
           find(library, "cuDevicePrimaryCtxRelease_v2", release) && find(library, "cuCtxPushCurrent_v2", push) &&
           find(library, "cuCtxPopCurrent_v2", pop) && find(library, "cuMemGetInfo_v2", memory);
  }
};

int fail(char* why, int length, const char* what, int code) {
  snprintf(why, length, "%s: error %d of the driver", what, code);
  return -1;
}

}  // namespace

extern "C" int vt_gpu(const char* library, int number, char* name, int name_length, uint64_t* free_bytes,
                      uint64_t* total_bytes, char* why, int why_length) {
  // Never closed: libtorch uses it too.
  void* opened = dlopen(library, RTLD_NOW);
  if (!opened) {
    const char* error = dlerror();
    snprintf(why, why_length, "%s", error ? error : "the driver's library cannot be loaded");
    return -1;
  }
  Driver driver;
  if (!driver.open(opened)) {
    snprintf(why, why_length, "%s lacks a function of the driver", library);
    return -1;
  }
  int device = 0, code = 0;
  if ((code = driver.init(0))) return fail(why, why_length, "cuInit", code);
  if ((code = driver.device(&device, number))) return fail(why, why_length, "cuDeviceGet", code);
  if ((code = driver.name(name, name_length, device))) return fail(why, why_length, "cuDeviceGetName", code);
  // The context that libtorch uses as well, so that what it takes is not counted as free.
  Context* context = nullptr;
  if ((code = driver.retain(&context, device))) return fail(why, why_length, "cuDevicePrimaryCtxRetain", code);
  size_t free_now = 0, total = 0;
  if (!(code = driver.push(context))) {
    code = driver.memory(&free_now, &total);
    driver.pop(&context);
  }
  // Not released where all is well: it would end, and be made again with the first tensor.
  if (code) {
    driver.release(device);
    return fail(why, why_length, "cuMemGetInfo", code);
  }
  *free_bytes = free_now;
  *total_bytes = total;
  return 0;
}
