// Drivers of gemm and the convolutions: one contraction, described by offsets.
//
// Every form is  out[row, column] = sum over k of a[row, k] * b[k, column]  where the
// addresses of a are the sum of a row and a k offset, and those of b the sum of a k
// and a column offset, zero outside the input.  Nothing is materialised: windows are
// gathered straight into packed panels.
#include <algorithm>
#include <functional>

#include "prism.h"
#include "threads.h"

namespace prism {
namespace {

// Both packed operands of a pass stay within a second-level cache.
constexpr std::int64_t kChunkK = 10 * kKBlock;
constexpr std::int64_t kChunkBytes = 1 << 22;

struct Contraction {
  std::int64_t rows, columns, k_total;
  const float* a;
  const float* b;
  std::vector<std::int64_t> a_row, out_row;  // offsets, one per row
  // Offsets of [k0, k0 + n) into a and b.
  std::function<void(std::int64_t k0, std::int64_t n, std::int64_t* a, Axis* b)> k_axis;
  // Sixteen columns of b, and where they go, from column j0; n of them exist.
  std::function<void(std::int64_t j0, std::int64_t n, Axis* b, std::int64_t* out)> column_axis;
  std::int32_t size[3] = {1, 1, 1};
  bool bounded = false;
  bool chained = false;
  float* out;
  std::uint64_t row = 0, block = 0;
};

// Per thread; grows to the largest contraction seen and is reused.
struct Workspace {
  std::vector<double> packed, totals;
  std::vector<std::int64_t> k_a;
  std::vector<Axis> k_b;
};

template <class T>
T* at_least(std::vector<T>& memory, std::int64_t count) {
  if (static_cast<std::int64_t>(memory.size()) < count) memory.resize(count);
  return memory.data();
}

Workspace& workspace() {
  thread_local Workspace memory;
  return memory;
}

float* panel_memory(std::int64_t count) {
  thread_local std::vector<float> memory;
  return at_least(memory, count);
}

class Pass {
 public:
  Pass(const Context& context, const Kernels& kernel, const Block& key, const Contraction& c,
       int threads)
      : context_(context), kernel_(kernel), key_(key), c_(c), threads_(threads) {}

  void run() {
    if (c_.rows == 0 || c_.columns == 0) return;
    const std::int64_t k_step = std::min(kChunkK, c_.k_total);
    std::int64_t row_step = kChunkBytes / 8 / k_step / kRowPack * kRowPack;
    row_step = std::min(std::max(row_step, kRowPack), (c_.rows + 7) / kRowPack * kRowPack);
    groups_ = (c_.columns + kGroup - 1) / kGroup;
    Workspace& w = workspace();
    packed_ = at_least(w.packed, row_step * k_step);
    totals_ = k_step < c_.k_total ? at_least(w.totals, row_step * groups_ * kGroup) : nullptr;
    k_a_ = at_least(w.k_a, k_step);
    k_b_ = at_least(w.k_b, k_step);
    for (std::int64_t r0 = 0; r0 < c_.rows; r0 += row_step) {
      const std::int64_t rows = std::min(row_step, c_.rows - r0);
      for (std::int64_t k0 = 0; k0 < c_.k_total; k0 += k_step) {
        chunk(r0, rows, k0, std::min(k_step, c_.k_total - k0));
      }
    }
  }

 private:
  void chunk(std::int64_t r0, std::int64_t rows, std::int64_t k0, std::int64_t k_count) {
    c_.k_axis(k0, k_count, k_a_, k_b_);
    const std::int64_t packs = (rows + kRowPack - 1) / kRowPack;
    parallel_for(threads_, packs, std::max<std::int64_t>(1, 8192 / k_count),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t p = begin; p < end; ++p) {
                     const std::int64_t first = r0 + p * kRowPack;
                     kernel_.pack_rows(context_.rounding, {c_.a, c_.a_row.data() + first,
                                                           std::min(kRowPack, c_.rows - first),
                                                           k_a_, k_count, packed(p, k_count)});
                   }
                 });
    // Few panels of many rows are shared out by rows as well.
    const std::int64_t wanted = std::max<std::int64_t>(1, 4 * threads_ / groups_);
    const std::int64_t strips = threads_ > 1 ? std::min(wanted, (packs + 7) / 8) : 1;
    const std::int64_t strip = (packs + strips - 1) / strips * kRowPack;
    const std::int64_t work = std::min(rows, strip) * k_count * kGroup;
    parallel_for(threads_, groups_ * strips, std::max<std::int64_t>(1, 65536 / work),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t item = begin; item < end; ++item) {
                     const std::int64_t s0 = item % strips * strip;
                     if (s0 >= rows) continue;
                     panel(item / strips, r0, s0, std::min(strip, rows - s0), k0, k_count);
                   }
                 });
  }

  void panel(std::int64_t group, std::int64_t r0, std::int64_t s0, std::int64_t rows,
             std::int64_t k0, std::int64_t k_count) {
    Axis column[kGroup] = {};
    std::int64_t out_column[kGroup] = {};
    const std::int64_t j0 = group * kGroup, columns = std::min(kGroup, c_.columns - j0);
    c_.column_axis(j0, columns, column, out_column);
    bool contiguous = columns == kGroup;
    for (int j = 1; j < kGroup && contiguous; ++j) {
      contiguous = out_column[j] == out_column[0] + j;
    }
    float* memory = panel_memory(k_count * kGroup);
    kernel_.pack_panel({c_.b,
                        k_b_,
                        k_count,
                        column,
                        columns,
                        {c_.size[0], c_.size[1], c_.size[2]},
                        c_.bounded,
                        memory});
    Multiply m{};
    m.a = packed(s0 / kRowPack, k_count);
    m.panel = memory;
    m.rows = rows;
    m.k_begin = k0;
    m.k_count = k_count;
    m.k_total = c_.k_total;
    m.row = c_.row + r0 + s0;
    m.block = c_.block;
    m.group = group;
    m.totals = totals_ ? totals_ + (group * row_capacity() + s0) * kGroup : nullptr;
    m.out = c_.out;
    m.out_row = c_.out_row.data() + r0 + s0;
    m.out_column = out_column;
    m.columns = columns;
    m.contiguous = contiguous;
    m.chained = c_.chained;
    kernel_.multiply(context_.rounding, key_, m);
  }

  std::int64_t row_capacity() const {
    const std::int64_t k_step = std::min(kChunkK, c_.k_total);
    const std::int64_t step = kChunkBytes / 8 / k_step / kRowPack * kRowPack;
    return std::min(std::max(step, kRowPack), (c_.rows + 7) / kRowPack * kRowPack);
  }

  double* packed(std::int64_t pack, std::int64_t k_count) const {
    return packed_ + pack * k_count * kRowPack;
  }

  const Context& context_;
  const Kernels& kernel_;
  const Block& key_;
  const Contraction& c_;
  const int threads_;
  std::int64_t groups_ = 0;
  double* packed_ = nullptr;
  double* totals_ = nullptr;
  std::int64_t* k_a_ = nullptr;
  Axis* k_b_ = nullptr;
};

