// How the machine itself rounds, while a value of one of these types lives.
//
// The arithmetic between must stay between: it belongs in a function that is not inlined
// into the one that holds the value, because compilers move it freely across a change.
#pragma once

#include "vector.h"

namespace prism {
namespace PRISM_ISA {

struct [[maybe_unused]] ToNearest {};

#if defined(__AVX2__)
template <unsigned direction>
struct Directing {
  const unsigned before = _mm_getcsr();
  Directing() { _mm_setcsr((before & ~std::uint32_t{_MM_ROUND_MASK}) | direction); }
  ~Directing() { _mm_setcsr(before); }
  Directing(const Directing&) = delete;
  Directing& operator=(const Directing&) = delete;
};
using Downward = Directing<_MM_ROUND_DOWN>;
using Upward = Directing<_MM_ROUND_UP>;
using TowardZero = Directing<_MM_ROUND_TOWARD_ZERO>;
#endif

}  // namespace PRISM_ISA
}  // namespace prism
