// Sixteen lanes of arithmetic, whatever the width of the machine's registers.
//
// Included once per instruction set, inside its own namespace (PRISM_ISA).  The
// number of lanes is fixed at 16 because draws and packed panels are laid out in
// groups of 16; nothing visible may depend on the register width.
#pragma once

#include <cstdint>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#else
#include <cmath>
#endif

#define PRISM_ALWAYS __attribute__((always_inline))
#define PRISM_INLINE inline PRISM_ALWAYS
#define PRISM_UNROLL _Pragma("GCC unroll 16")

namespace prism {
namespace PRISM_ISA {

#if defined(__AVX512F__)
constexpr int kFloats = 16;
#elif defined(__AVX2__)
constexpr int kFloats = 8;
#else
constexpr int kFloats = 4;
#endif
constexpr int kDoubles = kFloats / 2;
constexpr int kLanes = 16;
constexpr int kF = kLanes / kFloats;   // registers that hold 16 floats
constexpr int kD = kLanes / kDoubles;  // registers that hold 16 doubles

typedef float vf __attribute__((vector_size(4 * kFloats)));
typedef std::int32_t vi __attribute__((vector_size(4 * kFloats)));
typedef double vd __attribute__((vector_size(8 * kDoubles)));
typedef std::int64_t vl __attribute__((vector_size(8 * kDoubles)));
typedef std::uint64_t vu __attribute__((vector_size(8 * kDoubles)));
typedef float vf_unaligned __attribute__((vector_size(4 * kFloats), aligned(4), may_alias));
typedef std::int64_t vl_unaligned __attribute__((vector_size(8 * kDoubles), aligned(8), may_alias));
typedef double vd_unaligned __attribute__((vector_size(8 * kDoubles), aligned(8), may_alias));

struct F16 {
  vf v[kF];
};
struct D16 {
  vd v[kD];
};
struct L16 {
  vl v[kD];
};

PRISM_INLINE F16 load(const float* p) {
  F16 r;
  PRISM_UNROLL for (int i = 0; i < kF; ++i) r.v[i] = *(const vf_unaligned*)(p + i * kFloats);
  return r;
}
PRISM_INLINE void store(float* p, F16 x) {
  PRISM_UNROLL for (int i = 0; i < kF; ++i) * (vf_unaligned*)(p + i * kFloats) = x.v[i];
}
PRISM_INLINE D16 load(const double* p) {
  D16 r;
  PRISM_UNROLL for (int i = 0; i < kD; ++i) r.v[i] = *(const vd_unaligned*)(p + i * kDoubles);
  return r;
}
PRISM_INLINE void store(double* p, D16 x) {
  PRISM_UNROLL for (int i = 0; i < kD; ++i) * (vd_unaligned*)(p + i * kDoubles) = x.v[i];
}
PRISM_INLINE F16 broadcast(float x) {
  F16 r;
  PRISM_UNROLL for (int i = 0; i < kF; ++i) r.v[i] = x - (vf){};
  return r;
}
PRISM_INLINE D16 broadcast(double x) {
  D16 r;
  PRISM_UNROLL for (int i = 0; i < kD; ++i) r.v[i] = x - (vd){};
  return r;
}

#define PRISM_BINARY(TYPE, NAME, COUNT, OP)                                 \
  PRISM_INLINE TYPE NAME(TYPE a, TYPE b) {                                  \
    TYPE r;                                                                 \
    PRISM_UNROLL for (int i = 0; i < COUNT; ++i) r.v[i] = a.v[i] OP b.v[i]; \
    return r;                                                               \
  }
PRISM_BINARY(F16, add, kF, +)
PRISM_BINARY(F16, sub, kF, -)
PRISM_BINARY(F16, mul, kF, *)
PRISM_BINARY(F16, div, kF, /)
PRISM_BINARY(D16, add, kD, +)
PRISM_BINARY(D16, sub, kD, -)
PRISM_BINARY(D16, mul, kD, *)
PRISM_BINARY(D16, div, kD, /)
#undef PRISM_BINARY

// Operations that vector types cannot say.

PRISM_INLINE D16 widen(F16 x) {
  D16 r;
#if defined(__AVX512F__)
  r.v[0] = (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x.v[0]));
  r.v[1] = (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x.v[0], 1));
#elif defined(__AVX2__)
  PRISM_UNROLL for (int i = 0; i < 2; ++i) {
    r.v[2 * i] = (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x.v[i]));
    r.v[2 * i + 1] = (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x.v[i], 1));
  }
