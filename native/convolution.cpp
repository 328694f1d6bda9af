// The three forms of a convolution as contractions.
#include "contraction.h"

namespace prism {
namespace {

// Row-major (n, d, h, w) walked without divisions.
struct Position {
  const std::int64_t* size;  // of d, h, w
  std::int64_t n, at[3];

  Position(std::int64_t index, const std::int64_t* s) : size(s) {
    for (int i = 2; i >= 0; --i) {
      at[i] = index % size[i];
      index /= size[i];
    }
    n = index;
  }
  void next() {
    for (int i = 2; i >= 0; --i) {
      if (++at[i] < size[i]) return;
      at[i] = 0;
    }
    ++n;
  }
};

std::int64_t dot3(const std::int64_t* at, const std::int64_t* stride) {
  return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2];
}

// Whether some window of a convolution leaves the input.
bool leaves_input(const std::int64_t* out, const std::int64_t* kernel, const std::int64_t* in,
                  const Geometry& g) {
  for (int i = 0; i < 3; ++i) {
    const std::int64_t last =
        (out[i] - 1) * g.stride[i] + (kernel[i] - 1) * g.dilation[i] - g.padding[i];
    if (g.padding[i] > 0 || last >= in[i]) return true;
  }
  return false;
}

}  // namespace

template <class T>
void conv(const Context& context, const View<const T>& x, const View<const T>& weight,
          const View<T>& out, const Geometry& g) {
  const std::int64_t rows = out.size[1] / g.groups, channels = weight.size[1];
  const std::int64_t* kernel = weight.size.data() + 2;
  const std::int64_t* in = x.size.data() + 2;
  const std::int64_t* to_size = out.size.data() + 2;
  const bool bounded = leaves_input(to_size, kernel, in, g);
  run_all<T>(context, g.groups, [&](std::int64_t group) {
    Contraction<T> c;
    c.rows = rows;
    c.columns = out.size[0] * to_size[0] * to_size[1] * to_size[2];
    c.k_total = channels * kernel[0] * kernel[1] * kernel[2];
    c.a = weight.data + group * rows * weight.stride[0];
    c.b = x.data + group * channels * x.stride[1];
    c.a_row = strided(rows, weight.stride[0]);
    c.out_row = strided(rows, out.stride[1]);
    c.k_axis = [&](std::int64_t k0, std::int64_t n, std::int64_t* ka, Axis* kb) {
      Position p(k0, kernel);
      for (std::int64_t k = 0; k < n; ++k, p.next()) {
        ka[k] = p.n * weight.stride[1] + dot3(p.at, weight.stride.data() + 2);
        std::int64_t tap[3];
        for (int i = 0; i < 3; ++i) {
          tap[i] = p.at[i] * g.dilation[i];
          kb[k].at[i] = static_cast<std::int32_t>(tap[i]);
        }
        kb[k].offset = p.n * x.stride[1] + dot3(tap, x.stride.data() + 2);
      }
    };
    c.column_axis = [&](std::int64_t j0, std::int64_t n, Axis* column, std::int64_t* to) {
      Position p(j0, to_size);
      for (std::int64_t j = 0; j < n; ++j, p.next()) {
        std::int64_t at[3];
        for (int i = 0; i < 3; ++i) {
          at[i] = p.at[i] * g.stride[i] - g.padding[i];
          column[j].at[i] = static_cast<std::int32_t>(at[i]);
        }
        column[j].offset = p.n * x.stride[0] + dot3(at, x.stride.data() + 2);
        to[j] = p.n * out.stride[0] + dot3(p.at, out.stride.data() + 2);
      }
    };
    for (int i = 0; i < 3; ++i) c.size[i] = static_cast<std::int32_t>(in[i]);
    c.bounded = bounded;
    c.out = out.data + group * rows * out.stride[1];
    c.row = static_cast<std::uint64_t>(group * rows);
    return c;
  });
}

