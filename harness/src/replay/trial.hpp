// One comparison of an operation whose tensors are in memory: a line of the report, asked for
// alone.
#pragma once

#include <optional>
#include <string>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/rules.hpp"
#include "judge.hpp"
#include "kernel_runner.hpp"
#include "overrides.hpp"
#include "pairs.hpp"

namespace dsakit::harness {

/// What a comparison said.
struct Outcome {
  bool fails = false; ///< outside its gate or a limit of its rule, or the kernel faulted or hung
  std::string kernel;
  Status kernel_status; ///< of the launch, where the pair has one
  Gate gate = Gate::exact;
  /// None where the kernel or the reference gave nothing; `shape` is that of what was compared.
  std::optional<Comparison> comparison;
  Shape shape;
  std::string hint; ///< where asked for
};

class Trial {
public:
  /// All outlive this. `kernels` is open.
  Trial(const RecordingReader& reader, const Overrides& overrides, Rules& rules,
        const KernelRunner& kernels)
      : reader_(reader), overrides_(overrides), rules_(rules), kernels_(kernels) {}

  /// bad_input where the tensors do not go together, or no rule names the tensor. A hint may take
  /// many times as long as the comparison.
  Result<Outcome> run(const OperationData& data, const Pair& pair, bool with_hint = false) const;
  /// The band that the rule of the pair gives its recorded side; empty: none.
  Result<std::vector<double>> band(const OperationData& data, const Pair& pair) const;
  /// A waiver names the failure of that pair.
  bool waived(const OperationId& id, const Pair& pair) const;

private:
  Result<const Rule*> rule(const OperationData& data, const Pair& pair) const;

  const RecordingReader& reader_;
  const Overrides& overrides_;
  Rules& rules_;
  const KernelRunner& kernels_;
};

} // namespace dsakit::harness
