// Functions whose values are going to be rounded to binary32: the native twin of those in
// backends/functions.py that are called short.  They have no uncommon arguments, hence no branch.
#pragma once

#include "functions.h"

namespace prism {
namespace PRISM_ISA {

constexpr float kPointShift = 0x1.8p16f;

// Registers side by side: every operation goes over all of them before the next one, so
// that their chains of operations hide each other's latency.
template <int n>
struct Wide {
  vd v[n];
};
#define PRISM_WIDE(OP)                                                  \
  template <int n>                                                      \
  PRISM_INLINE Wide<n> operator OP(Wide<n> a, Wide<n> b) {              \
    PRISM_UNROLL for (int j = 0; j < n; ++j) a.v[j] = a.v[j] OP b.v[j]; \
    return a;                                                           \
  }                                                                     \
  template <int n>                                                      \
  PRISM_INLINE Wide<n> operator OP(Wide<n> a, double b) {               \
    PRISM_UNROLL for (int j = 0; j < n; ++j) a.v[j] = a.v[j] OP b;      \
    return a;                                                           \
  }                                                                     \
  template <int n>                                                      \
  PRISM_INLINE Wide<n> operator OP(double a, Wide<n> b) {               \
    PRISM_UNROLL for (int j = 0; j < n; ++j) b.v[j] = a OP b.v[j];      \
    return b;                                                           \
  }
PRISM_WIDE(+)
PRISM_WIDE(-)
PRISM_WIDE(*)
#undef PRISM_WIDE

struct ShortExp {
  template <int n>
  PRISM_INLINE Wide<n> operator()(Wide<n> x) const {
    PRISM_UNROLL for (int j = 0; j < n; ++j) {
      x.v[j] = at_most(at_least(x.v[j], -1023 * kLn2Nearest), 1024 * kLn2Nearest);
    }
    const Wide<n> shifted = x * kLog2E + kShift;
    const Wide<n> r = x - (shifted - kShift) * kLn2Nearest;
    Wide<n> y = 1.0 + (r + (r * r) * polynomial(r, kExpShort));
    PRISM_UNROLL for (int j = 0; j < n; ++j) y.v[j] = scaled<false>(y.v[j], (vl)shifted.v[j]);
    return y;
  }
};

// The values of a function and its slopes at the multiples of 1/128.
template <class Function>
struct Points {
  alignas(64) double row[Function::kPoints][2];
  Points() {
    double x[kGroup], value[kGroup], slope[kGroup];
    for (int i = 0; i < Function::kPoints; i += kGroup) {
      for (int j = 0; j < kGroup; ++j) x[j] = (i + j) / 128.0;
      Function::know(x, value, slope);
      for (int j = 0; j < kGroup; ++j) {
        row[i + j][0] = value[j];
        row[i + j][1] = slope[j];
      }
    }
  }
  static const Points& all() {
    static const Points points;
    return points;
  }

  // The rows of `at`, a lane each.
  PRISM_INLINE void look_up(const std::int32_t* at, vd& value, vd& slope) const {
    const double* p[kDoubles];
    PRISM_UNROLL for (int i = 0; i < kDoubles; ++i) p[i] = row[(std::uint32_t)at[i]];
#if defined(__AVX512F__)
    const auto four = [&](int i) PRISM_ALWAYS {
      const __m256d low = _mm256_loadu2_m128d(p[i + 2], p[i]);
      const __m256d high = _mm256_loadu2_m128d(p[i + 6], p[i + 4]);
      return _mm512_insertf64x4(_mm512_castpd256_pd512(low), high, 1);
    };
    const __m512d even = four(0), odd = four(1);
    value = (vd)_mm512_unpacklo_pd(even, odd);
    slope = (vd)_mm512_unpackhi_pd(even, odd);
#elif defined(__AVX2__)
    const __m256d even = _mm256_loadu2_m128d(p[2], p[0]);
    const __m256d odd = _mm256_loadu2_m128d(p[3], p[1]);
    value = (vd)_mm256_unpacklo_pd(even, odd);
    slope = (vd)_mm256_unpackhi_pd(even, odd);
#else
    value = (vd){p[0][0], p[1][0]};
    slope = (vd){p[0][1], p[1][1]};
#endif
  }
};

template <int groups, class Function>
PRISM_INLINE void evaluate_groups(const Function& function, const float* x, double* out) {
  Wide<groups * kD> y;
  PRISM_UNROLL for (int g = 0; g < groups; ++g) {
    const D16 group = load_widened(x + g * kGroup);
    PRISM_UNROLL for (int j = 0; j < kD; ++j) y.v[g * kD + j] = group.v[j];
  }
  y = function(y);
  PRISM_UNROLL for (int j = 0; j < groups * kD; ++j) {
    *(vd_unaligned*)(out + j * kDoubles) = y.v[j];
  }
}

template <class Function>
__attribute__((noinline)) void evaluate_short(std::int64_t count, const float* x, double* out) {
  constexpr int kTogether = 8 / kD;
  const Function function;
  std::int64_t i = 0;
  for (; i + (kTogether - 1) * kGroup < count; i += kTogether * kGroup) {
    evaluate_groups<kTogether>(function, x + i, out + i);
  }
  for (; i < count; i += kGroup) evaluate_groups<1>(function, x + i, out + i);
}

// The nearest points, which binary32 finds exactly: the shift rounds to a multiple of 1/128,
// and a difference that is not larger than its operands, on their grid, is a number.
template <class Function>
struct Near {
  static constexpr int kCount = 256;
  alignas(64) std::int32_t at[kCount];
  alignas(64) float point[kCount], distance[kCount];

