// Matrix products as contractions.
#include "contraction.h"

namespace prism {

template <class T>
void gemm(const Context& context, const View<const T>& a, const View<const T>& b,
          const View<T>& out) {
  const std::int64_t rows = a.size[1], k_total = a.size[2], columns = b.size[2];
  run_all<T>(context, a.size[0], [&](std::int64_t i) {
    Contraction<T> c;
    c.rows = rows;
    c.columns = columns;
    c.k_total = k_total;
    c.a = a.data + i * a.stride[0];
    c.b = b.data + i * b.stride[0];
    c.a_row = strided(rows, a.stride[1]);
    c.out_row = strided(rows, out.stride[1]);
    c.k_axis = [&](std::int64_t k0, std::int64_t n, std::int64_t* ka, Axis* kb) {
      for (std::int64_t k = 0; k < n; ++k) {
        ka[k] = (k0 + k) * a.stride[2];
        kb[k] = {(k0 + k) * b.stride[1], {0, 0, 0}};
      }
    };
    c.column_axis = [&](std::int64_t j0, std::int64_t n, Axis* column, std::int64_t* to) {
      for (std::int64_t j = 0; j < n; ++j) {
        column[j] = {(j0 + j) * b.stride[2], {0, 0, 0}};
        to[j] = (j0 + j) * out.stride[2];
      }
    };
    c.out = out.data + i * out.stride[0];
    c.row = static_cast<std::uint64_t>(i * rows);
    return c;
  });
}

template void gemm(const Context&, const View<const float>&, const View<const float>&,
                   const View<float>&);
template void gemm(const Context&, const View<const double>&, const View<const double>&,
                   const View<double>&);

}  // namespace prism
