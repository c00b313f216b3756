#include "runtime/host_executor.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <sys/mman.h>
#include <tbb/parallel_for.h>

namespace dsakit::optimized::host {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;

/// splitmix64: a full-period generator whose next value depends on nothing but its state.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void unmap_stacks(char* stacks, std::size_t bytes) {
  if (stacks == nullptr) return;
#if DSAKIT_ASAN_FIBERS
  __asan_unpoison_memory_region(stacks, bytes); // what is mapped here next has no lanes' frames
#endif
  munmap(stacks, bytes);
}

} // namespace

Workgroup::Workgroup() = default;

Workgroup::~Workgroup() {
  unmap_stacks(stacks_, stacks_bytes_);
}

Status Workgroup::run(const ExecutorOptions& options, Dim3 index, Dim3 block,
                      const std::function<void()>& lane) {
  const std::size_t lanes = block.x;
  options_ = options;
  index_ = index;
  body_ = &lane;
  status_ = {};
  lds_filled_ = false;

  if (const std::size_t bytes = lanes * kStackBytes; bytes > stacks_bytes_) {
    unmap_stacks(stacks_, stacks_bytes_);
    stacks_bytes_ = 0;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    stacks_ = memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
    if (stacks_ == nullptr)
      return {Code::device_error, "host lanes: no memory for " + std::to_string(lanes) + " stacks"};
    stacks_bytes_ = bytes;
  }

  lanes_.assign(lanes, Lane{});
  waves_.assign(lanes / kWaveSize, Wave{});
  for (std::size_t i = 0; i < lanes; ++i)
    lanes_[i].context =
        make_fcontext(stack_bottom(static_cast<int>(i)) + kStackBytes, kStackBytes, entry);
#if DSAKIT_ASAN_FIBERS
  // The lanes of the last workgroup left their frames as they were.
  __asan_unpoison_memory_region(stacks_, lanes * kStackBytes);
  fake_stacks_.assign(lanes + 1, nullptr);
  scheduler_stack_ = nullptr;
#endif

  // Every workgroup has its own order, whatever thread runs it.
  random_ = options.schedule_seed ^ (std::uint64_t{index.z} << 42) ^
            (std::uint64_t{index.y} << 21) ^ index.x;
  start_phase();
  wave_ = order_[0];
  lane_ = wave_ * kWaveSize;
  current = this;
  save_ = &scheduler_;
#if DSAKIT_ASAN_FIBERS
  __sanitizer_start_switch_fiber(&fake_stacks_.back(), stack_bottom(lane_), kStackBytes);
#endif
  jump_fcontext(lanes_[static_cast<std::size_t>(lane_)].context, nullptr);
#if DSAKIT_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake_stacks_.back(), nullptr, nullptr);
#endif
  current = nullptr;
  return status_;
}

void Workgroup::entry(boost::context::detail::transfer_t from) {
  Workgroup& self = *current;
  *self.save_ = from.fctx;
#if DSAKIT_ASAN_FIBERS
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (self.scheduler_stack_ == nullptr) { // the first lane comes from the scheduler
    self.scheduler_stack_ = stack;
    self.scheduler_stack_bytes_ = bytes;
  }
#endif
  (*self.body_)();
  self.lanes_[static_cast<std::size_t>(self.lane_)].done = true;
  Wave& wave = self.waves_[static_cast<std::size_t>(self.wave_)];
  if (wave.arrived != 0) self.fail("%s is not reached by every lane of the wave", wave.operation);
  ++wave.done;
  self.arrived_at_phase_end();
  std::abort(); // nothing resumes a lane that returned
}

void Workgroup::barrier() {
  Wave& wave = waves_[static_cast<std::size_t>(wave_)];
  if (wave.arrived != 0) fail("lanes part: some reach %s, one reaches a barrier", wave.operation);
  ++wave.at_barrier;
  arrived_at_phase_end();
}

