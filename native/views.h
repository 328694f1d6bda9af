// Strided views walked in logical order, and the memory they are gathered into.
#pragma once

#include <algorithm>
#include <cstring>

#include "prism.h"

namespace prism {

// A view in as few dimensions as possible, in logical order.
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

template <class T>
void scatter(const Flat<T>& to, std::int64_t first, std::int64_t count, const T* from) {
  to.runs(first, count, [&](T* p, std::int64_t stride, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) p[i * stride] = from[i];
    from += n;
  });
}

// Memory of the calling thread that lives as long as it.
// `use` tells memories apart that are held at the same time.
template <class T, int use = 0>
T* workspace(std::size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

}  // namespace prism