// Independent contractions: in parallel when there are enough, each in parallel otherwise.
void run_all(const Context& context, std::int64_t count,
             const std::function<Contraction(std::int64_t)>& make) {
  const Kernels& kernel = kernels();
  const Block key = stream_key(context.stream);
  if (count >= 2 * context.threads && context.threads > 1) {
    parallel_for(context.threads, count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Contraction c = make(i);
        Pass(context, kernel, key, c, 1).run();
      }
    });
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const Contraction c = make(i);
    Pass(context, kernel, key, c, context.threads).run();
  }
}

std::vector<std::int64_t> strided(std::int64_t count, std::int64_t stride) {
  std::vector<std::int64_t> offsets(count);
  for (std::int64_t i = 0; i < count; ++i) offsets[i] = i * stride;
  return offsets;
}

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

void gemm(const Context& context, const View<const float>& a, const View<const float>& b,
          const View<float>& out) {
  const std::int64_t rows = a.size[1], k_total = a.size[2], columns = b.size[2];
  run_all(context, a.size[0], [&](std::int64_t i) {
    Contraction c;
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

void conv(const Context& context, const View<const float>& x, const View<const float>& weight,
          const View<float>& out, const Geometry& g) {
  const std::int64_t rows = out.size[1] / g.groups, channels = weight.size[1];
  const std::int64_t* kernel = weight.size.data() + 2;
  const std::int64_t* in = x.size.data() + 2;
  const std::int64_t* to_size = out.size.data() + 2;
  const bool bounded = leaves_input(to_size, kernel, in, g);
  run_all(context, g.groups, [&](std::int64_t group) {
    Contraction c;
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

void fill_zero(const View<float>& out, const std::int64_t* residue, const Geometry& g) {
  for (std::int64_t n = 0; n < out.size[0]; ++n)
    for (std::int64_t c = 0; c < out.size[1]; ++c)
      for (std::int64_t d = residue[0]; d < out.size[2]; d += g.stride[0])
        for (std::int64_t h = residue[1]; h < out.size[3]; h += g.stride[1])
          for (std::int64_t w = residue[2]; w < out.size[4]; w += g.stride[2])
            out.data[n * out.stride[0] + c * out.stride[1] + d * out.stride[2] + h * out.stride[3] +
                     w * out.stride[4]] = 0.0f;
}

void transposed_phase(const Context& context, const View<const float>& x,
                      const View<const float>& weight, const View<float>& out, const Geometry& g,
                      const std::int64_t* residue, const Taps* taps, std::uint64_t block) {
  const std::int64_t rows = out.size[1] / g.groups, inputs = x.size[1] / g.groups;
  const std::int64_t counts[3] = {static_cast<std::int64_t>(taps[0].tap.size()),
                                  static_cast<std::int64_t>(taps[1].tap.size()),
                                  static_cast<std::int64_t>(taps[2].tap.size())};
  const std::int64_t positions[3] = {taps[0].positions, taps[1].positions, taps[2].positions};
  run_all(context, g.groups, [&](std::int64_t group) {
    Contraction c;
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

void conv_transposed(const Context& context, const View<const float>& x,
                     const View<const float>& weight, const View<float>& out, const Geometry& g) {
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

void conv_weight(const Context& context, const View<const float>& x, const View<const float>& grad,
                 const View<float>& out, const Geometry& g) {
  const std::int64_t rows = out.size[0] / g.groups, channels = out.size[1];
  const std::int64_t* kernel = out.size.data() + 2;
  const std::int64_t* in = x.size.data() + 2;
  const std::int64_t* from_size = grad.size.data() + 2;
  const bool bounded = leaves_input(from_size, kernel, in, g);
  run_all(context, g.groups, [&](std::int64_t group) {
    Contraction c;
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

}  // namespace prism