void Workgroup::arrived_at_phase_end() {
  const Wave& wave = waves_[static_cast<std::size_t>(wave_)];
  const int me = lane_;
  const int first = wave_ * kWaveSize;
  int next = lane_;
  if (wave.at_barrier + wave.done < kWaveSize) {
    do
      next = next + 1 == first + kWaveSize ? first : next + 1;
    while (lanes_[static_cast<std::size_t>(next)].done);
  } else {
    if (++position_ == order_.size()) start_phase();
    if (order_.empty()) leave(); // every lane returned
    wave_ = order_[position_];
    next = wave_ * kWaveSize;
    while (lanes_[static_cast<std::size_t>(next)].done)
      ++next;
  }
  if (next != me) switch_to(next);
}

void Workgroup::start_phase() {
  order_.clear();
  for (std::size_t w = 0; w < waves_.size(); ++w) {
    waves_[w].at_barrier = 0;
    if (waves_[w].done < kWaveSize) order_.push_back(static_cast<int>(w));
  }
  position_ = 0;
  if (order_.empty()) return;
  if (options_.schedule_seed != 0)
    for (std::size_t i = order_.size() - 1; i > 0; --i)
      std::swap(order_[i], order_[next_random(random_) % (i + 1)]);
}

void Workgroup::fail(const char* format, ...) {
  char what[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  note_failure(what);
  leave();
}

void Workgroup::note_failure(const char* what) {
  status_ = {Code::device_error, "workgroup " + std::to_string(index_.x) + ", wave " +
                                     std::to_string(wave_) + ", lane " +
                                     std::to_string(lane_ % kWaveSize) + ": " + what};
}

void Workgroup::leave() {
#if DSAKIT_ASAN_FIBERS
  __sanitizer_start_switch_fiber(nullptr, scheduler_stack_, scheduler_stack_bytes_);
#endif
  jump_fcontext(scheduler_, nullptr);
  std::abort(); // nothing resumes a lane that left
}

void* Workgroup::lds(std::size_t bytes) {
  if (!lds_filled_) {
    if (bytes > options_.lds_limit)
      fail("LDS: the kernel takes %zu bytes, the limit is %zu", bytes, options_.lds_limit);
    if (bytes != lds_bytes_) lds_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    lds_bytes_ = bytes;
    std::memset(lds_.get(), options_.lds_pattern, bytes);
    lds_filled_ = true;
  }
  if (bytes != lds_bytes_) fail("LDS: lanes ask for different sizes");
  return lds_.get();
}

Status run_grid(const ExecutorOptions& options, const Launch& launch) {
  const Dim3 grid = launch.grid;
  const Dim3 block = launch.block;
  if (block.x == 0 || block.x % kWaveSize != 0 || block.x > 1024 || block.y != 1 || block.z != 1)
    return {Code::device_error, std::string(launch.kernel) + ": block " + std::to_string(block.x) +
                                    " x " + std::to_string(block.y) + " x " +
                                    std::to_string(block.z) + ", want 64 to 1024 lanes in x"};
  const std::uint64_t workgroups = std::uint64_t{grid.x} * grid.y * grid.z;
  if (workgroups == 0) return {Code::device_error, std::string(launch.kernel) + ": empty grid"};

  std::mutex mutex;
  std::uint64_t failed = workgroups;
  Status status;
  tbb::parallel_for(std::uint64_t{0}, workgroups, [&](std::uint64_t i) {
    static thread_local Workgroup workgroup;
    const Dim3 index{static_cast<std::uint32_t>(i % grid.x),
                     static_cast<std::uint32_t>(i / grid.x % grid.y),
                     static_cast<std::uint32_t>(i / grid.x / grid.y)};
    Status one = workgroup.run(options, index, block, launch.lane);
    if (one) return;
    const std::lock_guard lock(mutex);
    if (i < failed) {
      failed = i;
      status = Status(one.code(), std::string(launch.kernel) + ": " + one.what());
    }
  });
  return status;
}

} // namespace dsakit::optimized::host
