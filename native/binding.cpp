// The Python module: integers in, nothing out.  Tensors arrive as addresses, sizes and
// strides, so that one build serves every version of torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "prism.h"

namespace nb = nanobind;

namespace {

using prism::Context;
using prism::Geometry;
using prism::View;

// (address, sizes, strides)
template <class T>
View<T> view(const nb::tuple& t) {
  View<T> v;
  v.data = reinterpret_cast<T*>(nb::cast<std::uintptr_t>(t[0]));
  const nb::tuple size = nb::borrow<nb::tuple>(t[1]), stride = nb::borrow<nb::tuple>(t[2]);
  const std::size_t dims = size.size();
  if (dims > static_cast<std::size_t>(prism::kMaxDims)) {
    throw std::invalid_argument("a tensor of " + std::to_string(dims) +
                                " dimensions is more than the 16 that the kernels take.");
  }
  v.size.resize(dims);
  v.stride.resize(dims);
  for (std::size_t d = 0; d < dims; ++d) {
    v.size[d] = nb::cast<std::int64_t>(size[d]);
    v.stride[d] = nb::cast<std::int64_t>(stride[d]);
  }
  return v;
}

// (rounding, seed, replica, call, threads)
Context context(const nb::tuple& t) {
  Context c{
      nb::cast<prism::Rounding>(t[0]),
      {nb::cast<std::uint64_t>(t[1]), nb::cast<std::uint64_t>(t[2]), nb::cast<std::uint64_t>(t[3])},
      nb::cast<int>(t[4])};
  return c;
}

Geometry geometry(const nb::tuple& stride, const nb::tuple& padding, const nb::tuple& dilation,
                  std::int64_t groups) {
  Geometry g{};
  for (int i = 0; i < 3; ++i) {
    g.stride[i] = nb::cast<std::int64_t>(stride[i]);
    g.padding[i] = nb::cast<std::int64_t>(padding[i]);
    g.dilation[i] = nb::cast<std::int64_t>(dilation[i]);
  }
  g.groups = groups;
  return g;
}

template <class T>
void elementwise(const nb::tuple& where, const nb::tuple& code, const nb::tuple& inputs,
                 const nb::tuple& wide, const nb::tuple& scalars, const nb::tuple& out,
                 std::int64_t first) {
  const std::size_t instructions = code.size() / 4;
  if (inputs.size() > prism::kMaxInputs || scalars.size() > prism::kMaxScalars ||
      instructions > prism::kMaxInstructions) {
    throw std::invalid_argument(
        "an elementwise program holds at most 8 inputs, 8 scalars and 24 instructions.");
  }
  std::vector<prism::Instruction> program(instructions);
  for (std::size_t i = 0; i < instructions; ++i) {
    program[i] = {static_cast<prism::Op>(nb::cast<int>(code[4 * i])),
                  nb::cast<int>(code[4 * i + 1]), nb::cast<int>(code[4 * i + 2]),
                  nb::cast<int>(code[4 * i + 3])};
  }
  std::vector<prism::Operand> operands(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const nb::tuple t = nb::borrow<nb::tuple>(inputs[i]);
    operands[i].is_wide = nb::cast<bool>(wide[i]);
    if (operands[i].is_wide) {
      operands[i].wide = view<const double>(t);
    } else {
      operands[i].single = view<const float>(t);
    }
  }
  std::vector<T> values(scalars.size());
  for (std::size_t i = 0; i < scalars.size(); ++i) values[i] = nb::cast<T>(scalars[i]);
  const Context c = context(where);
  const View<T> target = view<T>(out);
  const nb::gil_scoped_release release;
  prism::elementwise(c, program, operands, values, target, first);
}

template <class T>
void reduce(const nb::tuple& where, int kind, const nb::tuple& x, const nb::object& y,
            const nb::tuple& out) {
  const Context c = context(where);
  const View<const T> first = view<const T>(x);
  View<const T> second;
  const bool two = !y.is_none();
  if (two) second = view<const T>(nb::borrow<nb::tuple>(y));
  const View<T> target = view<T>(out);
  const nb::gil_scoped_release release;
  prism::reduce(c, static_cast<prism::Reduction>(kind), first, two ? &second : nullptr, target);
}

template <class T>
void scan(const nb::tuple& where, bool product, const nb::tuple& x, const nb::tuple& out) {
  const Context c = context(where);
  const View<const T> source = view<const T>(x);
  const View<T> target = view<T>(out);
  const nb::gil_scoped_release release;
  prism::scan(c, product, source, target);
}

template <class T>
void gemm(const nb::tuple& where, const nb::tuple& a, const nb::tuple& b, const nb::tuple& out) {
  const Context c = context(where);
  const View<const T> left = view<const T>(a), right = view<const T>(b);
  const View<T> target = view<T>(out);
  const nb::gil_scoped_release release;
  prism::gemm(c, left, right, target);
}

template <class T>
using Convolution = void (*)(const Context&, const View<const T>&, const View<const T>&,
                             const View<T>&, const Geometry&);

template <class T, Convolution<T> form>
void convolve(const nb::tuple& where, const nb::tuple& x, const nb::tuple& y, const nb::tuple& out,
              const nb::tuple& stride, const nb::tuple& padding, const nb::tuple& dilation,
              std::int64_t groups) {
  const Context c = context(where);
  const View<const T> left = view<const T>(x), right = view<const T>(y);
  const View<T> target = view<T>(out);
  const Geometry g = geometry(stride, padding, dilation, groups);
  const nb::gil_scoped_release release;
  form(c, left, right, target, g);
}

template <class T>
void accumulate(const nb::tuple& where, std::uintptr_t index, const nb::tuple& source,
                const nb::tuple& out) {
  const Context c = context(where);
  const View<const T> from = view<const T>(source);
  const View<T> target = view<T>(out);
  const nb::gil_scoped_release release;
  prism::accumulate(c, reinterpret_cast<const std::int64_t*>(index), from, target);
}

// The primitives of one element type, each under its name with a suffix.
template <class T>
void define(nb::module_& m, const std::string& suffix) {
  const auto name = [&](const char* primitive) { return primitive + suffix; };
  m.def(name("elementwise").c_str(), &elementwise<T>);
  m.def(name("reduce").c_str(), &reduce<T>, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg());
  m.def(name("scan").c_str(), &scan<T>);
  m.def(name("gemm").c_str(), &gemm<T>);
  m.def(name("conv").c_str(), &convolve<T, &prism::conv<T>>);
  m.def(name("conv_transposed").c_str(), &convolve<T, &prism::conv_transposed<T>>);
  m.def(name("conv_weight").c_str(), &convolve<T, &prism::conv_weight<T>>);
  m.def(name("accumulate").c_str(), &accumulate<T>);
}

}  // namespace

NB_MODULE(_prism, m) {
  m.doc() = "Native kernels of stochastic arithmetic (PRISM).";
  nb::class_<prism::Rounding>(m, "Rounding")
      .def("__init__", [](prism::Rounding* r, int mode, int precision, int emin, double largest) {
        new (r) prism::Rounding{static_cast<prism::Mode>(mode), precision, emin, largest};
      });
  m.def("isa", [] { return std::string(prism::kernels().name); });
  m.def("available_isas", &prism::available_isas);
  m.def("select_isa", &prism::select_isa);
  define<float>(m, "32");
  define<double>(m, "64");
}
