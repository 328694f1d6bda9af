// Compiled once per instruction set, with PRISM_ISA naming the namespace.
#include "contraction_kernel.h"
#include "elementwise_kernel.h"
#include "packing.h"
#include "reduction_kernel.h"

#define PRISM_STRING(x) #x
#define PRISM_NAME(x) PRISM_STRING(x)

namespace prism {
namespace PRISM_ISA {

extern const Kernels kernels;

template <class T>
constexpr Primitives<T> primitives() {
  return {pack_rows<T>,    pack_panel<T>,    multiply<T>, elementwise<T>, turn_rows<T>,
          reduce_chunk<T>, reduce_totals<T>, scan<T>,     accumulate<T>};
}

const Kernels kernels = {PRISM_NAME(PRISM_ISA), primitives<float>(), primitives<double>()};

}  // namespace PRISM_ISA
}  // namespace prism
