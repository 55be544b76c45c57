// All of the glue as one translation unit: libtorch's headers take longer to read than the glue takes to compile, and are read once so.
#include "dropout.cpp"
#include "fused.cpp"
#include "head_loss.cpp"
#include "memory_meter.cpp"
#include "rms_norm.cpp"
#include "rotary.cpp"
#include "script.cpp"
#include "shim.cpp"
