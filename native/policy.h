// Policies: one way each of rounding sixteen lanes, chosen once per kernel call.
//
//   Sr32      sr to binary32: binary64 lanes, add 29 random bits, truncate
//   Plain32   rn, and up, down and zero under the machine's own control of rounding
//   Ud32      the machine's nearest result, then one integer step up or down
//   Cestac32  the machine's directed rounding, per lane
//   Generic   everything else
//
// A policy names its working registers (Wide), the type of packed operands
// (Packed) and the draw of one step (Draw).  `apply<op, ranged>` rounds one
// operation; `round_wide` rounds a binary64 input.  `advances(step)` says after which steps the
// generator advances: possibly all if `kUniform`, else multiples of 32 at most.  While a policy
// computes, a `typename P::Control` must be alive, which sets how the machine rounds.
#pragma once

#include "control.h"
#include "generator.h"
#include "generic.h"

namespace prism {
namespace PRISM_ISA {

struct Sr32 {
  using Elem = float;
  using Wide = D16;
  using Packed = double;
  using Draw = L16;
  using Control = ToNearest;
  static constexpr bool kUniform = true;
  explicit Sr32(const Rounding& r) : rounding(r) {}
  const Rounding& rounding;

  PRISM_INLINE static bool advances(int) { return true; }
  PRISM_INLINE static Draw draw(const Generator& g, int) { return g.uniform(); }
  PRISM_INLINE static Wide load(const float* p) { return load_widened(p); }
  PRISM_INLINE static void store(float* p, Wide x) { PRISM_ISA::store(p, narrow(x)); }

  template <bool ranged>
  PRISM_INLINE Wide truncate(Wide s, Draw d) const {
    Wide y;
    PRISM_UNROLL for (int i = 0; i < kD; ++i) {
      y.v[i] = (vd)(((vl)s.v[i] + d.v[i]) & ~((vl){} + ((1 << 29) - 1)));
    }
    if constexpr (ranged) {
      // Below the smallest normal number more bits are discarded: rare, lane by lane.
      if (__builtin_expect(any_tiny(s, 0x1p-126), 0)) {
        // Through memory that only this branch writes.
        double lanes[kLanes], rounded[kLanes];
        std::int64_t draws[kLanes];
        PRISM_ISA::store(lanes, s);
        PRISM_ISA::store(rounded, y);
        PRISM_UNROLL for (int i = 0; i < kD; ++i) * (vl_unaligned*)(draws + i * kDoubles) = d.v[i];
        finish_tiny(lanes, draws, rounded);
        y = PRISM_ISA::load(rounded);
      }
    }
    return y;
  }

  __attribute__((noinline)) void finish_tiny(const double* s, const std::int64_t* d,
                                             double* y) const {
    for (int i = 0; i < kLanes; ++i) {
      if (s[i] > -0x1p-126 && s[i] < 0x1p-126) {
        y[i] = round_lane<Mode::sr, true>(s[i], (std::uint32_t)d[i], rounding);
      }
    }
  }

  template <Op op, bool ranged>
  PRISM_INLINE Wide apply(Wide a, Wide b, Wide c, Draw d) const {
    if constexpr (op == Op::add) return truncate<ranged>(add(a, b), d);
    if constexpr (op == Op::sub) return truncate<ranged>(sub(a, b), d);
    if constexpr (op == Op::mul) return truncate<ranged>(mul(a, b), d);
    if constexpr (op == Op::div) return truncate<ranged>(div(a, b), d);
    if constexpr (op == Op::sqrt) return truncate<ranged>(sqrt(a), d);
    if constexpr (op == Op::fma) return truncate<ranged>(fma(a, b, c), d);
  }

