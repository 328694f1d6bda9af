// The reduce, scan and accumulate primitives: views become rows.
#include <algorithm>

#include "threads.h"
#include "views.h"

namespace prism {

namespace {

// The terms of reduction rows, each row contiguous: in place where memory allows, otherwise
// gathered; rows that lie side by side in memory are gathered together.
template <class T>
class Rows {
 public:
  Rows(const View<const T>& x, std::int64_t rows, std::int64_t length)
      : x_(x), length_(length), flat_(x), lead_(part(x, rows, true)), tail_(part(x, rows, false)) {
    const bool beside = lead_.dims == 1 && tail_.dims == 1 && lead_.stride[0] < tail_.stride[0];
    if (!flat_.contiguous() && beside) {
      together_ = std::clamp<std::int64_t>(kBlock / length, 1, std::min(rows, kGroup));
    }
  }

  // Floats that a thread must provide to `terms`.
  std::int64_t memory() const {
    if (flat_.contiguous()) return 0;
    return together_ > 1 ? together_ * pitch() : std::min(length_, kReduceChunk);
  }

  // Terms [first, first + count) of a row; `held` is the block of rows in memory.
  const T* terms(std::int64_t row, std::int64_t first, std::int64_t count, T* memory,
                 std::int64_t& held) const {
    if (flat_.contiguous()) return flat_.data + row * length_ + first;
    if (together_ > 1) {
      if (row / together_ != held) transpose(row / together_, memory);
      held = row / together_;
      return memory + row % together_ * pitch() + first;
    }
    gather(flat_, row * length_ + first, count, memory);
    return memory;
  }

 private:
  static constexpr std::int64_t kBlock = 1 << 16;  // floats gathered together

  // The leading dimensions that make up the rows, or the others.
  static View<const T> part(const View<const T>& x, std::int64_t rows, bool leading) {
    std::size_t split = 0;
    for (std::int64_t n = 1; n < rows; ++split) n *= x.size[split];
    View<const T> v;
    v.data = x.data;
    const auto from = leading ? 0 : split, to = leading ? split : x.size.size();
    v.size.assign(x.size.begin() + from, x.size.begin() + to);
    v.stride.assign(x.stride.begin() + from, x.stride.begin() + to);
    return v;
  }

  // A power of two would send all rows to the same cache lines.
  std::int64_t pitch() const { return length_ + kGroup; }

  void transpose(std::int64_t block, T* memory) const {
    const std::int64_t first = block * together_;
    const std::int64_t count = std::min(together_, lead_.size[0] - first);
    const T* from = x_.data + first * lead_.stride[0];
    if (lead_.stride[0] == 1) {
      kernels().of<T>().turn_rows({from, tail_.stride[0], count, length_, memory, pitch()});
      return;
    }
    for (std::int64_t k = 0; k < length_; ++k, from += tail_.stride[0]) {
      for (std::int64_t i = 0; i < count; ++i) memory[i * pitch() + k] = from[i * lead_.stride[0]];
    }
  }

  const View<const T>& x_;
  std::int64_t length_, together_ = 1;
  Flat<const T> flat_, lead_, tail_;
};

}  // namespace

template <class T>
void reduce(const Context& context, Reduction kind, const View<const T>& x, const View<const T>* y,
            const View<T>& out) {
  const Primitives<T>& kernel = kernels().of<T>();
  const Block key = stream_key(context.stream);
  const std::int64_t rows = out.size[0], length = x.count() / rows;
  const std::int64_t chunks = (length + kReduceChunk - 1) / kReduceChunk;
  std::vector<double> totals(chunks > 1 ? rows * chunks : 0);
  const Rows<T> first(x, rows, length), second(y ? *y : x, rows, length);
  const std::int64_t grain =
      (16384 / std::min(length, kReduceChunk) + kGroup) / kGroup * kGroup / (chunks > 1 ? 16 : 1);
  parallel_for(context.threads, rows * chunks, grain, [&](std::int64_t begin, std::int64_t end) {
    T* memory = workspace<T>(first.memory() + second.memory());
    std::int64_t held_x = -1, held_y = -1;
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t row = item / chunks, at = item % chunks * kReduceChunk;
      ReduceChunk<T> c{};
      c.kind = kind;
      c.count = std::min(kReduceChunk, length - at);
      c.row = item;
      c.last = chunks == 1;
      c.x = first.terms(row, at, c.count, memory, held_x);
      c.y = y ? second.terms(row, at, c.count, memory + first.memory(), held_y) : c.x;
      const double total = kernel.reduce_chunk(context.rounding, key, c);
      if (chunks > 1) {
        totals[item] = total;
      } else {
        out.data[row * out.stride[0]] = static_cast<T>(total);
      }
    }
  });
  for (std::int64_t row = 0; chunks > 1 && row < rows; ++row) {
    const ReduceTotals t{kind, totals.data() + row * chunks, chunks,
                         static_cast<std::uint64_t>(row * chunks)};
    out.data[row * out.stride[0]] = static_cast<T>(kernel.reduce_totals(context.rounding, key, t));
  }
}

