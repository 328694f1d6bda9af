// Which policy computes under a rounding.
#pragma once

#include "directed.h"
#include "policy.h"
#include "policy64.h"

namespace prism {
namespace PRISM_ISA {

// Calls `body` with the policy for a rounding of tensors of float.
template <class Body>
PRISM_INLINE void with_policy32(const Rounding& r, Body body) {
  if (r.binary32()) {
    if (r.mode == Mode::sr) return body(Sr32(r));
    if (r.mode == Mode::rn) return body(Plain32<ToNearest>(r));
    if (r.mode == Mode::ud) return body(Ud32(r));
#if defined(__AVX2__)
    if (r.mode == Mode::cestac) return body(Cestac32(r));
    if (r.mode == Mode::up) return body(Plain32<Upward>(r));
    if (r.mode == Mode::down) return body(Plain32<Downward>(r));
    if (r.mode == Mode::zero) return body(Plain32<TowardZero>(r));
#endif
    return body(Directed32(r));
  }
  body(Generic<float>(r));
}

// The same for tensors of double.
template <class Body>
PRISM_INLINE void with_policy64(const Rounding& r, Body body) {
  if (!r.binary64()) return body(Generic<double>(r));
  if (r.mode == Mode::rn) return body(Plain64<ToNearest>(r));
  if (r.mode == Mode::ud) return body(Ud64(r));
  if (r.mode == Mode::sr) return body(Sr64(r));
#if defined(__AVX2__)
  if (r.mode == Mode::cestac) return body(Cestac64(r));
  if (r.mode == Mode::up) return body(Controlled64<Upward>(r));
  if (r.mode == Mode::down) return body(Controlled64<Downward>(r));
  if (r.mode == Mode::zero) return body(Controlled64<TowardZero>(r));
#endif
  body(Directed64(r));
}

template <class T, class Body>
PRISM_INLINE void with_policy(const Rounding& r, Body body) {
  if constexpr (sizeof(T) == sizeof(float)) {
    with_policy32(r, body);
  } else {
    with_policy64(r, body);
  }
}

}  // namespace PRISM_ISA
}  // namespace prism