  PRISM_INLINE void find(int i, const float* x) {
    const F16 group = load(x);
    F16 p, d;
    PRISM_UNROLL for (int j = 0; j < kF; ++j) {
      vf a = (vf)((vi)group.v[j] & INT32_MAX);
      a = a > Function::kLimit ? Function::kLimit - (vf){} : a;
      const vf shifted = a + kPointShift;
      p.v[j] = shifted - kPointShift;
      d.v[j] = a - p.v[j];
      *(vi*)(at + i + j * kFloats) = (vi)shifted & (Function::kPoints - 1);
    }
    store(point + i, p);
    store(distance + i, d);
  }
};

struct ShortErf {
  static constexpr int kPoints = 1024;
  static constexpr float kLimit = 6;
  static void know(double* x, double* value, double* slope) {
    evaluate<Erf>(kGroup, x, value);
    for (int i = 0; i < kGroup; ++i) x[i] = -(x[i] * x[i]);
    evaluate<Each<Exp>>(kGroup, x, slope);
    for (int i = 0; i < kGroup; ++i) slope[i] = kTwoOverRootPi * slope[i];
  }
  PRISM_INLINE static vd of(vd value, vd slope, vd point, vd d) {
    const vd w = point * d, e = d * d;
    const vd h = w * w - 1.5 * e;
    const vd even = (1.0 - w) + e * ((2.0 / 3) - 0.2 * e);
    const vd q = even + h * (((2.0 / 3) - w * (1.0 / 3)) + h * (2.0 / 15));
    return value + slope * (d * q);
  }
};

struct ShortTanh {
  static constexpr int kPoints = 4096;
  static constexpr float kLimit = 20;
  static void know(double* x, double* value, double* slope) {
    evaluate<Each<Tanh>>(kGroup, x, value);
    for (int i = 0; i < kGroup; ++i) slope[i] = 1.0 - value[i] * value[i];
  }
  PRISM_INLINE static vd of(vd value, vd slope, vd, vd d) {
    const vd e = d * d;
    const vd u = d * (1.0 - e * ((1.0 / 3) - e * (2.0 / 15)));
    const vd v = value * u, square = v * v;
    const vd q = (1.0 - v) * (1.0 + square) + square * square;
    return value + (slope * u) * q;
  }
};

template <class Function>
__attribute__((noinline)) void evaluate_near(std::int64_t count, const float* x, double* out) {
  const Points<Function>& points = Points<Function>::all();
  Near<Function> near;
  for (; count > 0; count -= near.kCount, x += near.kCount, out += near.kCount) {
    const int n = count < near.kCount ? (int)count : near.kCount;
    for (int i = 0; i < n; i += kGroup) near.find(i, x + i);
    for (int i = 0; i < n; i += kGroup) {
      const D16 d = load_widened(near.distance + i), point = load_widened(near.point + i);
      D16 y = load_widened(x + i);
      PRISM_UNROLL for (int j = 0; j < kD; ++j) {
        vd value, slope;
        points.look_up(near.at + i + j * kDoubles, value, slope);
        y.v[j] = with_sign(Function::of(value, slope, point.v[j], d.v[j]), y.v[j]);
      }
      store(out + i, y);
    }
  }
}

// The value of a function in binary64 for whole groups of elements, of which `count` matter.
template <class T>
void evaluate(Op op, std::int64_t count, const T* x, double* out) {
  switch (op) {
    case Op::exp:
      if constexpr (sizeof(T) == 4) return evaluate_short<ShortExp>(count, x, out);
      return evaluate<Each<Exp>>(count, x, out);
    case Op::expm1:
      return evaluate<Each<Expm1>>(count, x, out);
    case Op::log:
      return evaluate<Each<Log>>(count, x, out);
    case Op::log1p:
      return evaluate<Each<Log1p>>(count, x, out);
    case Op::tanh:
      if constexpr (sizeof(T) == 4) return evaluate_near<ShortTanh>(count, x, out);
      return evaluate<Each<Tanh>>(count, x, out);
    default:
      if constexpr (sizeof(T) == 4) return evaluate_near<ShortErf>(count, x, out);
      return evaluate<Erf>(count, x, out);
  }
}

}  // namespace PRISM_ISA
}  // namespace prism
