// A kernel launch as a value: what a stream needs to run it, on host lanes or on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "dsakit/core/status.hpp"

namespace dsakit::optimized {

struct Dim3 {
  std::uint32_t x, y, z;
};

struct Launch {
  const char* kernel;    ///< symbol in the code object
  Dim3 grid;             ///< workgroups
  Dim3 block;            ///< lanes a workgroup
  const void* arguments; ///< packed as the kernel takes them
  std::size_t argument_bytes;
  const std::function<void()>& lane; ///< the kernel's body for one lane of the host executor
};

/// Where a launch goes. The `stream` of the host and hip devices is one of these.
class LaunchStream {
public:
  virtual ~LaunchStream() = default;
  virtual Status launch(const Launch& launch) = 0;
};

/// The calling thread's last launch error, as hipGetLastError takes it: 0 or nonzero, then cleared.
int take_launch_error();
/// Text of the error that take_launch_error returned last.
const char* launch_error_text();
void set_launch_error(const Status& status);

/// Every kernel takes one parameter struct by value.
template <class Dim, class Params>
void launch_kernel(const char* kernel, Dim grid, Dim block, LaunchStream* stream,
                   const std::function<void()>& lane, const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>);
  const Launch launch{
      kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, &params, sizeof params, lane};
  set_launch_error(stream->launch(launch));
}

} // namespace dsakit::optimized
