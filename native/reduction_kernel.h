// Reductions and scans: the order of additions is that of backends/protocol.py.
#pragma once

#include <type_traits>

#include "kernels.h"
#include "policies.h"

namespace prism {
namespace PRISM_ISA {

template <Reduction kind>
constexpr Op kCombine = kind == Reduction::prod ? Op::mul : Op::add;

PRISM_INLINE F16 magnitude(F16 x) {
  PRISM_UNROLL for (int i = 0; i < kF; ++i) { x.v[i] = (vf)((vi)x.v[i] & ((vi){} + 0x7FFFFFFF)); }
  return x;
}
PRISM_INLINE D16 magnitude(D16 x) {
  PRISM_UNROLL for (int i = 0; i < kD; ++i) {
    x.v[i] = (vd)((vl)x.v[i] & ((vl){} + 0x7FFFFFFFFFFFFFFF));
  }
  return x;
}

template <class P, Reduction kind, bool ranged>
PRISM_INLINE typename P::Wide first_term(const P& policy, typename P::Wide x, typename P::Wide y,
                                         typename P::Draw d) {
  if constexpr (kind == Reduction::sum_abs) return magnitude(x);
  if constexpr (kind == Reduction::dot) return policy.template apply<Op::mul, ranged>(x, y, x, d);
  return x;
}

template <class P, Reduction kind, bool ranged>
PRISM_INLINE typename P::Wide next_term(const P& policy, typename P::Wide acc, typename P::Wide x,
                                        typename P::Wide y, typename P::Draw d) {
  if constexpr (kind == Reduction::sum_abs) {
    return policy.template apply<Op::add, ranged>(acc, magnitude(x), acc, d);
  }
  if constexpr (kind == Reduction::dot) {
    return policy.template apply<Op::fma, ranged>(x, y, acc, d);
  }
  return policy.template apply<kCombine<kind>, ranged>(acc, x, acc, d);
}

// Thirty-two lanes in two groups of registers.
template <class P>
struct Lanes32 {
  typename P::Wide v[2];
};

// One level of a reduction: a chain of totals from the level below.
template <class P, Reduction kind>
struct Level {
  const P& policy;
  const Key& key;
  std::uint64_t row, block;
  Lanes32<P> value = {};
  Generator generator[2];
  int step = 0;        // of the next term
  bool empty = true;   // the next term starts a new chain
  bool ready = false;  // the generators stand at `step`

  PRISM_INLINE Level(const P& p, const Key& k, std::uint64_t r, std::uint64_t b)
      : policy(p), key(k), row(r), block(b) {}

  PRISM_INLINE void advance(int at) {
    PRISM_UNROLL for (int g = 0; g < 2; ++g) {
      if (policy.advances(at)) generator[g].advance(key);
    }
  }

  // Most reductions are too short to need the generators of the upper levels.
  inline void join(const Lanes32<P>& term) {
    if (empty) {
      value = term;
      if (ready) advance(step);
    } else {
      if (!ready) {
        PRISM_UNROLL for (int g = 0; g < 2; ++g) generator[g] = Generator(key, row, block, g);
        for (int s = 0; s < step; ++s) advance(s);
        ready = true;
      }
      PRISM_UNROLL for (int g = 0; g < 2; ++g) {
        const typename P::Draw d = policy.draw(generator[g], step);
        value.v[g] = policy.template apply<kCombine<kind>, kind == Reduction::prod>(
            value.v[g], term.v[g], term.v[g], d);
      }
      advance(step);
    }
    empty = false;
    ++step;
  }
};

template <class P, Reduction kind>
struct ChunkSum {
  static constexpr bool kRanged = kind == Reduction::prod;
  // Two groups of lanes with uniform draws do not fit sixteen registers.
#if defined(__AVX2__) && !defined(__AVX512F__)
  static constexpr bool kApart = P::kUniform;
#else
  static constexpr bool kApart = false;
#endif
  const P& policy;
  const Key& key;
  Generator generator[2];
  Lanes32<P> run = {};
  std::int64_t steps = 0;
  Level<P, kind> second, third;