  PRISM_INLINE Wide round_wide(D16 s, Draw d) const {
    Wide y = truncate<true>(s, d);
    // A NaN with a full payload would carry into its sign and vanish.
    PRISM_UNROLL for (int i = 0; i < kD; ++i) { y.v[i] = s.v[i] == s.v[i] ? y.v[i] : s.v[i]; }
    return y;
  }
};

template <class C>
struct Native32 {
  using Elem = float;
  using Wide = F16;
  using Packed = float;
  using Control = C;
  static constexpr bool kUniform = false;
  PRISM_INLINE static Wide load(const float* p) { return PRISM_ISA::load(p); }
  PRISM_INLINE static void store(float* p, Wide x) { PRISM_ISA::store(p, x); }
};

template <Op op>
PRISM_INLINE F16 nearest(F16 a, F16 b, F16 c) {
  if constexpr (op == Op::add) return add(a, b);
  if constexpr (op == Op::sub) return sub(a, b);
  if constexpr (op == Op::mul) return mul(a, b);
  if constexpr (op == Op::div) return div(a, b);
  if constexpr (op == Op::sqrt) return sqrt(a);
  if constexpr (op == Op::fma) return fma(a, b, c);
}

template <class C>
struct Plain32 : Native32<C> {
  using typename Native32<C>::Wide;
  struct Draw {};
  explicit Plain32(const Rounding&) {}
  PRISM_INLINE static bool advances(int) { return false; }
  PRISM_INLINE static Draw draw(const Generator&, int) { return {}; }
  template <Op op, bool ranged>
  PRISM_INLINE Wide apply(Wide a, Wide b, Wide c, Draw) const {
    return nearest<op>(a, b, c);
  }
  PRISM_INLINE Wide round_wide(D16 s, Draw) const { return narrow(s); }
};

#if defined(__AVX512F__)
typedef __mmask16 BitDraw;
PRISM_INLINE BitDraw bit_draw(const Generator& g, int step) {
  return _mm512_test_epi32_mask(g.s, _mm512_set1_epi32(1 << (step & 31)));
}
// Which classes of numbers VFIXUPIMM takes back from its source: quiet and signalling NaN,
// zero, and both infinities.
constexpr int kFixed = 0x00110111;
// Zero, Inf and NaN stay; any other number moves one step, up where the draw is set.
PRISM_INLINE F16 step_up_or_down(F16 x, BitDraw up) {
  const __m512 value = (__m512)x.v[0];
  const __m512i delta = _mm512_mask_blend_epi32(up, _mm512_set1_epi32(-1), _mm512_set1_epi32(1));
  const __m512i moved = _mm512_add_epi32(_mm512_castps_si512(value), delta);
  F16 r;
  r.v[0] = (vf)_mm512_fixupimm_ps(_mm512_castsi512_ps(moved), value, _mm512_set1_epi32(kFixed), 0);
  return r;
}
#else
struct BitDraw {
  vi word[kF];  // the sign is the draw
};
PRISM_INLINE BitDraw bit_draw(const Generator& g, int step) {
  BitDraw d;
#if defined(__AVX2__)
  const __m128i shift = _mm_cvtsi32_si128(31 - (step & 31));
  PRISM_UNROLL for (int i = 0; i < 2; ++i) d.word[i] = (vi)_mm256_sll_epi32(g.pair(i), shift);
#else
  std::uint32_t w[kLanes];
  g.words(w);
  PRISM_UNROLL for (int i = 0; i < kF; ++i) {
    vi words;
    __builtin_memcpy(&words, w + i * kFloats, sizeof words);
    d.word[i] = words << (31 - (step & 31));
  }
#endif
  return d;
}
PRISM_INLINE F16 step_up_or_down(F16 x, const BitDraw& d) {
  PRISM_UNROLL for (int i = 0; i < kF; ++i) {
    const vi bits = (vi)x.v[i];
    // Twice a number differs from it, but for zero, Inf and NaN.
#if defined(__AVX2__)
    const __m256 value = (__m256)x.v[i];
    const __m256 moves = _mm256_cmp_ps(value, _mm256_add_ps(value, value), _CMP_NEQ_OQ);
    // -1 where it moves, negated where the sign of the (then nonzero) word is set.
    const __m256i word = _mm256_or_si256((__m256i)d.word[i], _mm256_set1_epi32(1));
    x.v[i] = (vf)(bits + (vi)_mm256_sign_epi32(_mm256_castps_si256(moves), word));
#else
    const vf twice = x.v[i] + x.v[i];
    const vi moves = (x.v[i] < twice) | (x.v[i] > twice);
    x.v[i] = (vf)(bits + ((~(d.word[i] >> 31) | 1) & moves));
#endif
  }
  return x;
}
#endif

struct Ud32 : Native32<ToNearest> {
  using Draw = BitDraw;
  explicit Ud32(const Rounding&) {}
  PRISM_INLINE static bool advances(int step) { return (step & 31) == 31; }
  PRISM_INLINE static Draw draw(const Generator& g, int step) { return bit_draw(g, step); }
  template <Op op, bool ranged>
  PRISM_INLINE Wide apply(Wide a, Wide b, Wide c, Draw d) const {
    return step_up_or_down(nearest<op>(a, b, c), d);
  }
  PRISM_INLINE Wide round_wide(D16 s, Draw d) const { return step_up_or_down(narrow(s), d); }
};

#if defined(__AVX512F__)
struct Cestac32 : Native32<ToNearest> {
  using Draw = BitDraw;
  explicit Cestac32(const Rounding&) {}
  PRISM_INLINE static bool advances(int step) { return (step & 31) == 31; }
  PRISM_INLINE static Draw draw(const Generator& g, int step) { return bit_draw(g, step); }
  template <Op op, bool ranged>
  PRISM_INLINE Wide apply(Wide wa, Wide wb, Wide wc, Draw up) const {
    constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
    constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    const __m512 a = (__m512)wa.v[0], b = (__m512)wb.v[0], c = (__m512)wc.v[0];
    __m512 r;
    if constexpr (op == Op::add) {
      r = _mm512_mask_add_round_ps(_mm512_add_round_ps(a, b, kDown), up, a, b, kUp);
    } else if constexpr (op == Op::sub) {
      r = _mm512_mask_sub_round_ps(_mm512_sub_round_ps(a, b, kDown), up, a, b, kUp);
    } else if constexpr (op == Op::mul) {
      r = _mm512_mask_mul_round_ps(_mm512_mul_round_ps(a, b, kDown), up, a, b, kUp);
    } else if constexpr (op == Op::div) {
      r = _mm512_mask_div_round_ps(_mm512_div_round_ps(a, b, kDown), up, a, b, kUp);
    } else if constexpr (op == Op::sqrt) {
      r = _mm512_mask_sqrt_round_ps(_mm512_sqrt_round_ps(a, kDown), up, a, kUp);
    } else {
      // Complementary masks write each lane once, in place: no blend.
      r = _mm512_mask3_fmadd_round_ps(a, b, c, up, kUp);
      r = _mm512_mask3_fmadd_round_ps(a, b, r, _knot_mask16(up), kDown);
    }
    F16 out;
    out.v[0] = (vf)r;
    return out;
  }
  PRISM_INLINE Wide round_wide(D16 s, Draw up) const {
    constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
    constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    __m256 half[2];
    PRISM_UNROLL for (int i = 0; i < 2; ++i) {
      const __m512d x = (__m512d)s.v[i];
      half[i] = _mm512_mask_cvt_roundpd_ps(_mm512_cvt_roundpd_ps(x, kDown),
                                           (__mmask8)(up >> (8 * i)), x, kUp);
    }
    F16 out;
    out.v[0] = (vf)_mm512_insertf32x8(_mm512_castps256_ps512(half[0]), half[1], 1);
    return out;
  }
};
#elif defined(__AVX2__)
// An operation between changes of sign: on the operands that carry the sign of its result, and
// back.
template <Op op, class W, class Flip>
PRISM_INLINE W lent_sign(W a, W b, W c, Flip flip) {
  if constexpr (op == Op::add) return flip(add(flip(a), flip(b)));
  if constexpr (op == Op::sub) return flip(sub(flip(a), flip(b)));
  if constexpr (op == Op::mul) return flip(mul(flip(a), b));
  if constexpr (op == Op::div) return flip(div(flip(a), b));
  if constexpr (op == Op::fma) return flip(fma(flip(a), b, flip(c)));
}

// While the machine rounds down, -(-x) is x rounded up: the draw is the sign that is lent to an
// operation and taken back from its result.
struct Cestac32 : Native32<Downward> {
  using Draw = BitDraw;
  explicit Cestac32(const Rounding&) {}
  PRISM_INLINE static bool advances(int step) { return (step & 31) == 31; }
  PRISM_INLINE static Draw draw(const Generator& g, int step) {
    Draw d = bit_draw(g, step);
    PRISM_UNROLL for (int i = 0; i < kF; ++i) d.word[i] &= (vi){} + (1 << 31);
    return d;
  }
  PRISM_INLINE static F16 flip(F16 x, const Draw& d) {
    PRISM_UNROLL for (int i = 0; i < kF; ++i) x.v[i] = (vf)((vi)x.v[i] ^ d.word[i]);
    return x;
  }
  template <Op op, bool ranged>
  PRISM_INLINE Wide apply(Wide a, Wide b, Wide c, const Draw& up) const {
    if constexpr (op != Op::sqrt) {
      return lent_sign<op>(a, b, c, [&](Wide x) PRISM_ALWAYS { return flip(x, up); });
    } else {
      // A root has no sign to lend: the next number where its square falls short.
      F16 r = PRISM_ISA::sqrt(a);
      PRISM_UNROLL for (int i = 0; i < kF; ++i) {
        const __m256 root = (__m256)r.v[i];
        const vi short_of = (vi)(_mm256_fmsub_ps(root, root, (__m256)a.v[i]) < 0);
        r.v[i] = (vf)((vi)root - (short_of & (up.word[i] >> 31)));
      }
      return r;
    }
  }
  PRISM_INLINE Wide round_wide(D16 s, const Draw& up) const {
    PRISM_UNROLL for (int i = 0; i < kD; ++i) {
      const __m128i half = _mm256_extracti128_si256((__m256i)up.word[i / 2], 1);
      const __m128i words = i % 2 ? half : _mm256_castsi256_si128((__m256i)up.word[i / 2]);
      s.v[i] = (vd)((vl)s.v[i] ^ (vl)_mm256_slli_epi64(_mm256_cvtepu32_epi64(words), 32));
    }
    return flip(narrow(s), up);
  }
};
#endif

template <class T>
struct Generic {
  using Elem = T;
  using Wide = D16;
  using Packed = double;
  using Draw = Draws;
  using Control = ToNearest;
  static constexpr bool kUniform = true;
  explicit Generic(const Rounding& r)
      : rounding(r),
        uniform(r.uniform()),
        bits(r.bits()),
        exempt(sizeof(T) == 4 && r.uniform() && r.binary32()) {}
  const Rounding& rounding;
  const bool uniform, bits;
  const bool exempt;  // sr to binary32 keeps the exponents of binary64 within a chain

