#include "lane_kernels.hpp"

#include <cstring>
#include <map>
#include <utility>

#include "headers.inc"

namespace dsakit::optimized {

// The kernels of both builds of every .hip source. A wrong struct here does not link.
#define DSAKIT_KERNEL_OF(symbol, Params, object) void symbol(Params);
namespace gfx942 {
#include "kernels.inc"
}
namespace gfx950 {
#include "kernels.inc"
}
#undef DSAKIT_KERNEL_OF

} // namespace dsakit::optimized

namespace fake_hip {
namespace {

using namespace dsakit::optimized;

template <class Params, void (*kKernel)(Params)>
LaneKernel lane_kernel() {
  return {sizeof(Params), [](const void* arguments) -> std::function<void()> {
            Params params;
            std::memcpy(&params, arguments, sizeof params);
            return [params] { kKernel(params); };
          }};
}

} // namespace

const LaneKernel* find_lane_kernel(Arch arch, const std::string& symbol) {
  static const std::map<std::pair<Arch, std::string>, LaneKernel> all = {
#define DSAKIT_KERNEL_OF(symbol, Params, object)                                                   \
  {{Arch::gfx942, #symbol}, lane_kernel<Params, gfx942::symbol>()},                                \
      {{Arch::gfx950, #symbol}, lane_kernel<Params, gfx950::symbol>()},
#include "kernels.inc"
#undef DSAKIT_KERNEL_OF
  };
  const auto found = all.find({arch, symbol});
  return found == all.end() ? nullptr : &found->second;
}

} // namespace fake_hip