  PRISM_INLINE ChunkSum(const P& p, const Key& k, std::uint64_t row)
      : policy(p),
        key(k),
        generator{Generator(k, row, 0, 0), Generator(k, row, 0, 1)},
        second(p, k, row, 1),
        third(p, k, row, 2) {}

  // The next `count` terms of every lane, all of one run.
  PRISM_INLINE void terms(const typename P::Elem* x, const typename P::Elem* y, std::int64_t count,
                          bool starts, bool ranged) {
    if constexpr (kApart) {
      terms_of<0, 1>(x, y, count, starts, ranged);
      terms_of<1, 2>(x, y, count, starts, ranged);
    } else {
      terms_of<0, 2>(x, y, count, starts, ranged);
    }
    steps += count;
  }

  // Those of the groups of lanes from `first` to `last`.
  template <int first, int last>
  PRISM_INLINE void terms_of(const typename P::Elem* x, const typename P::Elem* y,
                             std::int64_t count, bool starts, bool ranged) {
    Lanes32<P> total = run;
    Generator state[2] = {generator[0], generator[1]};
    for (std::int64_t v = 0; v < count; ++v) {
      const int step = (int)(steps + v);
      PRISM_UNROLL for (int g = first; g < last; ++g) {
        const std::int64_t at = v * kReduceLanes + g * kGroup;
        const typename P::Wide wx = P::load(x + at);
        const typename P::Wide wy = kind == Reduction::dot ? P::load(y + at) : wx;
        const typename P::Draw d = policy.draw(state[g], step);
        if (v == 0 && starts) {
          total.v[g] = ranged ? first_term<P, kind, true>(policy, wx, wy, d)
                              : first_term<P, kind, kRanged>(policy, wx, wy, d);
        } else {
          total.v[g] = next_term<P, kind, kRanged>(policy, total.v[g], wx, wy, d);
        }
        if (policy.advances(step)) state[g].advance(key);
      }
    }
    PRISM_UNROLL for (int g = first; g < last; ++g) {
      run.v[g] = total.v[g];
      generator[g] = state[g];
    }
  }

  inline void end_run() {
    second.join(run);
    if (second.step % kReduceFan == 0) {
      third.join(second.value);
      second.empty = true;
    }
  }

