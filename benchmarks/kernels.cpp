// Cycles per sixteen elements of the kernels alone, on data that stays in the caches.
//
// Compiled once per instruction set, as the kernels are (make cycles).  A cycle is the time of an
// addition in a chain of dependent ones, so that the clock of the machine does not matter.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "contraction_kernel.h"
#include "elementwise_kernel.h"
#include "packing.h"
#include "reduction_kernel.h"

namespace {

using namespace prism;
using namespace prism::PRISM_ISA;

constexpr int kRepeats = 60;
constexpr Block kKey{{1, 2, 3, 4}};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The shortest of many runs, which other programs disturbed least.
template <class Work>
double shortest(Work work) {
  double best = 1e300;
  for (int i = 0; i < kRepeats; ++i) {
    const double start = now();
    work();
    const double taken = now() - start;
    best = taken < best ? taken : best;
  }
  return best;
}

double seconds_per_cycle() {
  constexpr long kSteps = 2000000;
  static const double cycle = shortest([] {
                                unsigned long x = 1;
                                for (long i = 0; i < kSteps; ++i)
                                  asm volatile("add $1, %0" : "+r"(x));
                              }) /
                              kSteps;
  return cycle;
}

template <class Work>
double cycles(double groups, Work work) {
  return shortest(work) / seconds_per_cycle() / groups;
}

template <class T>
std::vector<T> deviates(std::size_t count) {
  std::vector<T> x(count);
  std::uint64_t state = 1;
  for (T& value : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<T>(static_cast<std::int64_t>(state) * 0x1p-62);
  }
  return x;
}

// 96 rows by 16 columns, K = 1152: operands larger than the first level of the caches.
template <class T>
double product(const Rounding& rounding) {
  constexpr std::int64_t kRowsHere = 96, kLength = 1152;
  const std::vector<T> a = deviates<T>(kRowsHere * kLength), b = deviates<T>(kLength * kGroup);
  std::vector<double> packed(kRowsHere * kLength);
  std::vector<T> out(kRowsHere * kGroup);
  std::vector<std::int64_t> row(kRowsHere), k(kLength), to(kRowsHere), column(kGroup);
  for (std::int64_t i = 0; i < kRowsHere; ++i) row[i] = i * kLength, to[i] = i * kGroup;
  for (std::int64_t i = 0; i < kLength; ++i) k[i] = i;
  for (std::int64_t j = 0; j < kGroup; ++j) column[j] = j;
  for (std::int64_t r = 0; r < kRowsHere; r += kRowPack) {
    pack_rows<T>(rounding, {a.data(), row.data() + r, kRowPack, k.data(), kLength,
                            packed.data() + r * kLength});
  }
  Multiply<T> m{};
  m.a = packed.data();
  m.panel = b.data();
  m.rows = kRowsHere;
  m.k_count = m.k_total = kLength;
  m.out = out.data();
  m.out_row = to.data();
  m.out_column = column.data();
  m.columns = kGroup;
  m.contiguous = true;
  return cycles(kRowsHere * kLength, [&] { multiply<T>(rounding, kKey, m); });
}

// A panel of 16 columns, whose elements are neighbours along K or across the columns.
template <class T>
double packing(bool along_k) {
  constexpr std::int64_t kLength = 1152;
  const std::vector<T> b = deviates<T>(kLength * kGroup);
  std::vector<T> out(kLength * kGroup);
  std::vector<Axis> k(kLength), column(kGroup);
  std::vector<std::int64_t> run_end;
  for (std::int64_t i = 0; i < kLength; ++i) {
    k[i].offset = along_k ? i : i * kGroup;
    if (!along_k || i + 1 == kLength) run_end.push_back(i + 1);
  }
  for (std::int64_t j = 0; j < kGroup; ++j) column[j].offset = along_k ? j * kLength : j;
  const PackPanel<T> p{
      b.data(),      k.data(), kLength,   run_end.data(), static_cast<std::int64_t>(run_end.size()),
      column.data(), kGroup,   {1, 1, 1}, false,          out.data()};
  return cycles(kLength, [&] { pack_panel<T>(p); });
}

template <class T>
double operation(const Rounding& rounding, Op op) {
  const std::vector<T> a = deviates<T>(kTile), b = deviates<T>(kTile), c = deviates<T>(kTile);
  std::vector<T> out(kTile);
  const Instruction code[] = {{op, 0, 1, 2}};
  ElementwiseTile<T> t{};
  t.code = code;
  t.instructions = 1;
  t.inputs = 3;
  t.input[0] = a.data();
  t.input[1] = b.data();
  t.input[2] = c.data();
  t.out = out.data();
  t.count = kTile;
  return cycles(40.0 * kTile / kGroup, [&] {
    for (t.row = 0; t.row < 40; ++t.row) elementwise<T>(rounding, kKey, t);
  });
}

template <class T>
double sum(const Rounding& rounding) {
  constexpr std::int64_t kCount = 4096;
  const std::vector<T> x = deviates<T>(kCount);
  ReduceChunk<T> c{Reduction::sum, x.data(), x.data(), kCount, 0, true};
  return cycles(40.0 * kCount / kGroup, [&] {
    for (c.row = 0; c.row < 40; ++c.row) reduce_chunk<T>(rounding, kKey, c);
  });
}

template <class Measure>
void line(const char* name, bool wide, Measure measure) {
  std::printf("%-28s", name);
  for (const Mode mode : {Mode::rn, Mode::sr, Mode::ud, Mode::cestac, Mode::up}) {
    const Rounding rounding = wide ? Rounding{mode, 53, -1022, 0x1.fffffffffffffp1023}
                                   : Rounding{mode, 24, -126, 0x1.fffffep127};
    std::printf("%9.2f", measure(rounding));
  }
  std::printf("\n");
}

}  // namespace

#define PRISM_TEXT(x) #x
#define PRISM_NAME_OF(x) PRISM_TEXT(x)

int main() {
  std::printf("%-28s%9s%9s%9s%9s%9s\n", "cycles, " PRISM_NAME_OF(PRISM_ISA), "rn", "sr", "ud",
              "cestac", "up");
  line("16 products, float32", false, product<float>);
  line("16 products, float64", true, product<double>);
  std::printf("%-28s%9.2f\n", "16 packed along K", packing<float>(true));
  std::printf("%-28s%9.2f\n", "16 packed across columns", packing<float>(false));
  line("16 sums, float32", false, [](auto& r) { return operation<float>(r, Op::add); });
  line("16 multiply-adds, float32", false, [](auto& r) { return operation<float>(r, Op::fma); });
  line("16 quotients, float32", false, [](auto& r) { return operation<float>(r, Op::div); });
  line("16 terms of a sum, float32", false, sum<float>);
  line("16 terms of a sum, float64", true, sum<double>);
  line("16 exp, float32", false, [](auto& r) { return operation<float>(r, Op::exp); });
  line("16 tanh, float32", false, [](auto& r) { return operation<float>(r, Op::tanh); });
  line("16 erf, float32", false, [](auto& r) { return operation<float>(r, Op::erf); });
  return 0;
}
