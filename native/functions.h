// Transcendental functions of binary64: the native twin of backends/functions.py, which
// explains the algorithms.  The same additions, multiplications, divisions, bit operations
// and table lookups in the same order, nothing fused, so that every instruction set
// computes the bits of the specification.
//
// Registers whose lanes all lie where nothing can leave the range take a shorter way to
// the same bits; a register with other lanes goes the whole one.
#pragma once

#include "function_constants.h"
#include "kernels.h"
#include "vector.h"

namespace prism {
namespace PRISM_ISA {

constexpr double kShift = 0x1.8p52;
constexpr std::int64_t kShiftBits = 0x4338000000000000;
constexpr std::int64_t kSqrtHalfBits = 0x3FE6A09E667F3BCD;
constexpr std::int64_t kExponentBits = std::int64_t{1} << 52;
constexpr std::int64_t kSignBit = INT64_MIN;
constexpr int kErfIntervals = 16;
constexpr int kErfTerms = sizeof(kErf) / sizeof(double) / kErfIntervals;
constexpr int kExpTerms = sizeof(kExp) / sizeof(double);
constexpr int kLogTerms = sizeof(kLog) / sizeof(double);

PRISM_INLINE vd filled(double x) { return x - (vd){}; }
PRISM_INLINE vd choose(vl condition, vd a, vd b) { return condition ? a : b; }
PRISM_INLINE vd magnitude(vd x) { return (vd)((vl)x & ~kSignBit); }
PRISM_INLINE vd with_sign(vd x, vd sign) {
  return (vd)(((vl)x & ~kSignBit) | ((vl)sign & kSignBit));
}
// NaN stays what it is: of operands without order the instructions take the second.
#if defined(__AVX512F__)
PRISM_INLINE vd at_least(vd x, double bound) {
  return (vd)_mm512_max_pd((__m512d)filled(bound), (__m512d)x);
}
PRISM_INLINE vd at_most(vd x, double bound) {
  return (vd)_mm512_min_pd((__m512d)filled(bound), (__m512d)x);
}
#elif defined(__AVX2__)
PRISM_INLINE vd at_least(vd x, double bound) {
  return (vd)_mm256_max_pd((__m256d)filled(bound), (__m256d)x);
}
PRISM_INLINE vd at_most(vd x, double bound) {
  return (vd)_mm256_min_pd((__m256d)filled(bound), (__m256d)x);
}
#else
PRISM_INLINE vd at_least(vd x, double bound) { return x < bound ? filled(bound) : x; }
PRISM_INLINE vd at_most(vd x, double bound) { return x > bound ? filled(bound) : x; }
#endif

// Whether the comparison holds in every lane.
PRISM_INLINE bool holds(vl condition) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask((__m512i)condition) == 0xFF;
#elif defined(__AVX2__)
  return _mm256_movemask_pd((__m256d)condition) == 0xF;
#else
  bool all = true;
  PRISM_UNROLL for (int i = 0; i < kDoubles; ++i) all &= condition[i] != 0;
  return all;
#endif
}

// 2^k; `k` may carry the bits of the shift, which leave on the left.
PRISM_INLINE vd power_of_two(vl k) { return (vd)((k + 1023) << 52); }

// Pairs of terms, pairs of pairs, and so on; V has the operators of a register.
template <class V, class Term, int terms>
PRISM_INLINE V polynomial(V x, const Term (&term)[terms]) {
  if constexpr (terms == 1) {
    return term[0];
  } else {
    V next[(terms + 1) / 2];
    PRISM_UNROLL for (int i = 0; i < terms / 2; ++i) next[i] = term[2 * i] + term[2 * i + 1] * x;
    if constexpr (terms % 2 != 0) next[terms / 2] = term[terms - 1] - V{};
    return polynomial(x * x, next);
  }
}

// x = k ln 2 + r + rest.
struct Reduced {
  vl k;  // and the bits of the shift
  vd r, tail, rest;
};
PRISM_INLINE Reduced reduced(vd x) {
  const vd shifted = x * kLog2E + kShift;
  const vd k = shifted - kShift;
  const vd high = x - k * kLn2[0], low = k * kLn2[1];
  const vd r = high - low;
  return {(vl)shifted, r, (r * r) * polynomial(r, kExp), (high - r) - low};
}

// y * 2^k: by the exponent alone where neither is out of range.
template <bool whole>
PRISM_INLINE vd scaled(vd y, vl k) {
  if constexpr (!whole) return (vd)((vl)y + (k << 52));
  const vu lifted = (vu)(k - (kShiftBits - 2048));
  const vl half = (vl)(lifted >> 1) - 1024;
  return y * power_of_two(half) * power_of_two(k - half);
}

struct Exp {
  PRISM_INLINE static vl common(vd x) { return magnitude(x) <= 708.0; }
  template <bool whole>
  PRISM_INLINE static vd of(vd x) {
    if constexpr (whole) x = at_most(at_least(x, -746.0), 710.0);
    const Reduced d = reduced(x);
    return scaled<whole>(1.0 + (d.r + d.tail), d.k);
  }
};

struct Expm1 {
  PRISM_INLINE static vl common(vd x) { return magnitude(x) <= 40.0; }
  template <bool whole>
  PRISM_INLINE static vd of(vd x) {
    const Reduced d = reduced(whole ? at_most(at_least(x, -40.0), 710.0) : x);
    vl k = d.k;
    if constexpr (whole) {
      const vl beyond = k > kShiftBits + 62;
      k = (k & ~beyond) | ((kShiftBits + 62) & beyond);
    }
    const vd one = 1.0 - power_of_two(-k);
    const vd total = one + d.r, part = total - one;
    const vd error = (one - (total - part)) + (d.r - part);
    return with_sign(scaled<whole>(total + (d.tail + (error + d.rest)), d.k), x);
  }
};

struct Tanh {
  PRISM_INLINE static vl common(vd) { return (vl){} - 1; }
  template <bool>
  PRISM_INLINE static vd of(vd x) {
    const vd a = at_most(magnitude(x), 20.0);
    const Reduced d = reduced(a + a);
    const vd power = scaled<false>(1.0 + (d.r + d.tail), d.k);
    const vd z = a * a;
    const vd numerator = a * (z * (kTanhP[0] + z * (kTanhP[1] + z * kTanhP[2])));
    const vd denominator = kTanhQ[0] + z * (kTanhQ[1] + z * (kTanhQ[2] + z));
    const vl small = a < 0.625;
    const vd quotient =
        choose(small, numerator, filled(-2.0)) / choose(small, denominator, power + 1.0);
    return with_sign(choose(small, a, filled(1.0)) + quotient, x);
  }
};

#if !defined(__AVX512F__)
// The table of erf with the numbers of an interval side by side, padded to whole registers.
struct ErfRows {
  static constexpr int kWidth = (kErfTerms + kDoubles - 1) / kDoubles * kDoubles;
  double row[kErfIntervals][kWidth];
  constexpr ErfRows() : row() {
    for (int i = 0; i < kErfIntervals; ++i) {
      for (int t = 0; t < kErfTerms; ++t) row[i][t] = kErf[t * kErfIntervals + i];
    }
  }
};
alignas(64) constexpr ErfRows kErfRows;
#endif

// The numbers of the intervals in the last four bits of each lane: point, value and terms.
struct ErfTerms {
#if defined(__AVX512F__)
  vl interval[kD];
  PRISM_INLINE explicit ErfTerms(const vl (&lanes)[kD]) {
    PRISM_UNROLL for (int j = 0; j < kD; ++j) interval[j] = lanes[j];
  }
  PRISM_INLINE D16 get(int t) const {
    const __m512d low = _mm512_load_pd(kErf + t * kErfIntervals);
    const __m512d high = _mm512_load_pd(kErf + t * kErfIntervals + 8);
    D16 r;
    PRISM_UNROLL for (int j = 0; j < kD; ++j) {
      r.v[j] = (vd)_mm512_permutex2var_pd(low, (__m512i)interval[j], high);
    }
    return r;
  }
#else
  D16 term[ErfRows::kWidth];
  PRISM_INLINE explicit ErfTerms(const vl (&lanes)[kD]) {
    PRISM_UNROLL for (int j = 0; j < kD; ++j) {
      const vl interval = lanes[j] & (kErfIntervals - 1);
      const double* row[kDoubles];
      PRISM_UNROLL for (int i = 0; i < kDoubles; ++i) row[i] = kErfRows.row[interval[i]];
#if defined(__AVX2__)
      PRISM_UNROLL for (int t = 0; t < ErfRows::kWidth; t += 4) {
        const __m256d a = _mm256_load_pd(row[0] + t), b = _mm256_load_pd(row[1] + t);
        const __m256d c = _mm256_load_pd(row[2] + t), d = _mm256_load_pd(row[3] + t);
        const __m256d ab0 = _mm256_unpacklo_pd(a, b), ab1 = _mm256_unpackhi_pd(a, b);
        const __m256d cd0 = _mm256_unpacklo_pd(c, d), cd1 = _mm256_unpackhi_pd(c, d);
        term[t].v[j] = (vd)_mm256_permute2f128_pd(ab0, cd0, 0x20);
        term[t + 1].v[j] = (vd)_mm256_permute2f128_pd(ab1, cd1, 0x20);
        term[t + 2].v[j] = (vd)_mm256_permute2f128_pd(ab0, cd0, 0x31);
        term[t + 3].v[j] = (vd)_mm256_permute2f128_pd(ab1, cd1, 0x31);
      }
#else
      PRISM_UNROLL for (int t = 0; t < kErfTerms; ++t) term[t].v[j] = (vd){row[0][t], row[1][t]};
#endif
    }
  }
  PRISM_INLINE D16 get(int t) const { return term[t]; }
#endif
};

struct Erf {
  static constexpr int kTogether = 1;
  PRISM_INLINE static vl common(vd) { return (vl){} - 1; }
  template <bool>
  PRISM_INLINE static void of(D16& x) {
    constexpr int kSeries = kErfTerms - 2, kPairs = (kSeries + 1) / 2;
    vd d[kD], pair[kD][kPairs];
    vl interval[kD];
    PRISM_UNROLL for (int j = 0; j < kD; ++j) {
      d[j] = at_most(magnitude(x.v[j]), 6.0);
      interval[j] = (vl)(d[j] * kErfScale + kShift);
    }
    const ErfTerms terms(interval);
    const D16 point = terms.get(0);
    PRISM_UNROLL for (int j = 0; j < kD; ++j) d[j] = d[j] - point.v[j];
    // The first level of `polynomial`, so that a term is needed no longer than it is read.
    PRISM_UNROLL for (int p = 0; p < kPairs; ++p) {
      const D16 first = terms.get(2 + 2 * p);
      PRISM_UNROLL for (int j = 0; j < kD; ++j) pair[j][p] = first.v[j];
      if (2 * p + 1 < kSeries) {
        const D16 second = terms.get(3 + 2 * p);
        PRISM_UNROLL for (int j = 0; j < kD; ++j) pair[j][p] = pair[j][p] + second.v[j] * d[j];
      }
    }
    const D16 value = terms.get(1);
    PRISM_UNROLL for (int j = 0; j < kD; ++j) {
      const vd sum = d[j] + d[j] * polynomial(d[j] * d[j], pair[j]);
      x.v[j] = with_sign(value.v[j] + sum, x.v[j]);
    }
  }
};

PRISM_INLINE vd logarithm(vd u, vd correction, vl exponent) {
  const vl lifted = (vl)u - (kSqrtHalfBits - (std::int64_t{1023} << 52));
  const vd k = (vd)((vl)((vu)lifted >> 52) + (kShiftBits - 1023) - exponent) - kShift;
  const vd f = (vd)((lifted & (kExponentBits - 1)) + kSqrtHalfBits) - 1.0;
  const vd s = f / (f + 2.0);
  const vd z = s * s;
  const vd half = (f * f) * 0.5;
  const vd tail = s * (half + z * polynomial(z, kLog)) + (k * kLn2[1] + correction);
  return k * kLn2[0] - ((half - tail) - f);
}

// What a logarithm is where it is no number, `pole` being where it is -Inf.
PRISM_INLINE vd outside(vd y, vd x, double pole) {
  const vd below = choose(x == pole, filled(-__builtin_inf()), filled(__builtin_nan("")));
  y = choose(x > pole, y, below);
  return choose(x == __builtin_inf(), x, y);
}

struct Log {
  PRISM_INLINE static vl common(vd x) { return (x >= 0x1p-1022) & (x < __builtin_inf()); }
  template <bool whole>
  PRISM_INLINE static vd of(vd x) {
    if constexpr (!whole) return logarithm(x, vd{}, vl{});
    const vl subnormal = x < 0x1p-1022;
    const vd y = logarithm(choose(subnormal, x * 0x1p54, x), vd{}, subnormal & 54);
    return outside(y, x, 0.0);
  }
};

struct Log1p {
  PRISM_INLINE static vl common(vd x) { return (x > -1.0) & (x < __builtin_inf()); }
  template <bool whole>
  PRISM_INLINE static vd of(vd x) {
    const vd u = x + 1.0, part = u - 1.0;
    const vd lost = (1.0 - (u - part)) + (x - part);
    const vd y = with_sign(logarithm(u, lost / u, vl{}), x);
    return whole ? outside(y, x, -1.0) : y;
  }
};

// A function that is written for one register, on all of them.
template <class Function>
struct Each {
  static constexpr int kTogether = kD == 2 ? 2 : 1;
  PRISM_INLINE static vl common(vd x) { return Function::common(x); }
  template <bool whole>
  PRISM_INLINE static void of(D16& x) {
    PRISM_UNROLL for (int j = 0; j < kD; ++j) x.v[j] = Function::template of<whole>(x.v[j]);
  }
};

template <class Function>
__attribute__((noinline)) void evaluate_whole(D16& x) {
  Function::template of<true>(x);
}

PRISM_INLINE D16 load_binary64(const float* p) { return load_widened(p); }
PRISM_INLINE D16 load_binary64(const double* p) { return load(p); }

// Two groups at once where both are common: their chains of operations hide each other's latency.
template <class Function, class T>
__attribute__((noinline)) void evaluate(std::int64_t count, const T* x, double* out) {
  const std::int64_t groups = (count + kGroup - 1) / kGroup;
  for (std::int64_t g = 0; g < groups; g += Function::kTogether) {
    D16 y[Function::kTogether];
    const int n = groups - g < Function::kTogether ? 1 : Function::kTogether;
    PRISM_UNROLL for (int i = 0; i < Function::kTogether; ++i) {
      y[i] = load_binary64(x + (g + (i < n ? i : 0)) * kGroup);
    }
    vl common = (vl){} - 1;
    PRISM_UNROLL for (int i = 0; i < Function::kTogether; ++i) {
      PRISM_UNROLL for (int j = 0; j < kD; ++j) common &= Function::common(y[i].v[j]);
    }
    if (__builtin_expect(holds(common), 1)) {
      PRISM_UNROLL for (int i = 0; i < Function::kTogether; ++i) Function::template of<false>(y[i]);
    } else {
      for (int i = 0; i < n; ++i) evaluate_whole<Function>(y[i]);
    }
    store(out + g * kGroup, y[0]);
    if (n > 1) store(out + (g + 1) * kGroup, y[Function::kTogether - 1]);
  }
}

}  // namespace PRISM_ISA
}  // namespace prism
