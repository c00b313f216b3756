// What may be tuned of a kernel: values that its launcher reads from the parameters, which of them
// it lists, the one that it takes by itself, and those that sweeps found to be faster.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsakit/core/status.hpp"

namespace dsakit::optimized {

/// Values by key: {"splits": 4}. 0: the kernel's own choice, whatever was tuned.
using Configuration = std::map<std::string, std::int32_t, std::less<>>;

/// "splits=4,lanes=512", as parse_configuration reads it.
std::string configuration_text(const Configuration& configuration);

/// KEY=VALUE,...; VALUE is a number, or `default` for 0. bad_input otherwise.
Result<Configuration> parse_configuration(std::string_view text);

/// One tunable choice of a kernel.
template <class Params>
struct Tunable {
  std::string_view key;
  std::string_view meaning;
  std::vector<std::int32_t> values;        ///< that the launcher takes, ascending, above 0
  std::int32_t Params::* field;            ///< where it reads the value; 0: open
  std::int32_t (*standard)(const Params&); ///< one of `values`, where nothing was tuned
};

/// All of a kernel; most have nothing to tune.
template <class Params>
struct Tuning {
  std::string_view operation;
  std::vector<Tunable<Params>> tunables;
  std::string (*problem_class)(const Params&) = nullptr; ///< problems that share a tuned choice
};

/// "rows=64 columns=131072": each extent rounded up to a power of two.
std::string class_of(std::initializer_list<std::pair<std::string_view, std::int64_t>> extents);

/// What a kernel lists, of any arch.
struct ConfigurationKey {
  std::string_view key;
  std::string_view meaning;
  std::vector<std::int32_t> values;
};
struct ConfigurationSpace {
  std::string_view operation;
  std::string_view kernel;
  std::vector<ConfigurationKey> keys;
};

/// Of every kernel of this program that has something to tune.
const std::vector<ConfigurationSpace>& configuration_spaces();

/// bad_input where no kernel of the operation lists such a key or value.
Status check_configuration(std::string_view operation, const Configuration& configuration);

/// What a sweep found for problems of a class on a device.
struct TunedChoice {
  std::string device; ///< Device::description()
  std::string operation;
  std::string kernel;
  std::string problem_class;
  Configuration configuration;

  friend bool operator==(const TunedChoice& a, const TunedChoice& b) {
    return a.device == b.device && a.operation == b.operation && a.kernel == b.kernel &&
           a.problem_class == b.problem_class && a.configuration == b.configuration;
  }
};

/// Parses a tuned file (docs/sweep.md). bad_input, one line that begins with `source` and names the
/// place: no such JSON, or an operation, kernel, key or value that no kernel of this program lists.
Result<std::vector<TunedChoice>> parse_tuned(const std::string& source, const std::string& text);

using TunedChoices = std::vector<TunedChoice>;

/// Those of the file that DSAKIT_TUNED names, then those built in (optimized/tuned): the first that
/// fits is taken. bad_input: the file cannot be read or parsed.
Result<std::shared_ptr<const TunedChoices>> tuned_choices();

/// nullptr where there is none.
const Configuration* find_tuned(const TunedChoices& choices, std::string_view device,
                                std::string_view operation, std::string_view kernel,
                                std::string_view problem_class);

} // namespace dsakit::optimized
