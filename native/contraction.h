// gemm and the convolutions as one contraction, described by offsets.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "prism.h"

namespace prism {

// Every form is  out[row, column] = sum over k of a[row, k] * b[k, column]  where the
// addresses of a are the sum of a row and a k offset, and those of b the sum of a k
// and a column offset, zero outside the input.  Nothing is materialised: windows are
// gathered straight into packed panels.
template <class T>
struct Contraction {
  std::int64_t rows, columns, k_total;
  const T* a;
  const T* b;
  std::vector<std::int64_t> a_row, out_row;  // offsets, one per row
  // Offsets of [k0, k0 + n) into a and b.
  std::function<void(std::int64_t k0, std::int64_t n, std::int64_t* a, Axis* b)> k_axis;
  // Sixteen columns of b, and where they go, from column j0; n of them exist.
  std::function<void(std::int64_t j0, std::int64_t n, Axis* b, std::int64_t* out)> column_axis;
  std::int32_t size[3] = {1, 1, 1};
  bool bounded = false;
  bool chained = false;
  T* out;
  std::uint64_t row = 0, block = 0;
};

// Computes `count` independent contractions: side by side when there are enough of them,
// each by all threads otherwise.
template <class T>
void run_all(const Context& context, std::int64_t count,
             const std::function<Contraction<T>(std::int64_t)>& make);

// 0, stride, 2 stride, ...
std::vector<std::int64_t> strided(std::int64_t count, std::int64_t stride);

}  // namespace prism
