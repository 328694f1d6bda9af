// Elementwise programs on one tile, and additions into indexed rows.
#pragma once

#include "kernels.h"
#include "policies.h"
#include "short_functions.h"

namespace prism {
namespace PRISM_ISA {

constexpr int kChains = kTileLanes / kGroup;  // generators that share a tile

// Calls body(vector, draw) for every group of 16 elements, in the order of the draws.
template <class P, class Body>
PRISM_INLINE void for_each_vector(const P& policy, const Key& key, std::uint64_t row,
                                  std::uint64_t block, std::int64_t first, std::int64_t last,
                                  Body body) {
  Generator generator[kChains];
  PRISM_UNROLL for (int g = 0; g < kChains; ++g) generator[g] = Generator(key, row, block, g);
  const std::int64_t vectors = (last + kGroup - 1) / kGroup;
  for (std::int64_t v = 0; v < vectors; v += kChains) {
    const int step = (int)(v / kChains);
    PRISM_UNROLL for (int g = 0; g < kChains; ++g) {
      const typename P::Draw d = policy.draw(generator[g], step);
      if (v + g < vectors && (v + g + 1) * kGroup > first) body((v + g) * kGroup, d);
      if (policy.advances(step)) generator[g].advance(key);
    }
  }
}

// A register of a program: the elements of a tile, or one number sixteen times.
struct Register {
  const void* data;
  std::int64_t mask;  // of an index that is a multiple of sixteen

