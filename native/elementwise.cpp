// Drivers of the elementwise, reduce, scan and accumulate primitives: views become tiles.
#include <algorithm>
#include <cstring>

#include "prism.h"
#include "threads.h"

namespace prism {
namespace {

// A view as few dimensions as possible, in logical order.
template <class T>
struct Flat {
  T* data;
  int dims = 0;
  std::int64_t size[kMaxDims], stride[kMaxDims];

  explicit Flat(const View<T>& v) : data(v.data) {
    for (std::size_t d = 0; d < v.size.size(); ++d) {
      if (v.size[d] == 1) continue;
      if (dims > 0 && stride[dims - 1] == v.stride[d] * v.size[d]) {
        size[dims - 1] *= v.size[d];
        stride[dims - 1] = v.stride[d];
      } else {
        size[dims] = v.size[d];
        stride[dims++] = v.stride[d];
      }
    }
    if (dims == 0) {
      size[0] = 1;
      stride[0] = 1;
      dims = 1;
    }
  }
  bool contiguous() const { return dims == 1 && stride[0] == 1; }

  // Calls body(pointer, stride, length) for the runs of elements [first, first + count).
  template <class Body>
  void runs(std::int64_t first, std::int64_t count, Body body) const {
    std::int64_t at[kMaxDims], offset = 0, rest = first;
    for (int d = dims - 1; d >= 0; --d) {
      at[d] = rest % size[d];
      rest /= size[d];
      offset += at[d] * stride[d];
    }
    while (count > 0) {
      const std::int64_t run = std::min(size[dims - 1] - at[dims - 1], count);
      body(data + offset, stride[dims - 1], run);
      count -= run;
      at[dims - 1] += run;
      offset += run * stride[dims - 1];
      for (int d = dims - 1; d > 0 && at[d] == size[d]; --d) {
        offset += stride[d - 1] - at[d] * stride[d];
        at[d] = 0;
        ++at[d - 1];
      }
    }
  }
};

template <class T, class U>
void gather(const Flat<T>& from, std::int64_t first, std::int64_t count, U* to) {
  from.runs(first, count, [&](T* p, std::int64_t stride, std::int64_t n) {
    if (stride == 1) {
      std::memcpy(to, p, n * sizeof(T));
    } else if (stride == 0) {
      std::fill_n(to, n, *p);
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = p[i * stride];
    }
    to += n;
  });
}

void scatter(const Flat<float>& to, std::int64_t first, std::int64_t count, const float* from) {
  to.runs(first, count, [&](float* p, std::int64_t stride, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) p[i * stride] = from[i];
    from += n;
  });
}

// Memory of the calling thread that lives as long as it.
template <class T>
T* workspace(std::size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

struct Prepared {
  Flat<const float> single;
  Flat<const double> wide;
  bool is_wide;
};

// Where the kernel finds an input: in place, or gathered into scratch with a padded tail.
const void* tile_input(const Prepared& input, std::int64_t first, std::int64_t count, float* single,
                       double* wide) {
  const std::int64_t padded = (count + kGroup - 1) / kGroup * kGroup;
  if (input.is_wide) {
    if (input.wide.contiguous() && padded == count) return input.wide.data + first;
    gather(input.wide, first, count, wide);
    std::fill(wide + count, wide + padded, 0.0);
    return wide;
  }
  if (input.single.contiguous() && padded == count) return input.single.data + first;
  gather(input.single, first, count, single);
  std::fill(single + count, single + padded, 0.0f);
  return single;
}

}  // namespace

void elementwise(const Context& context, const std::vector<Instruction>& code,
                 const std::vector<Operand>& inputs, const std::vector<float>& scalars,
                 const View<float>& out) {
  const Kernels& kernel = kernels();
  const Block key = stream_key(context.stream);
  const std::int64_t count = out.count();
  const Flat<float> target(out);
  std::vector<Prepared> prepared;
  for (const Operand& i : inputs) {
    prepared.push_back({Flat<const float>(i.single), Flat<const double>(i.wide), i.is_wide});
  }
  const std::int64_t registers = inputs.size() + scalars.size() + code.size();
  const std::int64_t tiles = (count + kTile - 1) / kTile;
  parallel_for(context.threads, tiles, 16, [&](std::int64_t begin, std::int64_t end) {
    float* scratch = workspace<float>((registers + 1) * kTile);
    double* wide = workspace<double>(inputs.size() * kTile);
    ElementwiseTile t{};
    t.code = code.data();
    t.instructions = static_cast<int>(code.size());
    t.inputs = static_cast<int>(inputs.size());
    t.scalars = static_cast<int>(scalars.size());
    t.scalar = scalars.data();
    t.scratch = scratch;
    float* result = scratch + registers * kTile;
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t first = tile * kTile;
      t.row = tile;
      t.count = std::min(kTile, count - first);
      for (int i = 0; i < t.inputs; ++i) {
        t.input[i] = tile_input(prepared[i], first, t.count, scratch + i * kTile, wide + i * kTile);
      }
      const bool direct = target.contiguous() && t.count % kGroup == 0;
      t.out = direct ? target.data + first : result;
      kernel.elementwise(context.rounding, key, t);
      if (!direct) scatter(target, first, t.count, result);
    }
  });
}

