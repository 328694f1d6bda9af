// Packing and multiplying in passes that fit the caches; shared out among threads.
#include "contraction.h"

#include <algorithm>

#include "threads.h"

namespace prism {
namespace {

// Both packed operands of a pass stay within a second-level cache.
constexpr std::int64_t kChunkK = 10 * kKBlock;
constexpr std::int64_t kChunkBytes = 1 << 22;

// Per thread; grows to the largest contraction seen and is reused.
struct Workspace {
  std::vector<double> packed, totals;
  std::vector<std::int64_t> k_a, run_end;
  std::vector<Axis> k_b;
};

template <class U>
U* at_least(std::vector<U>& memory, std::int64_t count) {
  if (static_cast<std::int64_t>(memory.size()) < count) memory.resize(count);
  return memory.data();
}

Workspace& workspace() {
  thread_local Workspace memory;
  return memory;
}

template <class T>
T* panel_memory(std::int64_t count) {
  thread_local std::vector<T> memory;
  return at_least(memory, count);
}

template <class T>
class Pass {
 public:
  Pass(const Context& context, const Primitives<T>& kernel, const Block& key,
       const Contraction<T>& c, int threads)
      : context_(context), kernel_(kernel), key_(key), c_(c), threads_(threads) {}

  void run() {
    if (c_.rows == 0 || c_.columns == 0) return;
    const std::int64_t k_step = std::min(kChunkK, c_.k_total);
    const std::int64_t fitting = kChunkBytes / 8 / k_step / kRowPack * kRowPack;
    const std::int64_t padded = (c_.rows + kRowPack - 1) / kRowPack * kRowPack;
    row_step_ = std::min(std::max(fitting, kRowPack), padded);
    groups_ = (c_.columns + kGroup - 1) / kGroup;
    Workspace& w = workspace();
    packed_ = at_least(w.packed, row_step_ * k_step);
    totals_ = k_step < c_.k_total ? at_least(w.totals, row_step_ * groups_ * kGroup) : nullptr;
    k_a_ = at_least(w.k_a, k_step);
    k_b_ = at_least(w.k_b, k_step);
    run_end_ = at_least(w.run_end, k_step);
    for (std::int64_t r0 = 0; r0 < c_.rows; r0 += row_step_) {
      const std::int64_t rows = std::min(row_step_, c_.rows - r0);
      for (std::int64_t k0 = 0; k0 < c_.k_total; k0 += k_step) {
        chunk(r0, rows, k0, std::min(k_step, c_.k_total - k0));
      }
    }
  }

 private:
  void chunk(std::int64_t r0, std::int64_t rows, std::int64_t k0, std::int64_t k_count) {
    c_.k_axis(k0, k_count, k_a_, k_b_);
    find_runs(k_count);
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

  void find_runs(std::int64_t k_count) {
    runs_ = 0;
    for (std::int64_t k = 1; k < k_count; ++k) {
      const Axis &a = k_b_[k - 1], &b = k_b_[k];
      const bool beside = b.offset == a.offset + 1 && b.at[0] == a.at[0] && b.at[1] == a.at[1] &&
                          (b.at[2] == a.at[2] + 1 || !c_.bounded);
      if (!beside) run_end_[runs_++] = k;
    }
    run_end_[runs_++] = k_count;
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
    T* memory = panel_memory<T>(k_count * kGroup);
    kernel_.pack_panel({c_.b,
                        k_b_,
                        k_count,
                        run_end_,
                        runs_,
                        column,
                        columns,
                        {c_.size[0], c_.size[1], c_.size[2]},
                        c_.bounded,
                        memory});
    Multiply<T> m{};
    m.a = packed(s0 / kRowPack, k_count);
    m.panel = memory;
    m.rows = rows;
    m.k_begin = k0;
    m.k_count = k_count;
    m.k_total = c_.k_total;
    m.row = c_.row + r0 + s0;
    m.block = c_.block;
    m.group = group;
    m.totals = totals_ ? totals_ + (group * row_step_ + s0) * kGroup : nullptr;
    m.out = c_.out;
    m.out_row = c_.out_row.data() + r0 + s0;
    m.out_column = out_column;
    m.columns = columns;
    m.contiguous = contiguous;
    m.chained = c_.chained;
    kernel_.multiply(context_.rounding, key_, m);
  }

  double* packed(std::int64_t pack, std::int64_t k_count) const {
    return packed_ + pack * k_count * kRowPack;
  }

  const Context& context_;
  const Primitives<T>& kernel_;
  const Block& key_;
  const Contraction<T>& c_;
  const int threads_;
  std::int64_t groups_ = 0, row_step_ = 0;
  double* packed_ = nullptr;
  double* totals_ = nullptr;
  std::int64_t* k_a_ = nullptr;
  Axis* k_b_ = nullptr;
  std::int64_t* run_end_ = nullptr;
  std::int64_t runs_ = 0;
};

}  // namespace

template <class T>
void run_all(const Context& context, std::int64_t count,
             const std::function<Contraction<T>(std::int64_t)>& make) {
  const Primitives<T>& kernel = kernels().of<T>();
  const Block key = stream_key(context.stream);
  if (count >= 2 * context.threads && context.threads > 1) {
    parallel_for(context.threads, count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Contraction<T> c = make(i);
        Pass<T>(context, kernel, key, c, 1).run();
      }
    });
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const Contraction<T> c = make(i);
    Pass<T>(context, kernel, key, c, context.threads).run();
  }
}

template void run_all(const Context&, std::int64_t,
                      const std::function<Contraction<float>(std::int64_t)>&);
template void run_all(const Context&, std::int64_t,
                      const std::function<Contraction<double>(std::int64_t)>&);

std::vector<std::int64_t> strided(std::int64_t count, std::int64_t stride) {
  std::vector<std::int64_t> offsets(count);
  for (std::int64_t i = 0; i < count; ++i) offsets[i] = i * stride;
  return offsets;
}

}  // namespace prism
