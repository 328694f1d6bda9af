// A pool of threads that survives fork and never changes a result.
#pragma once

#include <cstdint>
#include <functional>

namespace prism {

// Calls body(begin, end) on disjoint ranges that cover 0 .. items, by at most `threads`
// threads, the caller among them.  Ranges are handed out in pieces of `grain` items.
// Runs in the caller alone when the pool is busy.
void parallel_for(int threads, std::int64_t items, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace prism