namespace {

// The taps of one residue of a transposed convolution in one dimension: kernel index,
// and the input position that it meets for output position residue + stride * o, less o.
struct Taps {
  std::vector<std::int64_t> tap, shift;
  std::int64_t positions;  // outputs of this residue
};

Taps find_taps(std::int64_t residue, std::int64_t out, std::int64_t kernel, std::int64_t stride,
               std::int64_t padding, std::int64_t dilation) {
  Taps t;
  t.positions = residue < out ? (out - residue + stride - 1) / stride : 0;
  for (std::int64_t k = 0; k < kernel; ++k) {
    const std::int64_t at = residue + padding - k * dilation;
    if (((at % stride) + stride) % stride != 0) continue;
    t.tap.push_back(k);
    t.shift.push_back(at >= 0 ? at / stride : -(-at / stride));
  }
  return t;
}

template <class T>
void fill_zero(const View<T>& out, const std::int64_t* residue, const Geometry& g) {
  for (std::int64_t n = 0; n < out.size[0]; ++n)
    for (std::int64_t c = 0; c < out.size[1]; ++c)
      for (std::int64_t d = residue[0]; d < out.size[2]; d += g.stride[0])
        for (std::int64_t h = residue[1]; h < out.size[3]; h += g.stride[1])
          for (std::int64_t w = residue[2]; w < out.size[4]; w += g.stride[2])
            out.data[n * out.stride[0] + c * out.stride[1] + d * out.stride[2] + h * out.stride[3] +
                     w * out.stride[4]] = T(0);
}

template <class T>
void transposed_phase(const Context& context, const View<const T>& x, const View<const T>& weight,
                      const View<T>& out, const Geometry& g, const std::int64_t* residue,
                      const Taps* taps, std::uint64_t block) {
  const std::int64_t rows = out.size[1] / g.groups, inputs = x.size[1] / g.groups;
  const std::int64_t counts[3] = {static_cast<std::int64_t>(taps[0].tap.size()),
                                  static_cast<std::int64_t>(taps[1].tap.size()),
                                  static_cast<std::int64_t>(taps[2].tap.size())};
  const std::int64_t positions[3] = {taps[0].positions, taps[1].positions, taps[2].positions};
  run_all<T>(context, g.groups, [&](std::int64_t group) {
    Contraction<T> c;
    c.rows = rows;
    c.columns = out.size[0] * positions[0] * positions[1] * positions[2];
    c.k_total = inputs * counts[0] * counts[1] * counts[2];
    c.a = weight.data + group * inputs * weight.stride[0];
    c.b = x.data + group * inputs * x.stride[1];
    c.a_row = strided(rows, weight.stride[1]);
    c.out_row = strided(rows, out.stride[1]);
    c.k_axis = [&, counts](std::int64_t k0, std::int64_t n, std::int64_t* ka, Axis* kb) {
      Position p(k0, counts);
      for (std::int64_t k = 0; k < n; ++k, p.next()) {
        std::int64_t tap[3], shift[3];
        for (int i = 0; i < 3; ++i) {
          tap[i] = taps[i].tap[p.at[i]];
          shift[i] = taps[i].shift[p.at[i]];
          kb[k].at[i] = static_cast<std::int32_t>(shift[i]);
        }
        ka[k] = p.n * weight.stride[0] + dot3(tap, weight.stride.data() + 2);
        kb[k].offset = p.n * x.stride[1] + dot3(shift, x.stride.data() + 2);
      }
    };
    c.column_axis = [&, positions](std::int64_t j0, std::int64_t n, Axis* column,
                                   std::int64_t* to) {
      Position p(j0, positions);
      for (std::int64_t j = 0; j < n; ++j, p.next()) {
        std::int64_t at[3];
        for (int i = 0; i < 3; ++i) {
          column[j].at[i] = static_cast<std::int32_t>(p.at[i]);
          at[i] = residue[i] + g.stride[i] * p.at[i];
        }
        column[j].offset = p.n * x.stride[0] + dot3(p.at, x.stride.data() + 2);
        to[j] = p.n * out.stride[0] + dot3(at, out.stride.data() + 2);
      }
    };
    for (int i = 0; i < 3; ++i) c.size[i] = static_cast<std::int32_t>(x.size[2 + i]);
    c.bounded = true;
    c.out = out.data + group * rows * out.stride[1];
    c.row = static_cast<std::uint64_t>(group * rows);
    c.block = block;
    return c;
  });
}

}  // namespace