template <class T>
void scan(const Context& context, bool product, const View<const T>& x, const View<T>& out) {
  const Primitives<T>& kernel = kernels().of<T>();
  const Block key = stream_key(context.stream);
  const std::int64_t rows = x.size[0], length = x.size[1];
  const std::int64_t groups = (rows + kGroup - 1) / kGroup;
  parallel_for(context.threads, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    T* memory = workspace<T>(2 * kScanBlock * kGroup);
    for (std::int64_t g = begin; g < end; ++g) {
      const std::int64_t lanes = std::min(kGroup, rows - g * kGroup);
      T carry[kGroup] = {};
      for (std::int64_t k0 = 0; k0 < length; k0 += kScanBlock) {
        const std::int64_t n = std::min(kScanBlock, length - k0);
        std::fill_n(memory, n * kGroup, T(0));
        for (std::int64_t l = 0; l < lanes; ++l) {
          const T* p = x.data + (g * kGroup + l) * x.stride[0] + k0 * x.stride[1];
          for (std::int64_t k = 0; k < n; ++k) memory[k * kGroup + l] = p[k * x.stride[1]];
        }
        T* result = memory + kScanBlock * kGroup;
        kernel.scan(context.rounding, key,
                    {product, memory, result, n, k0, carry, static_cast<std::uint64_t>(g)});
        for (std::int64_t l = 0; l < lanes; ++l) {
          T* p = out.data + (g * kGroup + l) * out.stride[0] + k0 * out.stride[1];
          for (std::int64_t k = 0; k < n; ++k) p[k * out.stride[1]] = result[k * kGroup + l];
        }
      }
    }
  });
}

template <class T>
void accumulate(const Context& context, const std::int64_t* index, const View<const T>& source,
                const View<T>& out) {
  const Primitives<T>& kernel = kernels().of<T>();
  const Block key = stream_key(context.stream);
  const std::int64_t inner = source.size[1], count = source.size[0] * inner;
  const Flat<const T> flat(source);
  std::vector<T> copy;
  const T* from = flat.data;
  if (!flat.contiguous()) {
    copy.resize(count);
    gather(flat, 0, count, copy.data());
    from = copy.data();
  }
  // Each thread owns a range of destination rows and reads every index: additions to one
  // row keep their order, and no two threads write the same element.
  const std::int64_t rows = out.size[0];
  const std::int64_t pieces = count < 65536 ? 1 : std::min<std::int64_t>(context.threads, rows);
  parallel_for(context.threads, pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      kernel.accumulate(context.rounding, key,
                        {index, from, inner, out.data, 0, count, rows * piece / pieces,
                         rows * (piece + 1) / pieces});
    }
  });
}

template void reduce(const Context&, Reduction, const View<const float>&, const View<const float>*,
                     const View<float>&);
template void scan(const Context&, bool, const View<const float>&, const View<float>&);
template void accumulate(const Context&, const std::int64_t*, const View<const float>&,
                         const View<float>&);
template void reduce(const Context&, Reduction, const View<const double>&,
                     const View<const double>*, const View<double>&);
template void scan(const Context&, bool, const View<const double>&, const View<double>&);
template void accumulate(const Context&, const std::int64_t*, const View<const double>&,
                         const View<double>&);

}  // namespace prism
