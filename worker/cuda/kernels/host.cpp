// The kernels as functions of the host: the processor's optimizer, and what tests compare. One call does one block.
#include "prelude.h"
#include "arguments.h"
#include "optimizer.cu"
#include "momentum.cu"
#include "columns.cu"
#include "norm.cu"
#include "gelu.cu"
#include "dropout.cu"
#include "loss.cu"
#include "squares.cu"
#include "product.cu"

struct HostKernel {
  const char* name;
  void (*run)(long long block, const void* arguments);
  unsigned long long argument_bytes;
};

#define ENTRY(name, Arguments) \
  {#name, [](long long block, const void* a) { name(block, *static_cast<const Arguments*>(a)); }, sizeof(Arguments)}

static const HostKernel ALL[] = {
    ENTRY(optimizer, OptimizerArguments),          ENTRY(norm_forward, NormArguments),
    ENTRY(norm_backward, NormBackwardArguments),   ENTRY(norm_columns, NormBackwardArguments),
    ENTRY(add_columns, ColumnsArguments),          ENTRY(gelu_forward, GeluArguments),
    ENTRY(gelu_backward, GeluBackwardArguments),   ENTRY(dropout, DropoutArguments),
    ENTRY(momentum, MomentumArguments),            ENTRY(sum_rows, RowsArguments),
    ENTRY(loss, LossArguments),                    ENTRY(squares, SquaresArguments),
    ENTRY(product, ProductArguments),
};

extern "C" const HostKernel* varuna_host_kernels(unsigned long long* count) {
  *count = sizeof(ALL) / sizeof(ALL[0]);
  return ALL;
}
