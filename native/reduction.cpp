// The reduce, scan and accumulate primitives: views become rows.
#include <algorithm>

#include "threads.h"
#include "views.h"

namespace prism {

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