#else
  PRISM_UNROLL for (int i = 0; i < kLanes; ++i) r.v[i / kDoubles][i % kDoubles] =
      x.v[i / kFloats][i % kFloats];
#endif
  return r;
}

// Sixteen floats in memory, widened while they are loaded.
PRISM_INLINE D16 load_widened(const float* p) {
  D16 r;
#if defined(__AVX512F__)
  r.v[0] = (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p));
  r.v[1] = (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p + 8));
#elif defined(__AVX2__)
  PRISM_UNROLL for (int i = 0; i < kD; ++i) r.v[i] = (vd)_mm256_cvtps_pd(_mm_loadu_ps(p + 4 * i));
#else
  r = widen(load(p));
#endif
  return r;
}

// Nearest binary32; exact where the lanes already hold binary32 values.
PRISM_INLINE F16 narrow(D16 x) {
  F16 r;
#if defined(__AVX512F__)
  r.v[0] = (vf)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)x.v[0])),
                                  _mm512_cvtpd_ps((__m512d)x.v[1]), 1);
#elif defined(__AVX2__)
  PRISM_UNROLL for (int i = 0; i < 2; ++i) {
    r.v[i] = (vf)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)x.v[2 * i + 1]),
                                 _mm256_cvtpd_ps((__m256d)x.v[2 * i]));
  }
#else
  PRISM_UNROLL for (int i = 0; i < kLanes; ++i) r.v[i / kFloats][i % kFloats] =
      (float)x.v[i / kDoubles][i % kDoubles];
#endif
  return r;
}

// a*b + c in binary64 for operands of 24 bits: the product is exact, one rounding.
PRISM_INLINE D16 fma(D16 a, D16 b, D16 c) {
  D16 r;
  PRISM_UNROLL for (int i = 0; i < kD; ++i) {
#if defined(__AVX512F__)
    r.v[i] = (vd)_mm512_fmadd_pd((__m512d)a.v[i], (__m512d)b.v[i], (__m512d)c.v[i]);
#elif defined(__AVX2__)
    r.v[i] = (vd)_mm256_fmadd_pd((__m256d)a.v[i], (__m256d)b.v[i], (__m256d)c.v[i]);
#else
    r.v[i] = a.v[i] * b.v[i] + c.v[i];
#endif
  }
  return r;
}

// a*b + c with one rounding for any operands.
PRISM_INLINE D16 fused(D16 a, D16 b, D16 c) {
#if defined(__AVX2__)
  return fma(a, b, c);
#else
  D16 r;
  for (int i = 0; i < kD; ++i) {
    for (int j = 0; j < kDoubles; ++j) {
      r.v[i][j] = __builtin_fma(a.v[i][j], b.v[i][j], c.v[i][j]);
    }
  }
  return r;
#endif
}

// `s` moved to an odd neighbour in the direction of `error`, the exact result less `s`.
PRISM_INLINE D16 to_odd(D16 s, D16 error) {
  PRISM_UNROLL for (int i = 0; i < kD; ++i) {
    const vl bits = (vl)s.v[i];
    const vl inexact = ((error.v[i] > 0) | (error.v[i] < 0)) & ((bits & 1) - 1);
    s.v[i] = (vd)(bits + (((((bits ^ (vl)error.v[i]) < 0) | 1)) & inexact));
  }
  return s;
}

// a*b + c for binary32 operands and its error: the product is exact.
PRISM_INLINE D16 sum_error(D16 a, D16 b, D16 s) {
  const D16 bb = sub(s, a);
  return add(sub(a, sub(s, bb)), sub(b, bb));
}