template <class T>
void conv_transposed(const Context& context, const View<const T>& x, const View<const T>& weight,
                     const View<T>& out, const Geometry& g) {
  const std::int64_t* kernel = weight.size.data() + 2;
  const std::int64_t longest = x.size[1] / g.groups * kernel[0] * kernel[1] * kernel[2];
  const std::uint64_t blocks = static_cast<std::uint64_t>((longest + kKBlock - 1) / kKBlock);
  std::uint64_t phase = 0;
  std::int64_t r[3];
  for (r[0] = 0; r[0] < g.stride[0]; ++r[0]) {
    for (r[1] = 0; r[1] < g.stride[1]; ++r[1]) {
      for (r[2] = 0; r[2] < g.stride[2]; ++r[2], ++phase) {
        Taps taps[3];
        bool empty = false, reached = true;
        for (int i = 0; i < 3; ++i) {
          taps[i] =
              find_taps(r[i], out.size[2 + i], kernel[i], g.stride[i], g.padding[i], g.dilation[i]);
          empty |= taps[i].tap.empty();
          reached &= taps[i].positions > 0;
        }
        if (!reached) continue;
        if (empty) {
          fill_zero(out, r, g);
        } else {
          transposed_phase(context, x, weight, out, g, r, taps, phase * blocks);
        }
      }
    }
  }
}

template <class T>
void conv_weight(const Context& context, const View<const T>& x, const View<const T>& grad,
                 const View<T>& out, const Geometry& g) {
  const std::int64_t rows = out.size[0] / g.groups, channels = out.size[1];
  const std::int64_t* kernel = out.size.data() + 2;
  const std::int64_t* in = x.size.data() + 2;
  const std::int64_t* from_size = grad.size.data() + 2;
  const bool bounded = leaves_input(from_size, kernel, in, g);
  run_all<T>(context, g.groups, [&](std::int64_t group) {
    Contraction<T> c;
    c.rows = rows;
    c.columns = channels * kernel[0] * kernel[1] * kernel[2];
    c.k_total = grad.size[0] * from_size[0] * from_size[1] * from_size[2];
    c.a = grad.data + group * rows * grad.stride[1];
    c.b = x.data + group * channels * x.stride[1];
    c.a_row = strided(rows, grad.stride[1]);
    c.out_row = strided(rows, out.stride[0]);
    c.k_axis = [&](std::int64_t k0, std::int64_t n, std::int64_t* ka, Axis* kb) {
      Position p(k0, from_size);
      for (std::int64_t k = 0; k < n; ++k, p.next()) {
        std::int64_t at[3];
        for (int i = 0; i < 3; ++i) {
          at[i] = p.at[i] * g.stride[i] - g.padding[i];
          kb[k].at[i] = static_cast<std::int32_t>(at[i]);
        }
        ka[k] = p.n * grad.stride[0] + dot3(p.at, grad.stride.data() + 2);
        kb[k].offset = p.n * x.stride[0] + dot3(at, x.stride.data() + 2);
      }
    };
    c.column_axis = [&](std::int64_t j0, std::int64_t n, Axis* column, std::int64_t* to) {
      Position p(j0, kernel);
      for (std::int64_t j = 0; j < n; ++j, p.next()) {
        std::int64_t tap[3];
        for (int i = 0; i < 3; ++i) {
          tap[i] = p.at[i] * g.dilation[i];
          column[j].at[i] = static_cast<std::int32_t>(tap[i]);
        }
        column[j].offset = p.n * x.stride[1] + dot3(tap, x.stride.data() + 2);
        to[j] = p.n * out.stride[1] + dot3(p.at, out.stride.data() + 2);
      }
    };
    for (int i = 0; i < 3; ++i) c.size[i] = static_cast<std::int32_t>(in[i]);
    c.bounded = bounded;
    // Stock kernels add all images and positions in one chain, but for 1x1 kernels, which
    // they hand to a matrix product.
    c.chained = kernel[0] * kernel[1] * kernel[2] > 1;
    c.out = out.data + group * rows * out.stride[0];
    c.row = static_cast<std::uint64_t>(group * rows);
    return c;
  });
}

template void conv(const Context&, const View<const float>&, const View<const float>&,
                   const View<float>&, const Geometry&);
template void conv_transposed(const Context&, const View<const float>&, const View<const float>&,
                              const View<float>&, const Geometry&);
template void conv_weight(const Context&, const View<const float>&, const View<const float>&,
                          const View<float>&, const Geometry&);
template void conv(const Context&, const View<const double>&, const View<const double>&,
                   const View<double>&, const Geometry&);
template void conv_transposed(const Context&, const View<const double>&, const View<const double>&,
                              const View<double>&, const Geometry&);
template void conv_weight(const Context&, const View<const double>&, const View<const double>&,
                          const View<double>&, const Geometry&);

}  // namespace prism
