// Any mode, any format: the exact result, its fraction, and a decision per lane.
//
// Plain loops over sixteen lanes without branches, which compilers vectorise.
// The exact result is represented by rounding it to odd in binary64, so that
// every comparison of the discarded fraction with 0 and 1/2 comes out right.
#pragma once

#include "rounding.h"
#include "vector.h"

namespace prism {
namespace PRISM_ISA {

struct Lanes {
  double v[kLanes];
};
struct Draws {
  std::uint32_t u[kLanes];
};

PRISM_INLINE std::uint64_t bits_of(double x) {
  std::uint64_t b;
  __builtin_memcpy(&b, &x, 8);
  return b;
}
PRISM_INLINE double double_of(std::uint64_t b) {
  double x;
  __builtin_memcpy(&x, &b, 8);
  return x;
}
// 2^e for -1022 <= e <= 1023.
PRISM_INLINE double power_of_two(std::int64_t e) {
  return double_of((std::uint64_t)(e + 1023) << 52);
}

// `s` moved to an odd neighbour in the direction of `error`, the exact result less `s`.
PRISM_INLINE double to_odd(double s, double error) {
  const std::uint64_t b = bits_of(s);
  const bool inexact = (error < 0 || error > 0) && (b & 1) == 0;
  const bool grows = (error > 0) == (s > 0);
  return double_of(b + (inexact ? (grows ? 1 : ~std::uint64_t{0}) : 0));
}

PRISM_INLINE double sum_error(double a, double b, double s) {
  const double bb = s - a;
  return (a - (s - bb)) + (b - bb);
}

// The exact product as an unevaluated sum (Dekker, Veltkamp); no fused multiply-add needed.
PRISM_INLINE double product_error(double a, double b, double p) {
  constexpr double kSplit = 134217729.0;  // 2^27 + 1
  const double ca = kSplit * a, cb = kSplit * b;
  const double ah = ca - (ca - a), bh = cb - (cb - b);
  const double al = a - ah, bl = b - bh;
  return ((ah * bh - p) + ah * bl + al * bh) + al * bl;
}

// The result of an operation in binary64: nearest, or rounded to odd.
template <Op op, bool odd>
PRISM_INLINE double result(double a, double b, double c) {
  if constexpr (op == Op::mul) return a * b;  // exact: 24 by 24 bits
  if constexpr (op == Op::round) return a;
  if constexpr (op == Op::add || op == Op::sub || op == Op::fma) {
    const double x = op == Op::fma ? a * b : a;
    const double y = op == Op::fma ? c : (op == Op::sub ? -b : b);
    const double s = x + y;
    return odd ? to_odd(s, sum_error(x, y, s)) : s;
  }
  if constexpr (op == Op::div) {
    const double q = a / b, p = q * b;
    if (!odd) return q;
    const double residual = (a - p) - product_error(q, b, p);
    // A quotient of 24-bit values that is infinite or NaN leaves a NaN residual: no move.
    return to_odd(q, b < 0 ? -residual : residual);
  }
  if constexpr (op == Op::sqrt) {
    const double q = __builtin_sqrt(a), p = q * q;
    return odd ? to_odd(q, (a - p) - product_error(q, q, p)) : q;
  }
}

// The same for binary64 operands, whose products are not exact.
template <Op op, bool odd>
PRISM_INLINE double result64(double a, double b, double c) {
  if constexpr (op == Op::round) return a;
  if constexpr (op == Op::add || op == Op::sub) return result<op, odd>(a, b, c);
  double s, error;
  if constexpr (op == Op::mul) {
    s = a * b;
    error = __builtin_fma(a, b, -s);
  } else if constexpr (op == Op::div) {
    s = a / b;
    const double residual = __builtin_fma(-s, b, a);
    error = b < 0 ? -residual : residual;
  } else if constexpr (op == Op::sqrt) {
    s = __builtin_sqrt(a);
    error = __builtin_fma(-s, s, a);
  } else {
    const double p = a * b, product = __builtin_fma(a, b, -p);
    const double t = p + c, w = product + sum_error(p, c, t);
    // Inf stays, beside which w is NaN, and -0, which a sum with +0 would not keep.
    const bool moves = w < 0 || w > 0;
    s = moves ? t + w : t;
    error = moves ? sum_error(t, w, s) : 0.0;
  }
  return odd ? to_odd(s, error) : s;
}

// IEEE 754: an exact zero sum of unlike terms is -0 when rounding down.
template <Op op>
PRISM_INLINE bool cancels(double a, double b, double c, double s) {
  if constexpr (op == Op::add || op == Op::sub || op == Op::fma) {
    const double x = op == Op::fma ? a * b : a;
    const double y = op == Op::fma ? c : (op == Op::sub ? -b : b);
    return s == 0 && ((x < 0 || x > 0) || ((bits_of(x) | bits_of(y)) >> 63) != 0);
  }
  return false;
}

// round_to_format of rounding.py for one lane.
template <Mode mode, bool ranged>
PRISM_INLINE double round_lane(double s, std::uint32_t draw, const Rounding& r) {
  const std::uint64_t b = bits_of(s);
  const std::uint64_t sign = b & 0x8000000000000000u;
  const std::uint64_t field = (b >> 52) & 0x7FF;
  const std::int64_t exponent = (std::int64_t)field - 1023;
  const std::int64_t scale = ranged && exponent < r.emin ? r.emin : exponent;
  const std::uint64_t m =
      (b & 0xFFFFFFFFFFFFFu) | (field != 0 ? 0x10000000000000u : std::uint64_t{0});
  std::int64_t wanted = 53 - r.precision + (scale - exponent);
  wanted = wanted > 120 ? 120 : wanted;
  // Beyond 62 bits everything is discarded and the fraction is far below 1/2.
  const std::uint64_t shift = (std::uint64_t)(wanted > 62 ? 62 : wanted);
  const std::uint64_t coarse = (std::uint64_t)(wanted - 29 > 63 ? 63 : wanted - 29);
  std::uint64_t k = m >> shift;
  const std::uint64_t fraction = m - (k << shift);
  const std::uint64_t half = (std::uint64_t)1 << (shift - 1);
  const bool negative = sign != 0;
  bool up = false;
  if (mode == Mode::rn || mode == Mode::ud) {
    up = fraction > half || (fraction == half && (k & 1) != 0);
  } else if (mode == Mode::sr) {
    up = (fraction >> coarse) + draw >= (std::uint64_t{1} << 29);
  } else if (mode == Mode::cestac) {
    up = fraction != 0 && (draw == 1) != negative;
  } else if (mode == Mode::away) {
    up = fraction != 0;
  } else if (mode == Mode::up) {
    up = fraction != 0 && !negative;
  } else if (mode == Mode::down) {
    up = fraction != 0 && negative;
  }
  k += up ? 1 : 0;
  const std::int64_t lowest = scale - (r.precision - 1);
  const double q = power_of_two(lowest < -1022 ? -1022 : lowest);
  double y = (double)(std::int64_t)k * q;
  if (mode == Mode::ud) {
    // In halves of a quantum: numbers just below a power of two lie twice as dense.
    const std::uint64_t top = std::uint64_t{1} << (r.precision - 1);
    const bool narrow = k == top && exponent > r.emin;
    const std::int64_t down_halves = narrow ? 1 : 2;
    const std::int64_t up_halves = k == 2 * top ? 4 : 2;
    const std::int64_t halves = 2 * (std::int64_t)k + (draw == 1 ? up_halves : -down_halves);
    const double moved = (double)halves * (0.5 * q);
    y = (k == 0 || y > r.largest) ? (k == 0 ? y : __builtin_inf()) : moved;
  }
  if (ranged && y > r.largest) {
    bool saturates = false;
    if (mode == Mode::zero) saturates = true;
    if (mode == Mode::up) saturates = negative;
    if (mode == Mode::down) saturates = !negative;
    if (mode == Mode::cestac) saturates = (draw == 1) == negative;
    y = saturates ? r.largest : __builtin_inf();
  }
  const double signed_y = double_of(bits_of(y) | sign);
  return field == 0x7FF ? s : signed_y;
}

template <class T, Op op, Mode mode, bool ranged>
PRISM_INLINE void apply_lanes(const Lanes& a, const Lanes& b, const Lanes& c, const Draws& d,
                              const Rounding& r, Lanes& out) {
  for (int i = 0; i < kLanes; ++i) {
    const double s = sizeof(T) == 4 ? result<op, mode != Mode::sr>(a.v[i], b.v[i], c.v[i])
                                    : result64<op, mode != Mode::sr>(a.v[i], b.v[i], c.v[i]);
    double y = round_lane<mode, ranged>(s, d.u[i], r);
    if constexpr (mode == Mode::down || mode == Mode::cestac) {
      const bool downward = mode == Mode::down || d.u[i] == 0;
      if (downward && cancels<op>(a.v[i], b.v[i], c.v[i], s)) y = -0.0;
    }
    out.v[i] = y;
  }
}

template <class T, Op op>
__attribute__((noinline)) void apply_generic(const Lanes& a, const Lanes& b, const Lanes& c,
                                             const Draws& d, const Rounding& r, bool ranged,
                                             Lanes& out) {
  switch (r.mode) {
    case Mode::rn:
      return apply_lanes<T, op, Mode::rn, true>(a, b, c, d, r, out);
    case Mode::sr:
      return ranged ? apply_lanes<T, op, Mode::sr, true>(a, b, c, d, r, out)
                    : apply_lanes<T, op, Mode::sr, false>(a, b, c, d, r, out);
    case Mode::ud:
      return apply_lanes<T, op, Mode::ud, true>(a, b, c, d, r, out);
    case Mode::cestac:
      return apply_lanes<T, op, Mode::cestac, true>(a, b, c, d, r, out);
    case Mode::zero:
      return apply_lanes<T, op, Mode::zero, true>(a, b, c, d, r, out);
    case Mode::away:
      return apply_lanes<T, op, Mode::away, true>(a, b, c, d, r, out);
    case Mode::up:
      return apply_lanes<T, op, Mode::up, true>(a, b, c, d, r, out);
    case Mode::down:
      return apply_lanes<T, op, Mode::down, true>(a, b, c, d, r, out);
  }
}

}  // namespace PRISM_ISA
}  // namespace prism
