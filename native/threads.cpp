#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace prism {
namespace {

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

struct Job {
  std::int64_t items, grain;
  const std::function<void(std::int64_t, std::int64_t)>* body;
  std::atomic<std::int64_t> next{0};
  std::mutex error_mutex;
  std::exception_ptr error;

  void work() {
    try {
      for (;;) {
        const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= items) return;
        (*body)(begin, std::min(begin + grain, items));
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(error_mutex);
      if (!error) error = std::current_exception();
      next.store(items);
    }
  }
};

// Waits a little without giving up the processor: falling asleep and being woken takes longer than
// many a job.
template <class Condition>
void wait_awake(Condition condition) {
  constexpr std::chrono::microseconds kPatience{30};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
}

class Pool {
 public:
  // False when another thread is using the pool.
  bool run(Job& job, int helpers) {
    const std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
    if (!owner.owns_lock()) return false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      while (static_cast<int>(workers_) < helpers) {
        std::thread([this, id = workers_] { serve(id); }).detach();
        ++workers_;
      }
      job_ = &job;
      wanted_ = helpers;
      running_ = helpers;
      ++generation_;
    }
    wake_.notify_all();
    job.work();
    wait_awake([this] { return running_ == 0; });
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    job_ = nullptr;
    return true;
  }

 private:
  void serve(int id) {
    std::uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      lock.unlock();
      wait_awake([&] { return generation_ != seen; });
      lock.lock();
      wake_.wait(lock, [&] { return generation_ != seen && job_ != nullptr; });
      seen = generation_;
      if (id >= wanted_) continue;
      Job* job = job_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex owner_, mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  int workers_ = 0, wanted_ = 0;
  std::atomic<int> running_{0};
  std::atomic<std::uint64_t> generation_{0};
};

// Never destroyed: detached workers may outlive static destructors.
std::atomic<Pool*> pool{nullptr};

// The threads of the parent do not exist in the child, and its locks may be held.
void forget_pool() { pool.store(nullptr); }

Pool& the_pool() {
  static const bool registered = pthread_atfork(nullptr, nullptr, forget_pool) == 0;
  (void)registered;
  Pool* current = pool.load();
  if (current == nullptr) {
    Pool* fresh = new Pool;
    if (pool.compare_exchange_strong(current, fresh)) return *fresh;
    delete fresh;
  }
  return *current;
}

}  // namespace

void parallel_for(int threads, std::int64_t items, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (items <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t pieces = (items + grain - 1) / grain;
  const int helpers = static_cast<int>(std::min<std::int64_t>(threads, pieces)) - 1;
  if (helpers <= 0) {
    body(0, items);
    return;
  }
  Job job;
  job.items = items;
  job.grain = grain;
  job.body = &body;
  if (!the_pool().run(job, helpers)) {
    body(0, items);
    return;
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace prism
