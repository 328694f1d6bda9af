// Packing the operands of matrix products and convolutions.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels.h"
#include "policies.h"

namespace prism {
namespace PRISM_ISA {

template <class T>
void pack_rows(const Rounding& rounding, const PackRows<T>& p) {
  with_policy<T>(rounding, [&](auto policy) {
    using Packed = typename decltype(policy)::Packed;
    Packed* out = static_cast<Packed*>(p.out);
    for (std::int64_t r = 0; r < kRowPack; ++r) {
      if (r >= p.rows) {
        for (std::int64_t k = 0; k < p.k_count; ++k) out[k * kRowPack + r] = 0;
        continue;
      }
      const T* a = p.a + p.row_offset[r];
      for (std::int64_t k = 0; k < p.k_count; ++k) out[k * kRowPack + r] = a[p.k_offset[k]];
    }
  });
}

// Columns [begin, begin + count) of a group that lie one element apart in memory.
struct Segment {
  int begin, count;
  std::int64_t offset;  // of lane 0, so that lane l reads offset + l
};

template <class T>
int find_segments(const PackPanel<T>& p, Segment* segments, bool within_rows) {
  int n = 0;
  for (int j = 0; j < p.columns; ++j) {
    const bool same_row = !within_rows || (j > 0 && p.column[j].at[2] == p.column[j - 1].at[2] + 1);
    if (n > 0 && same_row && p.column[j].offset == segments[n - 1].offset + j) {
      ++segments[n - 1].count;
    } else {
      segments[n++] = {j, 1, p.column[j].offset - j};
    }
  }
  return n;
}

template <class T>
bool inside(const PackPanel<T>& p, const Axis& k, const Axis& column) {
  bool ok = true;
  for (int i = 0; i < 3; ++i) {
    ok &= (std::uint32_t)(k.at[i] + column.at[i]) < (std::uint32_t)p.size[i];
  }
  return ok;
}

template <class T>
constexpr int kWidth = sizeof(vf) / sizeof(T);  // elements of a register

// The elements [first, last) of a register, zero elsewhere; no other memory is read.
PRISM_INLINE vf load_some(const float* p, int first, int last) {
#if defined(__AVX512F__)
  const unsigned mask = ((1u << last) - 1) & ~((1u << first) - 1);
  return (vf)_mm512_maskz_loadu_ps((__mmask16)mask, p);
#elif defined(__AVX2__)
  const vi lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return (vf)_mm256_maskload_ps(p, (__m256i)((lane >= first) & (lane < last)));
#else
  vf r = {};
  for (int i = first; i < last; ++i) r[i] = p[i];
  return r;
#endif
}
PRISM_INLINE vd load_some(const double* p, int first, int last) {
#if defined(__AVX512F__)
  const unsigned mask = ((1u << last) - 1) & ~((1u << first) - 1);
  return (vd)_mm512_maskz_loadu_pd((__mmask8)mask, p);
#elif defined(__AVX2__)
  const vl lane = {0, 1, 2, 3};
  return (vd)_mm256_maskload_pd(p, (__m256i)((lane >= first) & (lane < last)));
#else
  vd r = {};
  for (int i = first; i < last; ++i) r[i] = p[i];
  return r;
#endif
}
PRISM_INLINE vf load_all(const float* p) { return *(const vf_unaligned*)p; }
PRISM_INLINE vd load_all(const double* p) { return *(const vd_unaligned*)p; }
PRISM_INLINE void store_all(float* p, vf x) { *(vf_unaligned*)p = x; }
PRISM_INLINE void store_all(double* p, vd x) { *(vd_unaligned*)p = x; }

// Alternating elements of the lower (or upper) halves of two registers.
template <int N, int half, class V, class I, int... at>
PRISM_INLINE V zip(V a, V b, std::integer_sequence<int, at...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (at / 2 + half * N / 2 + at % 2 * N)...);
#else
  return __builtin_shuffle(a, b, (I){(at / 2 + half * N / 2 + at % 2 * N)...});
#endif
}

// A square of registers: after every round of zips the index of an element has turned by one bit.
template <int N, class V, class I>
PRISM_INLINE void transpose(V* r) {
  constexpr auto lanes = std::make_integer_sequence<int, N>{};
  PRISM_UNROLL for (int round = 1; round < N; round *= 2) {
    V next[N];
    PRISM_UNROLL for (int i = 0; i < N / 2; ++i) {
      next[2 * i] = zip<N, 0, V, I>(r[i], r[i + N / 2], lanes);
      next[2 * i + 1] = zip<N, 1, V, I>(r[i], r[i + N / 2], lanes);
    }
    PRISM_UNROLL for (int i = 0; i < N; ++i) r[i] = next[i];
  }
}

template <class T>
bool has_long_runs(const PackPanel<T>& p) {
  return p.runs * 4 <= p.k_count;
}

// A column over one run of k: where position k lies, and which positions are inside the input.
template <class T>
struct Strip {
  const T* from;  // of position 0
  std::int64_t begin, end;
};

template <class T>
void find_strips(const PackPanel<T>& p, std::int64_t begin, std::int64_t end, Strip<T>* strips) {
  const Axis& axis = p.k[begin];
  for (int j = 0; j < kGroup; ++j) {
    if (j >= p.columns) {
      strips[j] = {p.b, begin, begin};
      continue;
    }
    const Axis& column = p.column[j];
    strips[j] = {p.b + (axis.offset + column.offset - begin), begin, end};
    if (!p.bounded) continue;
    const std::int64_t first = begin - axis.at[2] - column.at[2];  // of the row of the input
    const bool within = (std::uint32_t)(axis.at[0] + column.at[0]) < (std::uint32_t)p.size[0] &&
                        (std::uint32_t)(axis.at[1] + column.at[1]) < (std::uint32_t)p.size[1];
    strips[j].begin = std::max(begin, first);
    strips[j].end = within ? std::min(end, first + p.size[2]) : begin;
  }
}

// Where columns are apart but neighbours along k are not, as in a transposed matrix: squares are
// read along k and turned.
template <class T>
void pack_along_k(const PackPanel<T>& p) {
  using V = std::conditional_t<sizeof(T) == 4, vf, vd>;
  using I = std::conditional_t<sizeof(T) == 4, vi, vl>;
  constexpr int N = kWidth<T>;
  Strip<T> strips[kGroup];
  std::int64_t k = 0;
  for (std::int64_t run = 0; run < p.runs; k = p.run_end[run++]) {
    const std::int64_t end = p.run_end[run];
    find_strips(p, k, end, strips);
    for (; k < end; k += N) {
      const int count = (int)std::min<std::int64_t>(end - k, N);
      for (int j0 = 0; j0 < kGroup; j0 += N) {
        V square[N];
        PRISM_UNROLL for (int j = 0; j < N; ++j) {
          const Strip<T>& strip = strips[j0 + j];
          if (strip.begin <= k && k + N <= strip.end) {
            square[j] = load_all(strip.from + k);
          } else {
            const std::int64_t first =
                std::min<std::int64_t>(std::max<std::int64_t>(strip.begin - k, 0), N);
            const std::int64_t last =
                std::min<std::int64_t>(std::max<std::int64_t>(strip.end - k, first), N);
            square[j] = load_some(strip.from + k, (int)first, (int)last);
          }
        }
        transpose<N, V, I>(square);
        for (int i = 0; i < count; ++i) store_all(p.out + (k + i) * kGroup + j0, square[i]);
      }
    }
  }
}

#if defined(__AVX512F__)

template <class T>
void pack_panel(const PackPanel<T>& p) {
  Segment segments[kGroup];
  const int n = find_segments(p, segments, false);
  if (n > 4 && has_long_runs(p)) return pack_along_k(p);
  __mmask16 segment_mask[kGroup];
  for (int s = 0; s < n; ++s) {
    segment_mask[s] = (__mmask16)(((1u << segments[s].count) - 1) << segments[s].begin);
  }
  const __mmask16 all = (__mmask16)((1u << p.columns) - 1);
  std::int32_t at[3][kGroup] = {};
  std::int64_t offset[kGroup] = {};
  for (int j = 0; j < p.columns; ++j) {
    offset[j] = p.column[j].offset;
    for (int i = 0; i < 3; ++i) at[i][j] = p.column[j].at[i];
  }
  const __m512i at0 = _mm512_loadu_si512(at[0]), at1 = _mm512_loadu_si512(at[1]),
                at2 = _mm512_loadu_si512(at[2]);
  const __m512i off0 = _mm512_loadu_si512(offset), off1 = _mm512_loadu_si512(offset + 8);
  // A gather costs about as much as four masked loads.
  const bool gathers = n > 4;
  for (std::int64_t k = 0; k < p.k_count; ++k) {
    const Axis& axis = p.k[k];
    __mmask16 valid = all;
    if (p.bounded) {
      valid =
          _mm512_mask_cmplt_epu32_mask(valid, _mm512_add_epi32(at0, _mm512_set1_epi32(axis.at[0])),
                                       _mm512_set1_epi32(p.size[0]));
      valid =
          _mm512_mask_cmplt_epu32_mask(valid, _mm512_add_epi32(at1, _mm512_set1_epi32(axis.at[1])),
                                       _mm512_set1_epi32(p.size[1]));
      valid =
          _mm512_mask_cmplt_epu32_mask(valid, _mm512_add_epi32(at2, _mm512_set1_epi32(axis.at[2])),
                                       _mm512_set1_epi32(p.size[2]));
    }
    const T* b = p.b + axis.offset;
    if constexpr (sizeof(T) == 8) {
      __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
      if (gathers) {
        low = _mm512_mask_i64gather_pd(low, (__mmask8)valid, off0, b, 8);
        high = _mm512_mask_i64gather_pd(high, (__mmask8)(valid >> 8), off1, b, 8);
      } else {
        for (int s = 0; s < n; ++s) {
          const __mmask16 mask = (__mmask16)(valid & segment_mask[s]);
          const T* from = b + segments[s].offset;
          low = _mm512_mask_loadu_pd(low, (__mmask8)mask, from);
          high = _mm512_mask_loadu_pd(high, (__mmask8)(mask >> 8), from + 8);
        }
      }
      _mm512_storeu_pd(p.out + k * kGroup, low);
      _mm512_storeu_pd(p.out + k * kGroup + 8, high);
      continue;
    } else {
      __m512 x = _mm512_setzero_ps();
      if (gathers) {
        const __m256 zero = _mm256_setzero_ps();
        const __m256 low = _mm512_mask_i64gather_ps(zero, (__mmask8)valid, off0, b, 4);
        const __m256 high = _mm512_mask_i64gather_ps(zero, (__mmask8)(valid >> 8), off1, b, 4);
        x = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
      } else {
        for (int s = 0; s < n; ++s) {
          x = _mm512_mask_loadu_ps(x, (__mmask16)(valid & segment_mask[s]), b + segments[s].offset);
        }
      }
      _mm512_storeu_ps(p.out + k * kGroup, x);
    }
  }
}

#else

template <class T>
void pack_panel(const PackPanel<T>& p) {
  Segment segments[kGroup];
  const int n = find_segments(p, segments, p.bounded);
  if (n > 4 && has_long_runs(p)) return pack_along_k(p);
  for (std::int64_t k = 0; k < p.k_count; ++k) {
    const Axis& axis = p.k[k];
    const T* b = p.b + axis.offset;
    T* out = p.out + k * kGroup;
    for (int j = (int)p.columns; j < kGroup; ++j) out[j] = 0;
    for (int s = 0; s < n; ++s) {
      const int first = segments[s].begin, last = first + segments[s].count - 1;
      const T* from = b + segments[s].offset;
      // Within a row of the input the two ends of a segment decide for all.
      if (p.bounded && !(inside(p, axis, p.column[first]) && inside(p, axis, p.column[last]))) {
        for (int j = first; j <= last; ++j) out[j] = inside(p, axis, p.column[j]) ? from[j] : T(0);
      } else if (segments[s].count == kGroup) {
        PRISM_UNROLL for (int j = 0; j < kGroup; j += kWidth<T>) {
          store_all(out + j, load_all(from + j));
        }
      } else {
        for (int j = first; j <= last; ++j) out[j] = from[j];
      }
    }
  }
}

#endif

// Up to sixteen rows that lie side by side in memory, each made contiguous.
template <class T>
void turn_rows(const TurnRows<T>& t) {
  using V = std::conditional_t<sizeof(T) == 4, vf, vd>;
  using I = std::conditional_t<sizeof(T) == 4, vi, vl>;
  constexpr int N = kWidth<T>;
  for (std::int64_t row = 0; row < t.rows; row += N) {
    const int rows = (int)(t.rows - row < N ? t.rows - row : N);
    std::int64_t k = 0;
    for (; rows == N && k + N <= t.count; k += N) {
      V square[N];
      PRISM_UNROLL for (int i = 0; i < N; ++i) square[i] =
          load_all(t.from + (k + i) * t.step + row);
      transpose<N, V, I>(square);
      PRISM_UNROLL for (int i = 0; i < N; ++i) store_all(t.to + (row + i) * t.pitch + k, square[i]);
    }
    for (; k < t.count; ++k) {
      for (int i = 0; i < rows; ++i) t.to[(row + i) * t.pitch + k] = t.from[k * t.step + row + i];
    }
  }
}

}  // namespace PRISM_ISA
}  // namespace prism
