// Runs a kernel's lanes on the CPU: 64 fibers a wave, waves of a workgroup one after the other.
//
// A lane runs until it needs the others. At a wave operation (an intrinsic that reads other lanes)
// it leaves its operands in the wave's exchange and yields; the last lane to arrive computes the
// operation for all 64. At a barrier the whole wave yields to the next one, in an order that a seed
// shuffles. So a missing barrier reads LDS that nobody wrote, and lanes that part before a wave
// operation, or a barrier that not every wave reaches, end the launch with a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/context/detail/fcontext.hpp>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/launch.hpp"

#define DSAKIT_ALWAYS_INLINE inline __attribute__((always_inline))

#if defined(__SANITIZE_ADDRESS__)
#define DSAKIT_ASAN_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DSAKIT_ASAN_FIBERS 1
#endif
#endif
#ifndef DSAKIT_ASAN_FIBERS
#define DSAKIT_ASAN_FIBERS 0
#endif

#if DSAKIT_ASAN_FIBERS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace dsakit::optimized::host {

inline constexpr int kWaveSize = 64;

/// Operands and results of one wave operation: word i, and accumulator register r, of each lane.
struct alignas(64) Exchange {
  std::uint64_t word[5][kWaveSize];
  float acc[4][kWaveSize];
};

/// Identifies an operation, so that lanes which meet in different ones are told apart.
using OperationId = const char*;

struct ExecutorOptions {
  std::uint64_t schedule_seed = 0; ///< 0: waves in ascending order
  std::uint8_t lds_pattern = 0xCB;
  std::size_t lds_limit = 64 << 10; ///< bytes a workgroup may use
};

/// One workgroup at a time; each OS thread has its own.
class Workgroup {
public:
  Workgroup();
  ~Workgroup();
  Workgroup(const Workgroup&) = delete;
  Workgroup& operator=(const Workgroup&) = delete;

  /// Runs `lane` once for each of block.x lanes (a multiple of 64) as workgroup `index`.
  Status run(const ExecutorOptions& options, Dim3 index, Dim3 block,
             const std::function<void()>& lane);

  int lane() const { return lane_; }
  Dim3 index() const { return index_; }
  Exchange& exchange() { return waves_[static_cast<std::size_t>(wave_)].exchange; }

  /// Meets the other 63 lanes; the last to arrive calls op(exchange).
  template <class Op>
  DSAKIT_ALWAYS_INLINE void wave_operation(OperationId id, Op op);

  /// Waits for every lane of the workgroup that has not returned.
  void barrier();

  /// The workgroup's LDS: the same `bytes` for every lane, filled with the pattern before the
  /// first.
  void* lds(std::size_t bytes);

private:
  struct Lane {
    boost::context::detail::fcontext_t context = nullptr;
    bool done = false;
  };
  struct Wave {
    Exchange exchange;
    OperationId operation = nullptr;
    std::uint32_t generation = 0; // operations done
    int arrived = 0;              // in `operation`
    int at_barrier = 0;           // lanes that wait there
    int done = 0;                 // lanes that returned
  };

  DSAKIT_ALWAYS_INLINE void switch_to(int lane);
  void arrived_at_phase_end(); // this lane waits or returned: on to the next lane, wave or phase
  void start_phase();
  /// printf-like: a lane that leaves never unwinds, so it must not own memory.
  [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...);
  void note_failure(const char* what);
  [[noreturn]] void leave(); // to the scheduler, for good
  static void entry(boost::context::detail::transfer_t from);
  char* stack_bottom(int lane) const {
    return stacks_ + kStackBytes * static_cast<std::size_t>(lane);
  }

  static constexpr std::size_t kStackBytes = DSAKIT_ASAN_FIBERS ? 256 << 10 : 64 << 10;

  ExecutorOptions options_;
  Dim3 index_{};
  const std::function<void()>* body_ = nullptr;
  Status status_;

  int lane_ = 0;
  int wave_ = 0;
  std::vector<Lane> lanes_;
  std::vector<Wave> waves_;
  std::vector<int> order_; // waves of this phase, the stretch between two barriers
  std::size_t position_ = 0;
  std::uint64_t random_ = 0;

  boost::context::detail::fcontext_t scheduler_ = nullptr;
  boost::context::detail::fcontext_t* save_ = nullptr; // where the context just left is kept
  char* stacks_ = nullptr;
  std::size_t stacks_bytes_ = 0;

  std::unique_ptr<std::byte[]> lds_; // of exactly the kernel's size, so that ASan sees its end
  std::size_t lds_bytes_ = 0;
  bool lds_filled_ = false;

#if DSAKIT_ASAN_FIBERS
  std::vector<void*> fake_stacks_;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
#endif
};

/// The workgroup that this OS thread runs.
inline thread_local Workgroup* current = nullptr;

DSAKIT_ALWAYS_INLINE Dim3 thread_index() {
  return {static_cast<std::uint32_t>(current->lane()), 0, 0};
}
DSAKIT_ALWAYS_INLINE Dim3 block_index() {
  return current->index();
}
inline void workgroup_barrier() {
  current->barrier();
}

/// Runs every workgroup of a launch on the machine's cores. The first failing one (lowest index)
/// decides the status.
Status run_grid(const ExecutorOptions& options, const Launch& launch);

// ---- inline: these are the executor's inner loop ------------------------------------------------

DSAKIT_ALWAYS_INLINE void Workgroup::switch_to(int lane) {
  save_ = &lanes_[static_cast<std::size_t>(lane_)].context;
#if DSAKIT_ASAN_FIBERS
  const auto me = static_cast<std::size_t>(lane_);
  __sanitizer_start_switch_fiber(&fake_stacks_[me], stack_bottom(lane), kStackBytes);
#endif
  lane_ = lane;
  const auto from = boost::context::detail::jump_fcontext(
      lanes_[static_cast<std::size_t>(lane)].context, nullptr);
  *save_ = from.fctx;
#if DSAKIT_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake_stacks_[me], nullptr, nullptr);
#endif
}

template <class Op>
DSAKIT_ALWAYS_INLINE void Workgroup::wave_operation(OperationId id, Op op) {
  Wave& wave = waves_[static_cast<std::size_t>(wave_)];
  if (wave.arrived == 0)
    wave.operation = id;
  else if (wave.operation != id)
    fail("lanes part: some reach %s, one reaches %s", wave.operation, id);
  if (wave.at_barrier + wave.done != 0) fail("%s is not reached by every lane of the wave", id);
  if (++wave.arrived == kWaveSize) {
    wave.arrived = 0;
    ++wave.generation;
    op(wave.exchange);
    return;
  }
  const std::uint32_t generation = wave.generation;
  const int first = wave_ * kWaveSize;
  do {
    const int next = lane_ + 1 == first + kWaveSize ? first : lane_ + 1;
    switch_to(next);
  } while (wave.generation == generation);
}

} // namespace dsakit::optimized::host
