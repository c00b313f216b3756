// The kernels of each operation: listed, asked what they support, forced, launched.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/configuration.hpp"

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
  const Tuning<Params>* tuning = nullptr; ///< none: there is nothing to tune
};

/// The kernels of the operation that takes Params, best first; empty where `arch` is not built.
template <class Params>
const std::vector<Kernel<Params>>& kernels(Arch arch);

/// Names of the kernels of every operation and arch in this program.
const std::vector<std::string_view>& kernel_names();

/// The kernel that DSAKIT_FORCE_KERNEL names; empty where it is unset or empty. bad_input: no
/// kernel has that name.
Result<std::string> forced_kernel();

/// The first kernel for which `takes(kernel)`, a Status, is ok. A forced kernel is taken by the
/// operation that has it, or refuses; the other operations are not concerned. unsupported, with
/// each kernel's reason; bad_input where every kernel's is.
template <class Params, class Takes>
Result<const Kernel<Params>*> first_kernel(Arch arch, const Takes& takes) {
  const auto named = forced_kernel();
  DSAKIT_TRY(named);
  bool forced = false;
  for (const Kernel<Params>& kernel : kernels<Params>(arch))
    forced |= kernel.name == *named;
  std::string reasons;
  bool all_bad = true;
  for (const Kernel<Params>& kernel : kernels<Params>(arch)) {
    if (forced && kernel.name != *named) continue;
    const Status status = takes(kernel);
    if (status) return &kernel;
    reasons += (reasons.empty() ? "" : "; ") + std::string(kernel.name) + ": " + status.what();
    all_bad = all_bad && status.code() == Code::bad_input;
  }
  if (reasons.empty()) return unsupported("no kernel is built for " + std::string(name(arch)));
  return all_bad ? bad_input(reasons) : unsupported(reasons);
}

/// The first kernel that supports the problem as it is.
template <class Params>
Result<const Kernel<Params>*> pick(Arch arch, const Params& params) {
  return first_kernel<Params>(
      arch, [&](const Kernel<Params>& kernel) { return kernel.supports(params); });
}

/// A kernel, and the parameters to launch it with.
template <class Params>
struct Choice {
  const Kernel<Params>* kernel;
  Params params;               ///< with every tunable that the caller left open (0)
  Configuration configuration; ///< all of the kernel's tunables
};

/// Sets the kernel's tunables in `choice`: as `asked`; or, if nothing is, as the caller did; and
/// where he left one open, as was tuned for the device or else as the kernel likes. bad_input for
/// an asked key or value that the kernel does not list, and for a bad tuned file.
template <class Params>
Status configure(const Kernel<Params>& kernel, std::string_view device, const Configuration& asked,
                 Choice<Params>& choice) {
  static const Tuning<Params> none{};
  const Tuning<Params>& tuning = kernel.tuning ? *kernel.tuning : none;
  for (const auto& [key, value] : asked)
    if (std::none_of(tuning.tunables.begin(), tuning.tunables.end(),
                     [&, &asked_key = key](const auto& t) { return t.key == asked_key; }))
      return bad_input("this kernel has no configuration " + key);
  const Configuration* tuned = nullptr;
  std::shared_ptr<const TunedChoices> choices;
  if (asked.empty() && !tuning.tunables.empty()) {
    auto all = tuned_choices();
    DSAKIT_TRY(all);
    choices = std::move(*all);
    if (!choices->empty())
      tuned = find_tuned(*choices, device, tuning.operation, kernel.name,
                         tuning.problem_class(choice.params));
  }
  for (const Tunable<Params>& tunable : tuning.tunables) {
    std::int32_t& value = choice.params.*tunable.field;
    const auto wanted = asked.find(tunable.key);
    if (!asked.empty()) value = wanted == asked.end() ? 0 : wanted->second;
    if (value != 0 && wanted != asked.end() &&
        !std::binary_search(tunable.values.begin(), tunable.values.end(), value))
      return bad_input("configuration " + std::string(tunable.key) + ": found " +
                       std::to_string(value) + ", which this kernel does not list");
    if (value == 0 && tuned) {
      const auto found = tuned->find(tunable.key);
      if (found != tuned->end()) value = found->second;
    }
    if (value == 0) value = tunable.standard(choice.params);
    choice.configuration[std::string(tunable.key)] = value;
  }
  return {};
}

/// The first kernel that supports the problem once it is configured for the device, which calls
/// itself `device`.
template <class Params>
Result<Choice<Params>> choose(Arch arch, std::string_view device, const Params& params,
                              const Configuration& asked = {}) {
  Choice<Params> choice{};
  const auto kernel = first_kernel<Params>(arch, [&](const Kernel<Params>& candidate) -> Status {
    choice = {&candidate, params, {}};
    DSAKIT_TRY(configure(candidate, device, asked, choice));
    return candidate.supports(choice.params);
  });
  DSAKIT_TRY(kernel);
  return choice;
}

} // namespace dsakit::optimized
