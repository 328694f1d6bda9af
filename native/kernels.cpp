// Compiled once per instruction set, with PRISM_ISA naming the namespace.
#include "contraction_kernel.h"
#include "elementwise_kernel.h"
#include "reduction_kernel.h"

#define PRISM_STRING(x) #x
#define PRISM_NAME(x) PRISM_STRING(x)

namespace prism {
namespace PRISM_ISA {

extern const Kernels kernels;
const Kernels kernels = {PRISM_NAME(PRISM_ISA), pack_rows,     pack_panel, multiply,  elementwise,
                         reduce_chunk,          reduce_totals, scan,       accumulate};

}  // namespace PRISM_ISA
}  // namespace prism
