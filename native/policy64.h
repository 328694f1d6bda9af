// Policies for binary64 tensors, which have no wider type to compute in.
//
//   Plain64     the machine's own arithmetic
//   Ud64        its nearest result, then one integer step up or down
//   Sr64        the nearest result and its error, exactly: one step toward the exact
//               result with probability error / step
//   Cestac64    the machine's directed rounding, per lane
#pragma once

#include "policy.h"

namespace prism {
namespace PRISM_ISA {

// The nearest result and what it lacks to the exact one.
struct Split {
  D16 s, e;
};

PRISM_INLINE D16 negate(D16 x) {
  PRISM_UNROLL for (int i = 0; i < kD; ++i) x.v[i] = -x.v[i];
  return x;
}

PRISM_INLINE Split two_sum(D16 a, D16 b) {
  const D16 s = add(a, b), bb = sub(s, a);
  return {s, add(sub(a, sub(s, bb)), sub(b, bb))};
}

template <Op op>
PRISM_INLINE D16 nearest(D16 a, D16 b, D16 c) {
  if constexpr (op == Op::add) return add(a, b);
  if constexpr (op == Op::sub) return sub(a, b);
  if constexpr (op == Op::mul) return mul(a, b);
  if constexpr (op == Op::div) return div(a, b);
  if constexpr (op == Op::sqrt) return sqrt(a);
  if constexpr (op == Op::fma) return fused(a, b, c);
}

template <Op op>
PRISM_INLINE Split split(D16 a, D16 b, D16 c) {
  if constexpr (op == Op::add) return two_sum(a, b);
  if constexpr (op == Op::sub) return two_sum(a, negate(b));
  if constexpr (op == Op::mul) {
    const D16 p = mul(a, b);
    return {p, fused(a, b, negate(p))};
  }
  if constexpr (op == Op::div) {
    const D16 q = div(a, b);
    return {q, div(fused(negate(q), b, a), b)};
  }
  if constexpr (op == Op::sqrt) {
    const D16 q = sqrt(a);
    return {q, div(fused(negate(q), q, a), add(q, q))};
  }
  if constexpr (op == Op::fma) {
    // The nearest result s is near t + t', the sum of p and c; s - t is exact, as t is zero or
    // at least as large as what both roundings lose (Boldo and Muller 2011).
    const D16 s = fused(a, b, c), p = mul(a, b);
    const Split t = two_sum(p, c);
    const D16 lacking = add(fused(a, b, negate(p)), t.e);
    return {s, sub(lacking, sub(s, t.s))};
  }
}

constexpr std::int64_t kMagnitude = 0x7FFFFFFFFFFFFFFF;

// All ones where x is negative.
PRISM_INLINE vl sign_lanes(vl x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return x < 0;  // no arithmetic shift of 64 bits
#else
  return x >> 63;
#endif
}

// +1 where x grows in magnitude toward the sign of e, -1 elsewhere.
PRISM_INLINE vl step_toward(vd x, vd e) { return sign_lanes((vl)x ^ (vl)e) | 1; }

// Lanes of all ones where the bit is set.
PRISM_INLINE L16 bit_lanes(const Generator& g, int step) {
  L16 r;
#if defined(__AVX512F__)
  const __mmask16 m = bit_draw(g, step);
  r.v[0] = (vl)_mm512_movm_epi64((__mmask8)m);
  r.v[1] = (vl)_mm512_movm_epi64((__mmask8)(m >> 8));
#elif defined(__AVX2__)
  const __m128i shift = _mm_cvtsi32_si128(31 - (step & 31));
  PRISM_UNROLL for (int i = 0; i < 4; ++i) {
    const __m128i sign = _mm_srai_epi32(_mm_sll_epi32(g.s[i], shift), 31);
    r.v[i] = (vl)_mm256_cvtepi32_epi64(sign);
  }
#else
  std::uint32_t w[kLanes];
  g.words(w);
  for (int c = 0; c < kLanes; ++c) {
    r.v[c / kDoubles][c % kDoubles] = -(std::int64_t)((w[c] >> (step & 31)) & 1);
  }
#endif
  return r;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Lanes whose sign is the bit.
PRISM_INLINE L16 bit_signs(const Generator& g, int step) {
  L16 r;
  const __m128i shift = _mm_cvtsi32_si128(63 - (step & 31));
  PRISM_UNROLL for (int i = 0; i < 4; ++i) {
    r.v[i] = (vl)_mm256_sll_epi64(_mm256_cvtepu32_epi64(g.s[i]), shift);
  }
  return r;
}
#endif

// Zero, Inf and NaN stay; any other number moves one step, up in magnitude where set.
PRISM_INLINE D16 step_up_or_down(D16 x, L16 up) {
  PRISM_UNROLL for (int i = 0; i < kD; ++i) {
    const vl below = ((vl)x.v[i] & kMagnitude) - 1;
    const vl moves = (below > -1) & (below < 0x7FEFFFFFFFFFFFFF);
    x.v[i] = (vd)((vl)x.v[i] + ((~up.v[i] | 1) & moves));
  }
  return x;
}

// A value of which only the nearest binary64 number is known (a transcendental function):
// its last bits tell nothing about the rest, unless they are zero as in an exact result.
PRISM_INLINE vl looks_exact(vd x) { return ((vl)x & 0xFFFFFF) == 0; }

template <class C>
struct Native64 {
  using Elem = double;
  using Wide = D16;
  using Packed = double;
  using Control = C;
  static constexpr bool kUniform = false;
  PRISM_INLINE static Wide load(const double* p) { return PRISM_ISA::load(p); }
  PRISM_INLINE static void store(double* p, Wide x) { PRISM_ISA::store(p, x); }
};

template <class C>
struct Plain64 : Native64<C> {
  using typename Native64<C>::Wide;
  struct Draw {};
  explicit Plain64(const Rounding&) {}
  PRISM_INLINE static bool advances(int) { return false; }
  PRISM_INLINE static Draw draw(const Generator&, int) { return {}; }
  template <Op op, bool>
  PRISM_INLINE Wide apply(Wide a, Wide b, Wide c, Draw) const {
    return nearest<op>(a, b, c);
  }
  PRISM_INLINE Wide round_wide(D16 s, Draw) const { return s; }
};

struct Ud64 : Native64<ToNearest> {
  explicit Ud64(const Rounding&) {}
  PRISM_INLINE static bool advances(int step) { return (step & 31) == 31; }
#if defined(__AVX512F__)
  using Draw = BitDraw;
  PRISM_INLINE static Draw draw(const Generator& g, int step) { return bit_draw(g, step); }
  PRISM_INLINE static D16 step(D16 x, BitDraw up) {
    PRISM_UNROLL for (int i = 0; i < 2; ++i) {
      const __m512d value = (__m512d)x.v[i];
      const __m512i delta = _mm512_mask_blend_epi64((__mmask8)(up >> (8 * i)),
                                                    _mm512_set1_epi64(-1), _mm512_set1_epi64(1));
      const __m512i moved = _mm512_add_epi64(_mm512_castpd_si512(value), delta);
      x.v[i] =
          (vd)_mm512_fixupimm_pd(_mm512_castsi512_pd(moved), value, _mm512_set1_epi64(kFixed), 0);
    }
    return x;
  }
#elif defined(__AVX2__)
  using Draw = L16;  // the sign is the draw
  PRISM_INLINE static Draw draw(const Generator& g, int step) { return bit_signs(g, step); }
  PRISM_INLINE static D16 step(D16 x, const Draw& up) {
    PRISM_UNROLL for (int i = 0; i < kD; ++i) {
      // Twice a number differs from it, but for zero, Inf and NaN.
      const __m256d value = (__m256d)x.v[i];
      const __m256d moves = _mm256_cmp_pd(value, _mm256_add_pd(value, value), _CMP_NEQ_OQ);
      const __m256d delta = _mm256_blendv_pd((__m256d)(__m256i)((vl){} - 1),
                                             (__m256d)(__m256i)((vl){} + 1), (__m256d)up.v[i]);
      x.v[i] = (vd)((vl)value + ((vl)delta & (vl)moves));
    }
    return x;
  }
#else
  using Draw = L16;
  PRISM_INLINE static Draw draw(const Generator& g, int step) { return bit_lanes(g, step); }
  PRISM_INLINE static D16 step(D16 x, const Draw& up) { return step_up_or_down(x, up); }
#endif
  template <Op op, bool>
  PRISM_INLINE Wide apply(Wide a, Wide b, Wide c, const Draw& d) const {
    return step(nearest<op>(a, b, c), d);
  }
  PRISM_INLINE Wide round_wide(D16 s, const Draw& d) const { return step(s, d); }
};

struct Sr64 : Native64<ToNearest> {
  static constexpr bool kUniform = true;
  using Draw = L16;
  explicit Sr64(const Rounding&) {}
  PRISM_INLINE static bool advances(int) { return true; }
  PRISM_INLINE static Draw draw(const Generator& g, int) { return g.uniform(); }
  template <Op op, bool>
  PRISM_INLINE Wide apply(Wide a, Wide b, Wide c, const Draw& d) const {
    Split x = split<op>(a, b, c);
    PRISM_UNROLL for (int i = 0; i < kD; ++i) {
      const vd s = x.s.v[i], e = x.e.v[i];
      const vd next = (vd)((vl)s + step_toward(s, e));
      const vd gap = (vd)((vl)(next - s) & kMagnitude);
      // The draw as a fraction of 1: its bits under the exponent of 2^23.
      const vd u = (vd)(d.v[i] | 0x4160000000000000) - 0x1p23;
      x.s.v[i] = u * gap < (vd)((vl)e & kMagnitude) ? next : s;
    }
    return x.s;
  }
  // One step up or down, each with probability 1/8: a fraction uniform within half an ulp.
  PRISM_INLINE Wide round_wide(D16 s, const Draw& d) const {
    L16 up;
    PRISM_UNROLL for (int i = 0; i < kD; ++i) up.v[i] = d.v[i] >= (7 << 26);
    const D16 moved = step_up_or_down(s, up);
    PRISM_UNROLL for (int i = 0; i < kD; ++i) {
      const vl moves = (up.v[i] | (d.v[i] < (1 << 26))) & ~looks_exact(s.v[i]);
      s.v[i] = (vd)(((vl)moved.v[i] & moves) | ((vl)s.v[i] & ~moves));
    }
    return s;
  }
};

#if defined(__AVX512F__)
struct Cestac64 : Native64<ToNearest> {
  using Draw = __mmask16;
  explicit Cestac64(const Rounding&) {}
  PRISM_INLINE static bool advances(int step) { return (step & 31) == 31; }
  PRISM_INLINE static Draw draw(const Generator& g, int step) { return bit_draw(g, step); }
  template <Op op>
  PRISM_INLINE static __m512d directed(__m512d a, __m512d b, __m512d c, __mmask8 up) {
    constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
    constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    if constexpr (op == Op::add) {
      return _mm512_mask_add_round_pd(_mm512_add_round_pd(a, b, kDown), up, a, b, kUp);
    } else if constexpr (op == Op::sub) {
      return _mm512_mask_sub_round_pd(_mm512_sub_round_pd(a, b, kDown), up, a, b, kUp);
    } else if constexpr (op == Op::mul) {
      return _mm512_mask_mul_round_pd(_mm512_mul_round_pd(a, b, kDown), up, a, b, kUp);
    } else if constexpr (op == Op::div) {
      return _mm512_mask_div_round_pd(_mm512_div_round_pd(a, b, kDown), up, a, b, kUp);
    } else if constexpr (op == Op::sqrt) {
      return _mm512_mask_sqrt_round_pd(_mm512_sqrt_round_pd(a, kDown), up, a, kUp);
    } else {
      const __m512d r = _mm512_mask3_fmadd_round_pd(a, b, c, up, kUp);
      return _mm512_mask3_fmadd_round_pd(a, b, r, _knot_mask8(up), kDown);
    }
  }
  template <Op op, bool>
  PRISM_INLINE Wide apply(Wide a, Wide b, Wide c, Draw up) const {
    PRISM_UNROLL for (int i = 0; i < 2; ++i) {
      a.v[i] = (vd)directed<op>((__m512d)a.v[i], (__m512d)b.v[i], (__m512d)c.v[i],
                                (__mmask8)(up >> (8 * i)));
    }
    return a;
  }
  PRISM_INLINE Wide round_wide(D16 s, Draw up) const {
    L16 lanes;
    PRISM_UNROLL for (int i = 0; i < 2; ++i) {
      // Up means toward plus infinity here, away from zero in step_up_or_down.
      lanes.v[i] = (vl)_mm512_movm_epi64((__mmask8)(up >> (8 * i))) ^ ((vl)s.v[i] >> 63);
    }
    const D16 moved = step_up_or_down(s, lanes);
    PRISM_UNROLL for (int i = 0; i < 2; ++i) { s.v[i] = looks_exact(s.v[i]) ? s.v[i] : moved.v[i]; }
    return s;
  }
};
#elif defined(__AVX2__)
// As Cestac32: the draw is a sign that is lent to an operation rounded down.
struct Cestac64 : Native64<Downward> {
  using Draw = L16;  // the sign is the draw
  explicit Cestac64(const Rounding&) {}
  PRISM_INLINE static bool advances(int step) { return (step & 31) == 31; }
  PRISM_INLINE static Draw draw(const Generator& g, int step) {
    L16 r = bit_signs(g, step);
    PRISM_UNROLL for (int i = 0; i < kD; ++i) r.v[i] &= ~kMagnitude;
    return r;
  }
  PRISM_INLINE static D16 flip(D16 x, const Draw& d) {
    PRISM_UNROLL for (int i = 0; i < kD; ++i) x.v[i] = (vd)((vl)x.v[i] ^ d.v[i]);
    return x;
  }
  template <Op op, bool>
  PRISM_INLINE Wide apply(Wide a, Wide b, Wide c, const Draw& up) const {
    if constexpr (op != Op::sqrt) {
      return lent_sign<op>(a, b, c, [&](Wide x) PRISM_ALWAYS { return flip(x, up); });
    } else {
      D16 r = PRISM_ISA::sqrt(a);
      PRISM_UNROLL for (int i = 0; i < kD; ++i) {
        const __m256d root = (__m256d)r.v[i];
        const vl short_of = (vl)(_mm256_fmsub_pd(root, root, (__m256d)a.v[i]) < 0);
        r.v[i] = (vd)((vl)root - (short_of & (up.v[i] < 0)));
      }
      return r;
    }
  }
  PRISM_INLINE Wide round_wide(D16 s, const Draw& up) const {
    L16 grows;
    PRISM_UNROLL for (int i = 0; i < kD; ++i) grows.v[i] = (up.v[i] ^ (vl)s.v[i]) < 0;
    const D16 moved = step_up_or_down(s, grows);
    PRISM_UNROLL for (int i = 0; i < kD; ++i) s.v[i] = looks_exact(s.v[i]) ? s.v[i] : moved.v[i];
    return s;
  }
};
#endif

}  // namespace PRISM_ISA
}  // namespace prism