void reduce(const Context& context, Reduction kind, const View<const float>& x,
            const View<const float>* y, const View<float>& out) {
  const Kernels& kernel = kernels();
  const Block key = stream_key(context.stream);
  const std::int64_t rows = out.size[0], length = x.count() / rows;
  const std::int64_t chunks = (length + kReduceChunk - 1) / kReduceChunk;
  std::vector<double> totals(chunks > 1 ? rows * chunks : 0);
  const Flat<const float> flat_x(x);
  const Flat<const float> flat_y(y ? *y : x);
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::min(length, kReduceChunk));
  parallel_for(context.threads, rows * chunks, grain, [&](std::int64_t begin, std::int64_t end) {
    float* memory = workspace<float>(2 * std::min(length, kReduceChunk));
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t row = item / chunks, chunk = item % chunks;
      const std::int64_t first = row * length + chunk * kReduceChunk;
      ReduceChunk c{};
      c.kind = kind;
      c.count = std::min(kReduceChunk, length - chunk * kReduceChunk);
      c.row = item;
      c.last = chunks == 1;
      const auto contiguous = [&](const Flat<const float>& v, float* spare) -> const float* {
        if (v.contiguous()) return v.data + first;
        gather(v, first, c.count, spare);
        return spare;
      };
      c.x = contiguous(flat_x, memory);
      c.y = y ? contiguous(flat_y, memory + std::min(length, kReduceChunk)) : c.x;
      const double total = kernel.reduce_chunk(context.rounding, key, c);
      if (chunks > 1) {
        totals[item] = total;
      } else {
        out.data[row * out.stride[0]] = static_cast<float>(total);
      }
    }
  });
  for (std::int64_t row = 0; chunks > 1 && row < rows; ++row) {
    const ReduceTotals t{kind, totals.data() + row * chunks, chunks,
                         static_cast<std::uint64_t>(row * chunks)};
    out.data[row * out.stride[0]] =
        static_cast<float>(kernel.reduce_totals(context.rounding, key, t));
  }
}

void scan(const Context& context, bool product, const View<const float>& x,
          const View<float>& out) {
  const Kernels& kernel = kernels();
  const Block key = stream_key(context.stream);
  const std::int64_t rows = x.size[0], length = x.size[1];
  const std::int64_t groups = (rows + kGroup - 1) / kGroup;
  parallel_for(context.threads, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    float* memory = workspace<float>(2 * kScanBlock * kGroup);
    for (std::int64_t g = begin; g < end; ++g) {
      const std::int64_t lanes = std::min(kGroup, rows - g * kGroup);
      float carry[kGroup] = {};
      for (std::int64_t k0 = 0; k0 < length; k0 += kScanBlock) {
        const std::int64_t n = std::min(kScanBlock, length - k0);
        std::fill_n(memory, n * kGroup, 0.0f);
        for (std::int64_t l = 0; l < lanes; ++l) {
          const float* p = x.data + (g * kGroup + l) * x.stride[0] + k0 * x.stride[1];
          for (std::int64_t k = 0; k < n; ++k) memory[k * kGroup + l] = p[k * x.stride[1]];
        }
        float* result = memory + kScanBlock * kGroup;
        kernel.scan(context.rounding, key,
                    {product, memory, result, n, k0, carry, static_cast<std::uint64_t>(g)});
        for (std::int64_t l = 0; l < lanes; ++l) {
          float* p = out.data + (g * kGroup + l) * out.stride[0] + k0 * out.stride[1];
          for (std::int64_t k = 0; k < n; ++k) p[k * out.stride[1]] = result[k * kGroup + l];
        }
      }
    }
  });
}

void accumulate(const Context& context, const std::int64_t* index, const View<const float>& source,
                const View<float>& out) {
  const Kernels& kernel = kernels();
  const Block key = stream_key(context.stream);
  const std::int64_t inner = source.size[1], count = source.size[0] * inner;
  const Flat<const float> flat(source);
  std::vector<float> copy;
  const float* from = flat.data;
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

}  // namespace prism