  bool advances(int step) const { return uniform || (bits && (step & 31) == 31); }
  Draw draw(const Generator& g, int step) const {
    Draws d = {};
    std::uint32_t w[kLanes];
    g.words(w);
    if (uniform) {
      for (int c = 0; c < 8; ++c) d.u[c] = w[2 * c] & ((1u << 29) - 1);
      for (int c = 0; c < 8; ++c) d.u[8 + c] = w[2 * c + 1] >> 3;
    } else if (bits) {
      for (int c = 0; c < kLanes; ++c) d.u[c] = (w[c] >> (step & 31)) & 1;
    }
    return d;
  }
  PRISM_INLINE static Wide load(const float* p) { return load_widened(p); }
  PRISM_INLINE static Wide load(const double* p) { return PRISM_ISA::load(p); }
  PRISM_INLINE static void store(float* p, Wide x) { PRISM_ISA::store(p, narrow(x)); }
  PRISM_INLINE static void store(double* p, Wide x) { PRISM_ISA::store(p, x); }

  template <Op op, bool ranged>
  Wide apply(Wide a, Wide b, Wide c, const Draw& d) const {
    Lanes la, lb, lc, out;
    PRISM_ISA::store(la.v, a);
    PRISM_ISA::store(lb.v, b);
    PRISM_ISA::store(lc.v, c);
    apply_generic<T, op>(la, lb, lc, d, rounding, ranged || !exempt, out);
    return PRISM_ISA::load(out.v);
  }
  Wide round_wide(D16 s, const Draw& d) const { return apply<Op::round, true>(s, s, s, d); }
};

}  // namespace PRISM_ISA
}  // namespace prism
