// PRISM: probabilistic rounding with instruction set management.
//
// The primitives of stochastic arithmetic on plain memory, usable from any C++
// program.  What each computes, in which order, and with which random bits is
// specified in src/fuzzytorch/backends/protocol.py.  No global state but the chosen
// instruction set and a pool of threads; every function may be called from several
// threads at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"
#include "rounding.h"
#include "stream.h"

namespace prism {

constexpr int kMaxDims = 16;

// A strided view of memory; strides count elements.
template <class T>
struct View {
  T* data = nullptr;
  std::vector<std::int64_t> size;
  std::vector<std::int64_t> stride;

  std::int64_t count() const {
    std::int64_t n = 1;
    for (const std::int64_t s : size) n *= s;
    return n;
  }
};

// How an operation rounds, which stream it reads, and how many threads may help.
struct Context {
  Rounding rounding;
  Stream stream;
  int threads = 1;
};

// Three spatial dimensions of a convolution.
struct Geometry {
  std::int64_t stride[3], padding[3], dilation[3];
  std::int64_t groups;
};

// Instruction sets compiled in and usable here, best first.
std::vector<std::string> available_isas();
// The one in use: the best, or that of the environment variable FUZZYTORCH_ISA.
// Throws std::runtime_error naming the possible ones when the variable asks for another.
const Kernels& kernels();
// Chooses an instruction set by name; throws std::invalid_argument naming the possible ones.
void select_isa(const std::string& name);

// Every primitive exists for float and for double; the element type is that of the output.
// An input of `elementwise` is a view of that type, or of double where the code rounds it.
// Its views may be a part of larger ones, from their element `first` on, a multiple of kTile.
struct Operand {
  View<const float> single;
  View<const double> wide;
  bool is_wide = false;
};

template <class T>
void elementwise(const Context& context, const std::vector<Instruction>& code,
                 const std::vector<Operand>& inputs, const std::vector<T>& scalars,
                 const View<T>& out, std::int64_t first = 0);

template <class T>
void reduce(const Context& context, Reduction kind, const View<const T>& x, const View<const T>* y,
            const View<T>& out);

template <class T>
void scan(const Context& context, bool product, const View<const T>& x, const View<T>& out);

template <class T>
void gemm(const Context& context, const View<const T>& a, const View<const T>& b,
          const View<T>& out);

template <class T>
void conv(const Context& context, const View<const T>& x, const View<const T>& weight,
          const View<T>& out, const Geometry& geometry);

template <class T>
void conv_transposed(const Context& context, const View<const T>& x, const View<const T>& weight,
                     const View<T>& out, const Geometry& geometry);

template <class T>
void conv_weight(const Context& context, const View<const T>& x, const View<const T>& grad,
                 const View<T>& out, const Geometry& geometry);

template <class T>
void accumulate(const Context& context, const std::int64_t* index, const View<const T>& source,
                const View<T>& out);

}  // namespace prism
