// Policies for the directed modes on machines without an instruction for them.
//
//   Directed64    the nearest result, one step up or down where its error says so
//   Controlled64  the machine's own arithmetic under its control of rounding, and of functions
//                 what Directed64 does
//   Directed32    the exact result rounded to odd in binary64, then 29 bits cut or carried
#pragma once

#include "policy64.h"

namespace prism {
namespace PRISM_ISA {

// cestac, zero, away, up and down on any machine: where a result goes.
struct Directed {
  using Draw = L16;  // all ones where an inexact result goes toward plus infinity in cestac
  explicit Directed(const Rounding& r) : mode(r.mode) {}
  const Mode mode;

  bool advances(int step) const { return mode == Mode::cestac && (step & 31) == 31; }
  Draw draw(const Generator& g, int step) const {
    return mode == Mode::cestac ? bit_lanes(g, step) : L16{};
  }
  // Lanes that round toward plus infinity.
  PRISM_INLINE vl upward(vd s, vl draw) const {
    const vl negative = (vl)s >> 63;
    if (mode == Mode::cestac) return draw;
    if (mode == Mode::up) return (vl){} - 1;
    if (mode == Mode::down) return (vl){};
    return mode == Mode::away ? ~negative : negative;
  }
  // IEEE 754: an exact zero sum of unlike terms is -0 when rounding down.
  template <Op op>
  PRISM_INLINE vl negative_zero(vd a, vd b, vd c, vd s, vd e, vl up) const {
    if constexpr (op != Op::add && op != Op::sub && op != Op::fma) return (vl){};
    const vd p = op == Op::fma ? a * b : a;
    const vd q = op == Op::fma ? c : (op == Op::sub ? -b : b);
    const vl unlike = ~((p == 0) & (((vl)p | (vl)q) >= 0));
    const vl down = mode == Mode::down ? (vl){} - 1 : mode == Mode::cestac ? ~up : (vl){};
    return (s == 0) & (e == 0) & unlike & down & ~kMagnitude;
  }
};

struct Directed64 : Native64<ToNearest>, Directed {
  using Directed::Directed;

  PRISM_INLINE static vl is_finite(vd x) { return ((vl)x & kMagnitude) < 0x7FF0000000000000; }

  // What a sum lacks: where finite terms overflow to Inf, an infinite amount (TwoSum says NaN).
  template <Op op>
  PRISM_INLINE static vd lacking(vd a, vd b, vd c, vd s, vd e) {
    if constexpr (op != Op::add && op != Op::sub && op != Op::fma) return e;
    const vl finite = is_finite(a) & is_finite(b) & (op == Op::fma ? is_finite(c) : (vl){} - 1);
    const vl overflows = finite & (((vl)s & kMagnitude) == 0x7FF0000000000000);
    return (vd)(((vl)-s & overflows) | ((vl)e & ~overflows));
  }

  template <Op op, bool>
  Wide apply(Wide a, Wide b, Wide c, const Draw& d) const {
    Split x = split<op>(a, b, c);
    PRISM_UNROLL for (int i = 0; i < kD; ++i) {
      const vd s = x.s.v[i];
      const vd e = lacking<op>(a.v[i], b.v[i], c.v[i], s, x.e.v[i]);
      const vl up = upward(s, d.v[i]);
      const vl moves = ((e > 0) & up) | ((e < 0) & ~up);
      const vl y = (vl)s + (step_toward(s, e) & moves);
      x.s.v[i] = (vd)(y | negative_zero<op>(a.v[i], b.v[i], c.v[i], s, e, up));
    }
    return x.s;
  }
  Wide round_wide(D16 s, const Draw& d) const {
    L16 grows;
    PRISM_UNROLL for (int i = 0; i < kD; ++i) {
      grows.v[i] = upward(s.v[i], d.v[i]) ^ ((vl)s.v[i] >> 63);
    }
    const D16 moved = step_up_or_down(s, grows);
    PRISM_UNROLL for (int i = 0; i < kD; ++i) {
      const vl exact = looks_exact(s.v[i]);
      s.v[i] = (vd)(((vl)s.v[i] & exact) | ((vl)moved.v[i] & ~exact));
    }
    return s;
  }
};

#if defined(__AVX2__)
template <class C>
struct Controlled64 : Plain64<C> {
  using typename Plain64<C>::Wide;
  using typename Plain64<C>::Draw;
  explicit Controlled64(const Rounding& r) : Plain64<C>(r), directed(r) {}
  const Directed64 directed;
  Wide round_wide(D16 s, Draw) const { return directed.round_wide(s, {}); }
};
#endif

// The same for binary32: the exact result rounded to odd in binary64, then 29 bits cut or
// carried.  Results that leave the normal numbers of binary32 are finished lane by lane.
struct Directed32 : Directed {
  using Elem = float;
  using Wide = D16;
  using Packed = double;
  using Control = ToNearest;
  static constexpr bool kUniform = false;
  explicit Directed32(const Rounding& r) : Directed(r), generic(r) {}
  const Generic<float> generic;

  PRISM_INLINE static Wide load(const float* p) { return load_widened(p); }
  PRISM_INLINE static void store(float* p, Wide x) { PRISM_ISA::store(p, narrow(x)); }

  template <Op op>
  PRISM_INLINE static Split split32(D16 a, D16 b, D16 c) {
    if constexpr (op == Op::mul) return {mul(a, b), D16{}};
    if constexpr (op == Op::round) return {a, D16{}};
    if constexpr (op == Op::fma) return two_sum(mul(a, b), c);
    if constexpr (op != Op::mul && op != Op::round && op != Op::fma) return split<op>(a, b, c);
  }

  template <Op op, bool>
  Wide apply(Wide a, Wide b, Wide c, const Draw& d) const {
    const Split x = split32<op>(a, b, c);
    const D16 odd = to_odd(x.s, x.e);
    D16 y;
    vl leaves = {};
    PRISM_UNROLL for (int i = 0; i < kD; ++i) {
      const vd s = odd.v[i];
      const vl up = upward(s, d.v[i]), bits = (vl)s;
      const vl carry = (up ^ (bits >> 63)) & 0x1FFFFFFF;
      const vl cut = (bits + carry) & ~((vl){} + 0x1FFFFFFF);
      y.v[i] = (vd)(cut | negative_zero<op>(a.v[i], b.v[i], c.v[i], x.s.v[i], x.e.v[i], up));
      const vl magnitude = bits & kMagnitude;
      // Zero stays; below 2^-126 more bits go, from 2^128 - 2^103 on there may be overflow.
      leaves |=
          (magnitude > 0) & ((magnitude < 0x3810000000000000) | (magnitude > 0x47EFFFFFDFFFFFFF));
    }
    if (__builtin_expect(any_lane(leaves), 0))
      return generic.template apply<op, true>(a, b, c, bits_of(d));
    return y;
  }
  Wide round_wide(D16 s, const Draw& d) const { return apply<Op::round, true>(s, s, s, d); }

 private:
  static bool any_lane(vl x) {
    bool any = false;
    PRISM_UNROLL for (int j = 0; j < kDoubles; ++j) any |= x[j] != 0;
    return any;
  }
  static Draws bits_of(const L16& d) {
    Draws bits;
    for (int i = 0; i < kLanes; ++i) {
      bits.u[i] = d.v[i / kDoubles][i % kDoubles] != 0 ? 1 : 0;
    }
    return bits;
  }
};

}  // namespace PRISM_ISA
}  // namespace prism
