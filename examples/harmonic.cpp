// PRISM from C++: the harmonic series in binary32, thirty times under a mode.
//
//   c++ -std=c++17 -I native examples/harmonic.cpp build/*/libprism.a -pthread -o harmonic
//   ./harmonic sr 10000
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "prism.h"

int main(int argc, char** argv) {
  const char* names[] = {"rn", "sr", "ud", "cestac", "zero", "away", "up", "down"};
  int mode = -1;
  for (int i = 0; argc == 3 && i < 8; ++i) {
    if (std::strcmp(argv[1], names[i]) == 0) mode = i;
  }
  const long terms = argc == 3 ? std::atol(argv[2]) : 0;
  if (mode < 0 || terms < 1) {
    std::fprintf(stderr, "usage: harmonic rn|sr|ud|cestac|zero|away|up|down TERMS\n");
    return 2;
  }
  std::vector<float> x(terms), sums(terms);
  for (long i = 0; i < terms; ++i) x[i] = 1.0f / static_cast<float>(i + 1);
  const prism::View<const float> input{x.data(), {1, terms}, {terms, 1}};
  const prism::View<float> output{sums.data(), {1, terms}, {terms, 1}};

  constexpr int kSamples = 30;
  double mean = 0, squares = 0;
  for (int replica = 0; replica < kSamples; ++replica) {
    const prism::Context context{{static_cast<prism::Mode>(mode), 24, -126, 0x1.fffffep127},
                                 {0, static_cast<std::uint64_t>(replica), 0}};
    prism::scan(context, false, input, output);
    const double sum = sums.back(), step = sum - mean;
    mean += step / (replica + 1);
    squares += step * (sum - mean);
  }
  std::printf("%s %s: %ld terms, mean %.7f, std %.2e\n", prism::kernels().name, argv[1], terms,
              mean, std::sqrt(squares / (kSamples - 1)));
}