#if defined(__AVX2__)
PRISM_INLINE F16 fma(F16 a, F16 b, F16 c) {
  F16 r;
  PRISM_UNROLL for (int i = 0; i < kF; ++i) {
#if defined(__AVX512F__)
    r.v[i] = (vf)_mm512_fmadd_ps((__m512)a.v[i], (__m512)b.v[i], (__m512)c.v[i]);
#else
    r.v[i] = (vf)_mm256_fmadd_ps((__m256)a.v[i], (__m256)b.v[i], (__m256)c.v[i]);
#endif
  }
  return r;
}
#else
// Rounded to odd in binary64, then once to binary32: as if with one rounding.
PRISM_INLINE F16 fma(F16 a, F16 b, F16 c) {
  const D16 p = mul(widen(a), widen(b)), wide_c = widen(c), s = add(p, wide_c);
  return narrow(to_odd(s, sum_error(p, wide_c, s)));
}
#endif

PRISM_INLINE D16 sqrt(D16 x) {
  D16 r;
  PRISM_UNROLL for (int i = 0; i < kD; ++i) {
#if defined(__AVX512F__)
    r.v[i] = (vd)_mm512_sqrt_pd((__m512d)x.v[i]);
#elif defined(__AVX2__)
    r.v[i] = (vd)_mm256_sqrt_pd((__m256d)x.v[i]);
#else
    PRISM_UNROLL for (int j = 0; j < kDoubles; ++j) r.v[i][j] = __builtin_sqrt(x.v[i][j]);
#endif
  }
  return r;
}
PRISM_INLINE F16 sqrt(F16 x) {
  F16 r;
  PRISM_UNROLL for (int i = 0; i < kF; ++i) {
#if defined(__AVX512F__)
    r.v[i] = (vf)_mm512_sqrt_ps((__m512)x.v[i]);
#elif defined(__AVX2__)
    r.v[i] = (vf)_mm256_sqrt_ps((__m256)x.v[i]);
#else
    PRISM_UNROLL for (int j = 0; j < kFloats; ++j) r.v[i][j] = __builtin_sqrtf(x.v[i][j]);
#endif
  }
  return r;
}

// True when some lane is nonzero and smaller in magnitude than `bound`.
PRISM_INLINE bool any_tiny(D16 x, double bound) {
  // Zeros are told from other small numbers only where there are any of both.
#if defined(__AVX512F__)
  const __m512d limit = _mm512_set1_pd(bound), zero = _mm512_setzero_pd();
  const __m512d low = _mm512_abs_pd((__m512d)x.v[0]), high = _mm512_abs_pd((__m512d)x.v[1]);
  const __mmask8 small_low = _mm512_cmp_pd_mask(low, limit, _CMP_LT_OQ);
  const __mmask8 small_high = _mm512_cmp_pd_mask(high, limit, _CMP_LT_OQ);
  if (__builtin_expect((small_low | small_high) == 0, 1)) return false;
  return (_mm512_mask_cmp_pd_mask(small_low, low, zero, _CMP_NEQ_OQ) |
          _mm512_mask_cmp_pd_mask(small_high, high, zero, _CMP_NEQ_OQ)) != 0;
#elif defined(__AVX2__)
  const __m256d limit = _mm256_set1_pd(bound), zero = _mm256_setzero_pd();
  const __m256d sign = _mm256_set1_pd(-0.0);
  __m256d small[4], any = zero, some = zero;
  PRISM_UNROLL for (int i = 0; i < 4; ++i) {
    small[i] = _mm256_cmp_pd(_mm256_andnot_pd(sign, (__m256d)x.v[i]), limit, _CMP_LT_OQ);
    any = _mm256_or_pd(any, small[i]);
  }
  if (__builtin_expect(_mm256_movemask_pd(any) == 0, 1)) return false;
  PRISM_UNROLL for (int i = 0; i < 4; ++i) {
    const __m256d other = _mm256_cmp_pd((__m256d)x.v[i], zero, _CMP_NEQ_OQ);
    some = _mm256_or_pd(some, _mm256_and_pd(small[i], other));
  }
  return _mm256_movemask_pd(some) != 0;
#else
  bool any = false;
  PRISM_UNROLL for (int i = 0; i < kD; ++i) {
    PRISM_UNROLL for (int j = 0; j < kDoubles; ++j) {
      const double m = __builtin_fabs(x.v[i][j]);
      any |= m < bound && m != 0;
    }
  }
  return any;
#endif
}

}  // namespace PRISM_ISA
}  // namespace prism
