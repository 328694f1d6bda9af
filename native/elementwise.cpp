// The elementwise primitive: views become tiles.
#include <algorithm>

#include "threads.h"
#include "views.h"

namespace prism {
namespace {

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

// Places for the results of a program, few enough to stay in the first level of the caches:
// one that nothing reads any more is given to the next result.
struct Slots {
  std::vector<int> of;  // per instruction
  int count = 0;

  Slots(const std::vector<Instruction>& code, int first_result) : of(code.size()) {
    const int n = static_cast<int>(code.size());
    std::vector<int> last(n, -1), holder;
    for (int i = 0; i < n; ++i) {
      for (const int r : {code[i].a, code[i].b, code[i].c}) {
        if (r >= first_result) last[r - first_result] = i;
      }
    }
    for (int i = 0; i < n; ++i) {
      // An instruction may write where it reads: it does both element by element.
      const auto free =
          std::find_if(holder.begin(), holder.end(), [&](int result) { return last[result] <= i; });
      of[i] = static_cast<int>(free - holder.begin());
      if (free == holder.end()) {
        holder.push_back(i);
      } else {
        *free = i;
      }
    }
    count = static_cast<int>(holder.size());
  }
};

}  // namespace

template <class T>
void elementwise(const Context& context, const std::vector<Instruction>& code,
                 const std::vector<Operand>& inputs, const std::vector<T>& scalars,
                 const View<T>& out, std::int64_t first) {
  const Primitives<T>& kernel = kernels().of<T>();
  const Block key = stream_key(context.stream);
  const std::int64_t count = out.count();
  const Flat<T> target(out);
  std::vector<Prepared> prepared;
  for (const Operand& i : inputs) {
    prepared.push_back({Flat<const float>(i.single), Flat<const double>(i.wide), i.is_wide});
  }
  const Slots slots(code, static_cast<int>(inputs.size() + scalars.size()));
  const std::int64_t tiles = (count + kTile - 1) / kTile;
  parallel_for(context.threads, tiles, 16, [&](std::int64_t begin, std::int64_t end) {
    T* scratch = workspace<T>((slots.count + 1) * kTile);
    float* single = workspace<float, 1>(inputs.size() * kTile);
    double* wide = workspace<double, 1>(inputs.size() * kTile);
    ElementwiseTile<T> t{};
    t.code = code.data();
    t.instructions = static_cast<int>(code.size());
    t.inputs = static_cast<int>(inputs.size());
    t.scalars = static_cast<int>(scalars.size());
    t.scalar = scalars.data();
    t.slot = slots.of.data();
    t.scratch = scratch;
    T* result = scratch + slots.count * kTile;
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t at = tile * kTile;
      t.row = first / kTile + tile;
      t.count = std::min(kTile, count - at);
      for (int i = 0; i < t.inputs; ++i) {
        t.input[i] = tile_input(prepared[i], at, t.count, single + i * kTile, wide + i * kTile);
      }
      const bool direct = target.contiguous() && t.count % kGroup == 0;
      t.out = direct ? target.data + at : result;
      kernel.elementwise(context.rounding, key, t);
      if (!direct) scatter(target, at, t.count, result);
    }
  });
}

template void elementwise(const Context&, const std::vector<Instruction>&,
                          const std::vector<Operand>&, const std::vector<float>&,
                          const View<float>&, std::int64_t);
template void elementwise(const Context&, const std::vector<Instruction>&,
                          const std::vector<Operand>&, const std::vector<double>&,
                          const View<double>&, std::int64_t);

}  // namespace prism
