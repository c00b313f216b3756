// The kernels of each operation: listed, asked what they support, forced, launched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/status.hpp"

namespace dsakit::optimized {

/// What kernels are built for. The gfx942 and gfx950 builds run on host lanes and, through the HIP
/// runtime, on the GPU; sm_90 runs through the CUDA runtime.
enum class Arch : std::uint8_t { gfx942, gfx950, sm_90 };

constexpr std::string_view name(Arch arch) {
  constexpr std::string_view names[] = {"gfx942", "gfx950", "sm_90"};
  return names[static_cast<std::size_t>(arch)];
}

/// One kernel of an operation. `stream` is the stream of a Device of the kernel's arch.
template <class Params>
struct Kernel {
  std::string_view name;
  Status (*supports)(const Params&); ///< says why not
  std::size_t (*workspace_bytes)(const Params&);
  std::int64_t (*workgroups)(const Params&); ///< of one launch
  Status (*launch)(const Params&, void* workspace, std::size_t workspace_bytes, void* stream);
};

/// The kernels of the operation that takes Params, best first; empty where `arch` is not built.
template <class Params>
const std::vector<Kernel<Params>>& kernels(Arch arch);

/// The first kernel that supports the problem, or the one named by DSAKIT_FORCE_KERNEL.
/// bad_input: no kernel has the forced name; unsupported: with each kernel's reason.
template <class Params>
Result<const Kernel<Params>*> pick(Arch arch, const Params& params) {
  const char* forced = std::getenv("DSAKIT_FORCE_KERNEL");
  std::string reasons;
  std::string known;
  for (const Kernel<Params>& kernel : kernels<Params>(arch)) {
    known += (known.empty() ? "" : ", ") + std::string(kernel.name);
    if (forced && kernel.name != forced) continue;
    const Status status = kernel.supports(params);
    if (status) return &kernel;
    reasons += (reasons.empty() ? "" : "; ") + std::string(kernel.name) + ": " + status.what();
  }
  if (!reasons.empty()) return unsupported(reasons);
  if (forced && !known.empty())
    return bad_input("DSAKIT_FORCE_KERNEL: found '" + std::string(forced) + "', want " + known);
  return unsupported("no kernel is built for " + std::string(name(arch)));
}

} // namespace dsakit::optimized
