// How a result is rounded: the native twin of rounding.py.
#pragma once

#include <cstdint>

namespace prism {

enum class Mode : int { rn, sr, ud, cestac, zero, away, up, down };

struct Rounding {
  Mode mode;
  int precision;   // bits of the significand: 2 to 24, or 53 for binary64 itself
  int emin;        // exponent of the smallest normal number
  double largest;  // largest finite number

  bool binary32() const { return precision == 24 && emin == -126 && largest == 0x1.fffffep127; }
  bool binary64() const { return precision == 53; }
  bool uniform() const { return mode == Mode::sr; }
  bool bits() const { return mode == Mode::ud || mode == Mode::cestac; }
};

// Scalar operations: those that round, functions, exact ones; the codes are those of program.py.
enum class Op : int {
  add,
  sub,
  mul,
  div,
  sqrt,
  fma,
  round,
  exp,
  expm1,
  log,
  log1p,
  tanh,
  erf,
  neg,
  abs,
  min,
  max,
  copysign,
  select
};

constexpr bool is_function(Op op) { return op >= Op::exp && op <= Op::erf; }

// Operations of the reductions.
enum class Reduction : int { sum, prod, sum_abs, sum_squares, dot };

}  // namespace prism
