// Which instruction set computes: chosen at run time, the same bits in each.
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "prism.h"

namespace prism {

#define PRISM_DECLARE(isa)      \
  namespace isa {               \
  extern const Kernels kernels; \
  }
#ifdef PRISM_X86
PRISM_DECLARE(avx512)
PRISM_DECLARE(avx2)
#endif
PRISM_DECLARE(baseline)
#undef PRISM_DECLARE

namespace {

std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> list;
#ifdef PRISM_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("aes");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("vaes");
  if (avx512) list.push_back(&avx512::kernels);
  if (avx2) list.push_back(&avx2::kernels);
#endif
  list.push_back(&baseline::kernels);
  return list;
}

const Kernels* find(const std::string& name) {
  for (const Kernels* k : usable()) {
    if (name == k->name) return k;
  }
  return nullptr;
}

std::string possible() {
  std::string names;
  for (const Kernels* k : usable()) names += (names.empty() ? "" : ", ") + std::string(k->name);
  return names;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* k : usable()) names.emplace_back(k->name);
  return names;
}

const Kernels& kernels() {
  const Kernels* current = chosen.load(std::memory_order_relaxed);
  if (current != nullptr) return *current;
  const char* forced = std::getenv("FUZZYTORCH_ISA");
  if (forced == nullptr || *forced == '\0') {
    current = usable().front();
  } else {
    current = find(forced);
    if (current == nullptr) {
      throw std::runtime_error("FUZZYTORCH_ISA=" + std::string(forced) +
                               " is impossible here: this machine can run " + possible() + ".");
    }
  }
  chosen.store(current);
  return *current;
}

void select_isa(const std::string& name) {
  const Kernels* k = find(name);
  if (k == nullptr) {
    throw std::invalid_argument("instruction set " + name +
                                " is impossible here: this machine can run " + possible() + ".");
  }
  chosen.store(k);
}

}  // namespace prism