  // Totals of the lanes, chains that are incomplete included.
  inline Lanes32<P> totals() {
    if (steps % kReduceFan != 0) end_run();
    if (!second.empty) third.join(second.value);
    return third.value;
  }
};

// Adds the lanes of a chunk: four registers of eight, then one chain of eight.
template <class P, Reduction kind>
double across_lanes(const P& policy, const Key& key, std::uint64_t row, typename P::Packed* lane,
                    int lanes, bool last) {
  using Wide = typename P::Wide;
  constexpr Op op = kCombine<kind>;
  constexpr bool in_range = kind == Reduction::prod;
  Generator generator(key, row, 3, 0);
  if (policy.advances(0)) generator.advance(key);
  for (int step = 1; step < 4; ++step) {
    const int present = lanes - 8 * step < 8 ? lanes - 8 * step : 8;
    if (present > 0) {
      const Wide a = load(lane), b = load(lane + 8 * step);
      typename P::Packed sum[kLanes];
      store(sum, policy.template apply<op, in_range>(a, b, a, policy.draw(generator, step)));
      for (int j = 0; j < present; ++j) lane[j] = sum[j];
    }
    if (policy.advances(step)) generator.advance(key);
  }
  if (policy.advances(4)) generator.advance(key);
  Wide total = load(lane);
  const int count = lanes < 8 ? lanes : 8;
  for (int j = 1; j < count; ++j) {
    const Wide other = broadcast(lane[j]);
    const typename P::Draw d = policy.draw(generator, 4 + j);
    total = last && j == count - 1 ? policy.template apply<op, true>(total, other, total, d)
                                   : policy.template apply<op, in_range>(total, other, total, d);
    if (policy.advances(4 + j)) generator.advance(key);
  }
  typename P::Packed out[kLanes];
  store(out, total);
  return out[0];
}

template <class P, Reduction kind>
__attribute__((noinline)) double chunk_total(const P& policy, const Key& key,
                                             const ReduceChunk<typename P::Elem>& c) {
  const std::int64_t steps = c.count / kReduceLanes;
  const int tail = (int)(c.count % kReduceLanes);
  const bool alone = c.last && c.count == 1;
  ChunkSum<P, kind> sum(policy, key, c.row);
  for (std::int64_t s = 0; s < steps; s += kReduceFan) {
    const std::int64_t end = s + kReduceFan < steps ? s + kReduceFan : steps;
    sum.terms(c.x + s * kReduceLanes, c.y + s * kReduceLanes, end - s, true, false);
    if (end - s == kReduceFan) sum.end_run();
  }
  typename P::Packed lane[kReduceLanes + kLanes] = {};
  if (tail > 0) {
    // The lanes of the last, incomplete step, and the same lanes without it.
    typename P::Elem x[kReduceLanes] = {}, y[kReduceLanes] = {};
    for (int i = 0; i < tail; ++i) {
      x[i] = c.x[steps * kReduceLanes + i];
      if (kind == Reduction::dot) y[i] = c.y[steps * kReduceLanes + i];
    }
    ChunkSum<P, kind> longer(sum);
    longer.terms(x, y, 1, steps % kReduceFan == 0, alone);
    const Lanes32<P> t = [&] {
      // A run that this term completes moves up as any other.
      if (longer.steps % kReduceFan == 0) longer.end_run();
      return longer.totals();
    }();
    store(lane, t.v[0]);
    store(lane + kLanes, t.v[1]);
  }
  if (steps > 0) {
    const Lanes32<P> t = sum.totals();
    typename P::Packed shorter[kReduceLanes];
    store(shorter, t.v[0]);
    store(shorter + kLanes, t.v[1]);
    for (int i = tail; i < kReduceLanes; ++i) lane[i] = shorter[i];
  }
  const int lanes = steps > 0 ? (int)kReduceLanes : tail;
  return across_lanes<P, kind>(policy, key, c.row, lane, lanes, c.last);
}

// Sums of squares: eight lanes, one chain each, as the vector kernel of stock torch adds them.
template <class P>
__attribute__((noinline)) double squares_total(const P& policy, const Key& key,
                                               const ReduceChunk<typename P::Elem>& c) {
  using Wide = typename P::Wide;
  const std::int64_t steps = (c.count + kSquareLanes - 1) / kSquareLanes;
  const bool alone = c.last && c.count == 1;
  Generator generator(key, c.row, 0, 0);
  Wide acc = {};
  typename P::Packed before[kLanes] = {}, lane[kReduceLanes + kLanes] = {};
  for (std::int64_t v = 0; v < steps; ++v) {
    const typename P::Elem* from = c.x + v * kSquareLanes;
    typename P::Elem padded[kLanes] = {};
    // The upper half of a register repeats the next step and is ignored.
    if (v >= steps - 2) {
      const std::int64_t left = c.count - v * kSquareLanes;
      for (int i = 0; i < kSquareLanes && i < left; ++i) padded[i] = from[i];
      from = padded;
    }
    if (v == steps - 1) store(before, acc);
    const Wide x = P::load(from);
    const typename P::Draw d = policy.draw(generator, (int)v);
    if (v == 0) {
      acc = alone ? policy.template apply<Op::mul, true>(x, x, x, d)
                  : policy.template apply<Op::mul, false>(x, x, x, d);
    } else {
      acc = policy.template apply<Op::fma, false>(x, x, acc, d);
    }
    if (policy.advances((int)v)) generator.advance(key);
  }
  store(lane, acc);
  const int tail = (int)(c.count - (steps - 1) * kSquareLanes);
  for (int i = tail; i < kSquareLanes; ++i) lane[i] = before[i];
  const int lanes = (int)(c.count < kSquareLanes ? c.count : kSquareLanes);
  return across_lanes<P, Reduction::sum_squares>(policy, key, c.row, lane, lanes, c.last);
}

template <class P, Reduction kind>
__attribute__((noinline)) double join_chunks(const P& policy, const Key& key,
                                             const ReduceTotals& t) {
  using Wide = typename P::Wide;
  using Packed = typename P::Packed;
  Generator generator(key, t.row, 4, 0);
  if (policy.advances(0)) generator.advance(key);
  Wide total = broadcast((Packed)t.chunk[0]);
  for (std::int64_t c = 1; c < t.chunks; ++c) {
    const Wide other = broadcast((Packed)t.chunk[c]);
    const typename P::Draw d = policy.draw(generator, (int)c);
    constexpr bool in_range = kind == Reduction::prod;
    total = c == t.chunks - 1
                ? policy.template apply<kCombine<kind>, true>(total, other, total, d)
                : policy.template apply<kCombine<kind>, in_range>(total, other, total, d);
    if (policy.advances((int)c)) generator.advance(key);
  }
  Packed out[kLanes];
  store(out, total);
  return out[0];
}

template <class Body>
PRISM_INLINE void with_kind(Reduction kind, Body body) {
  switch (kind) {
    case Reduction::sum:
      return body(std::integral_constant<Reduction, Reduction::sum>{});
    case Reduction::prod:
      return body(std::integral_constant<Reduction, Reduction::prod>{});
    case Reduction::sum_abs:
      return body(std::integral_constant<Reduction, Reduction::sum_abs>{});
    case Reduction::sum_squares:
      return body(std::integral_constant<Reduction, Reduction::sum_squares>{});
    case Reduction::dot:
      return body(std::integral_constant<Reduction, Reduction::dot>{});
  }
}

template <class T>
double reduce_chunk(const Rounding& rounding, const Block& key_block, const ReduceChunk<T>& c) {
  const Key key(key_block);
  double total = 0;
  with_policy<T>(rounding, [&](auto policy) {
    with_kind(c.kind, [&](auto kind) {
      using P = decltype(policy);
      const typename P::Control control;
      if constexpr (decltype(kind)::value == Reduction::sum_squares) {
        total = squares_total<P>(policy, key, c);
      } else {
        total = chunk_total<P, decltype(kind)::value>(policy, key, c);
      }
    });
  });
  return total;
}

template <class T>
double reduce_totals(const Rounding& rounding, const Block& key_block, const ReduceTotals& t) {
  const Key key(key_block);
  double total = 0;
  with_policy<T>(rounding, [&](auto policy) {
    const typename decltype(policy)::Control control;
    with_kind(t.kind, [&](auto kind) {
      total = join_chunks<decltype(policy), decltype(kind)::value>(policy, key, t);
    });
  });
  return total;
}

template <class P, Op op>
__attribute__((noinline)) void scan_rows(const P& policy, const Key& key,
                                         const ScanRows<typename P::Elem>& s) {
  auto total = P::load(s.carry);
  for (std::int64_t k0 = 0; k0 < s.count; k0 += kScanBlock) {
    Generator generator(key, s.row, (s.begin + k0) / kScanBlock, 0);
    const int count = (int)(s.count - k0 < kScanBlock ? s.count - k0 : kScanBlock);
    for (int step = 0; step < count; ++step) {
      const auto x = P::load(s.x + (k0 + step) * kGroup);
      const bool first = s.begin + k0 + step == 0;
      total = first
                  ? x
                  : policy.template apply<op, true>(total, x, total, policy.draw(generator, step));
      if (policy.advances(step)) generator.advance(key);
      P::store(s.out + (k0 + step) * kGroup, total);
    }
  }
  P::store(s.carry, total);
}

template <class T>
void scan(const Rounding& rounding, const Block& key_block, const ScanRows<T>& s) {
  const Key key(key_block);
  with_policy<T>(rounding, [&](auto policy) {
    using P = decltype(policy);
    const typename P::Control control;
    if (s.product) {
      scan_rows<P, Op::mul>(policy, key, s);
    } else {
      scan_rows<P, Op::add>(policy, key, s);
    }
  });
}

}  // namespace PRISM_ISA
}  // namespace prism