  template <class T>
  PRISM_INLINE const T* at(std::int64_t i) const {
    return static_cast<const T*>(data) + (i & mask);
  }
};

// The registers that an instruction reads.
struct Sources {
  Register a, b, c;
};

// Scratch registers hold whole vectors, so that a tail needs no care but at the end.
template <class P, Op op>
__attribute__((noinline)) void run_rounded(const P& policy, const Key& key,
                                           const ElementwiseTile<typename P::Elem>& t, int index,
                                           const Sources& from, typename P::Elem* out) {
  using T = typename P::Elem;
  const Register a = from.a, b = from.b, c = from.c;
  for_each_vector(policy, key, t.row, index, 0, t.count, [&](std::int64_t i, auto d) PRISM_ALWAYS {
    const auto wa = P::load(a.at<T>(i));
    const auto wb = op == Op::sqrt ? wa : P::load(b.at<T>(i));
    const auto wc = op == Op::fma ? P::load(c.at<T>(i)) : wa;
    P::store(out + i, policy.template apply<op, true>(wa, wb, wc, d));
  });
}

template <class P>
__attribute__((noinline)) void run_round(const P& policy, const Key& key,
                                         const ElementwiseTile<typename P::Elem>& t, int index,
                                         const Register& a, typename P::Elem* out) {
  for_each_vector(policy, key, t.row, index, 0, t.count, [&](std::int64_t i, auto d) PRISM_ALWAYS {
    P::store(out + i, policy.round_wide(load(a.at<double>(i)), d));
  });
}

// A function of a whole tile, or of one number, in binary64, then one rounding of each value.
template <class P>
void run_function(const P& policy, const Key& key, const ElementwiseTile<typename P::Elem>& t,
                  int index, const Register& a, typename P::Elem* out) {
  alignas(64) double values[kTile];
  const bool one = a.mask == 0;
  evaluate(t.code[index].op, one ? kGroup : t.count, a.at<typename P::Elem>(0), values);
  const typename P::Control control;
  run_round(policy, key, t, index, {values, a.mask}, out);
}

// Operations without rounding; NaN spreads through min and max, of equals the second is taken.
template <class T>
PRISM_INLINE T exact(Op op, T a, T b, T c) {
  switch (op) {
    case Op::neg:
      return -a;
    case Op::abs:
      return T(__builtin_fabs(a));
    case Op::min:
      return a != a || a < b ? a : b;
    case Op::max:
      return a != a || a > b ? a : b;
    case Op::copysign:
      return T(__builtin_copysign(a, b));
    default:
      return a > 0 ? b : c;
  }
}

template <class T, Op op>
void run_exact(std::int64_t count, const Sources& from, T* out) {
  for (std::int64_t i = 0; i < count; i += kGroup) {
    const T *a = from.a.at<T>(i), *b = from.b.at<T>(i), *c = from.c.at<T>(i);
    T lanes[kGroup];
    PRISM_UNROLL for (int j = 0; j < kGroup; ++j) lanes[j] = exact(op, a[j], b[j], c[j]);
    __builtin_memcpy(out + i, lanes, sizeof lanes);
  }
}

template <class P>
void run_instruction(const P& policy, const Key& key, const ElementwiseTile<typename P::Elem>& t,
                     int index, const Sources& from, typename P::Elem* out) {
  using T = typename P::Elem;
  const Op op = t.code[index].op;
  // The value of a function is the nearest one whatever the mode.
  if (is_function(op)) return run_function(policy, key, t, index, from.a, out);
  const typename P::Control control;
  switch (op) {
    case Op::add:
      return run_rounded<P, Op::add>(policy, key, t, index, from, out);
    case Op::sub:
      return run_rounded<P, Op::sub>(policy, key, t, index, from, out);
    case Op::mul:
      return run_rounded<P, Op::mul>(policy, key, t, index, from, out);
    case Op::div:
      return run_rounded<P, Op::div>(policy, key, t, index, from, out);
    case Op::sqrt:
      return run_rounded<P, Op::sqrt>(policy, key, t, index, from, out);
    case Op::fma:
      return run_rounded<P, Op::fma>(policy, key, t, index, from, out);
    case Op::round:
      return run_round(policy, key, t, index, from.a, out);
    case Op::neg:
      return run_exact<T, Op::neg>(t.count, from, out);
    case Op::abs:
      return run_exact<T, Op::abs>(t.count, from, out);
    case Op::min:
      return run_exact<T, Op::min>(t.count, from, out);
    case Op::max:
      return run_exact<T, Op::max>(t.count, from, out);
    case Op::copysign:
      return run_exact<T, Op::copysign>(t.count, from, out);
    default:
      return run_exact<T, Op::select>(t.count, from, out);
  }
}

template <class T>
void elementwise(const Rounding& rounding, const Block& key_block, const ElementwiseTile<T>& t) {
  const Key key(key_block);
  Register registers[kMaxInputs + kMaxScalars + kMaxInstructions];
  T numbers[kMaxScalars][kGroup];
  for (int i = 0; i < t.inputs; ++i) registers[i] = {t.input[i], -1};
  for (int i = 0; i < t.scalars; ++i) {
    for (int j = 0; j < kGroup; ++j) numbers[i][j] = t.scalar[i];
    registers[t.inputs + i] = {numbers[i], 0};
  }
  with_policy<T>(rounding, [&](auto policy) {
    Register* const results = registers + t.inputs + t.scalars;
    for (int i = 0; i < t.instructions; ++i) {
      const Instruction& code = t.code[i];
      T* out = i == t.instructions - 1 ? t.out : t.scratch + t.slot[i] * kTile;
      run_instruction(policy, key, t, i, {registers[code.a], registers[code.b], registers[code.c]},
                      out);
      results[i] = {out, -1};
    }
  });
}

template <class P>
__attribute__((noinline)) void accumulate_rows(const P& policy, const Key& key,
                                               const Accumulate<typename P::Elem>& p) {
  using T = typename P::Elem;
  const std::int64_t end = p.first + p.count;
  for (std::int64_t tile = p.first / kTile; tile * kTile < end; ++tile) {
    const std::int64_t base = tile * kTile;
    const std::int64_t first = p.first > base ? p.first - base : 0;
    const std::int64_t last = end - base < kTile ? end - base : kTile;
    for_each_vector(policy, key, tile, 0, first, last, [&](std::int64_t at, auto d) {
      const std::int64_t from = at > first ? at : first;
      const std::int64_t to = at + kGroup < last ? at + kGroup : last;
      // Elements of one destination row are distinct; a row boundary starts a new
      // addition, which may meet the same destination again.
      for (std::int64_t i = from; i < to;) {
        const std::int64_t row = (base + i) / p.inner, column = (base + i) % p.inner;
        std::int64_t run = p.inner - column < to - i ? p.inner - column : to - i;
        const std::int64_t target = p.index[row];
        if (target >= p.keep_begin && target < p.keep_end) {
          T a[kGroup] = {}, b[kGroup] = {};
          T* out = p.out + target * p.inner + column;
          const std::int64_t lane = i - at;
          for (std::int64_t j = 0; j < run; ++j) {
            a[lane + j] = out[j];
            b[lane + j] = p.source[base + i + j];
          }
          const auto wa = P::load(a);
          P::store(a, policy.template apply<Op::add, true>(wa, P::load(b), wa, d));
          for (std::int64_t j = 0; j < run; ++j) out[j] = a[lane + j];
        }
        i += run;
      }
    });
  }
}

template <class T>
void accumulate(const Rounding& rounding, const Block& key_block, const Accumulate<T>& p) {
  const Key key(key_block);
  with_policy<T>(rounding, [&](auto policy) {
    const typename decltype(policy)::Control control;
    accumulate_rows(policy, key, p);
  });
}

}  // namespace PRISM_ISA
}  // namespace prism
