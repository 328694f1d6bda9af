// Matrix products and convolutions: the product of packed panels.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "policies.h"

namespace prism {
namespace PRISM_ISA {

PRISM_INLINE D16 spread(double x) { return broadcast(x); }
PRISM_INLINE F16 spread(float x) { return broadcast(x); }
PRISM_INLINE D16 from_totals(const double* p, D16) { return load(p); }
PRISM_INLINE F16 from_totals(const double* p, F16) { return load((const float*)p); }
PRISM_INLINE void to_totals(double* p, D16 x) { store(p, x); }
PRISM_INLINE void to_totals(double* p, F16 x) { store((float*)p, x); }

// Rows that advance together, to hide the latency of a step, and passes in which the registers of
// sixteen lanes are computed, so that the accumulators of one pass stay in registers.  The
// generators of uniform draws would have to advance in every pass.
#if defined(__AVX512F__)
template <class P>
constexpr int kRows = 8;
template <class P>
constexpr int kPasses = 1;
#elif defined(__AVX2__)
template <class P>
constexpr int kRows = sizeof(typename P::Wide) == sizeof(F16)        ? 8
                      : P::kUniform && sizeof(typename P::Elem) == 8 ? 2
                                                                     : 4;
template <class P>
constexpr int kPasses = P::kUniform ? 1 : 2;
#else
template <class P>
constexpr int kRows = 2;
template <class P>
constexpr int kPasses = 1;
#endif

// Of the results of all lanes, those of one pass: the compiler drops what leads to the others.
template <int pass, int passes, class W>
PRISM_INLINE void keep(W& to, const W& from) {
  constexpr int n = sizeof(W) / sizeof(from.v[0]);
  PRISM_UNROLL for (int i = pass; i < n; i += passes) to.v[i] = from.v[i];
}

template <class P, int R, int pass, bool ranged>
PRISM_INLINE void accumulate_step(const P& policy, const Key& key, const typename P::Packed* a,
                                  const typename P::Elem* b, int step, Generator* generator,
                                  typename P::Wide* acc) {
  const typename P::Wide wide_b = P::load(b);
  PRISM_UNROLL for (int r = 0; r < R; ++r) {
    const typename P::Draw d = policy.draw(generator[r], step);
    keep<pass, kPasses<P>>(acc[r],
                           policy.template apply<Op::fma, ranged>(spread(a[r]), wide_b, acc[r], d));
    if constexpr (P::kUniform) {
      if (policy.advances(step)) generator[r].advance(key);
    }
  }
}

// One pass over R rows by 16 columns and the blocks of one chunk of k.
template <class P, int R, int pass>
__attribute__((noinline)) void accumulate_blocks(const P& policy, const Key& key,
                                                 const Multiply<typename P::Elem>& m,
                                                 std::int64_t first_row, typename P::Wide* total) {
  using Wide = typename P::Wide;
  using Packed = typename P::Packed;
  // Packs lie as far apart as if their elements were doubles, whatever the policy packs.
  const double* pack =
      static_cast<const double*>(m.a) + first_row / kRowPack * m.k_count * kRowPack;
  const Packed* a = reinterpret_cast<const Packed*>(pack) + first_row % kRowPack;
  const bool ends = m.k_begin + m.k_count == m.k_total;
  for (std::int64_t k0 = 0; k0 < m.k_count; k0 += kKBlock) {
    const int count = (int)(m.k_count - k0 < kKBlock ? m.k_count - k0 : kKBlock);
    const std::int64_t block = (m.k_begin + k0) / kKBlock;
    const bool last_block = ends && k0 + count == m.k_count;
    Wide acc[R] = {};
    Generator generator[R];
    PRISM_UNROLL for (int r = 0; r < R; ++r) {
      if (m.chained) keep<pass, kPasses<P>>(acc[r], total[r]);
      generator[r] = Generator(key, m.row + first_row + r, m.block + block, m.group);
    }
    const Packed* ka = a + k0 * kRowPack;
    const typename P::Elem* kb = m.panel + k0 * kGroup;
    // The last operation of an output is the ranged one: a product, unless a block is added.
    const bool adds = block > 0 && !m.chained;
    const bool peel = last_block && !adds;
    const int plain = peel ? count - 1 : count;
    for (int step = 0; step < plain;) {
      const int end = P::kUniform ? plain : std::min(plain, (step | 31) + 1);
      for (; step < end; ++step, ka += kRowPack, kb += kGroup) {
        accumulate_step<P, R, pass, false>(policy, key, ka, kb, step, generator, acc);
      }
      if constexpr (!P::kUniform) {
        if (policy.advances(end - 1)) {
          PRISM_UNROLL for (int r = 0; r < R; ++r) generator[r].advance(key);
        }
      }
    }
    if (peel) accumulate_step<P, R, pass, true>(policy, key, ka, kb, plain, generator, acc);
    PRISM_UNROLL for (int r = 0; r < R; ++r) {
      if (adds) {
        const typename P::Draw d = policy.draw(generator[r], count);
        acc[r] = last_block ? policy.template apply<Op::add, true>(total[r], acc[r], acc[r], d)
                            : policy.template apply<Op::add, false>(total[r], acc[r], acc[r], d);
      }
      keep<pass, kPasses<P>>(total[r], acc[r]);
    }
  }
}

template <class P, int R, int pass = 0>
PRISM_INLINE void accumulate(const P& policy, const Key& key, const Multiply<typename P::Elem>& m,
                             std::int64_t first_row, typename P::Wide* total) {
  accumulate_blocks<P, R, pass>(policy, key, m, first_row, total);
  if constexpr (pass + 1 < kPasses<P>) {
    accumulate<P, R, pass + 1>(policy, key, m, first_row, total);
  }
}

// R rows by 16 columns over one chunk of k.
template <class P, int R>
void multiply_rows(const P& policy, const Key& key, const Multiply<typename P::Elem>& m,
                   std::int64_t first_row) {
  using Wide = typename P::Wide;
  Wide total[R];
  PRISM_UNROLL for (int r = 0; r < R; ++r) {
    total[r] = m.k_begin == 0 ? Wide{} : from_totals(m.totals + (first_row + r) * kGroup, Wide{});
  }
  accumulate<P, R>(policy, key, m, first_row, total);
  const bool ends = m.k_begin + m.k_count == m.k_total;
  PRISM_UNROLL for (int r = 0; r < R; ++r) {
    if (!ends) {
      to_totals(m.totals + (first_row + r) * kGroup, total[r]);
      continue;
    }
    typename P::Elem* out = m.out + m.out_row[first_row + r];
    if (m.contiguous) {
      P::store(out + m.out_column[0], total[r]);
    } else {
      typename P::Elem lanes[kGroup];
      P::store(lanes, total[r]);
      for (int j = 0; j < m.columns; ++j) out[m.out_column[j]] = lanes[j];
    }
  }
}

template <class P, int R>
void multiply_all(const P& policy, const Key& key, const Multiply<typename P::Elem>& m,
                  std::int64_t row) {
  for (; row + R <= m.rows; row += R) multiply_rows<P, R>(policy, key, m, row);
  if constexpr (R > 1) multiply_all<P, R / 2>(policy, key, m, row);
}

template <class T>
void multiply(const Rounding& rounding, const Block& key_block, const Multiply<T>& m) {
  const Key key(key_block);
  with_policy<T>(rounding, [&](auto policy) {
    using P = decltype(policy);
    const typename P::Control control;
    multiply_all<P, kRows<P>>(policy, key, m, 0);
  });
}

}  // namespace PRISM_ISA
}  // namespace prism
