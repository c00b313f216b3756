// One comparison of an operation whose tensors are in memory: a line of the report, asked for
// alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/rules.hpp"
#include "judge.hpp"
#include "kernel_runner.hpp"
#include "overrides.hpp"

namespace dsakit::harness {

/// Which comparison.
struct Pair {
  std::string output;     ///< canonical
  std::string tensor;     ///< with its producer; `output` where nothing recorded is compared
  std::string scale_read; ///< mla_scale_read of the reference; empty: the operation has none
  Producer::Kind got = Producer::Kind::kernel;
  Producer::Kind want = Producer::Kind::reference;
  std::string accumulation = {}; ///< of a recorded one, as it is used; empty: it has none

  bool of_kernel() const { return got == Producer::Kind::kernel; }
  bool of_recorded() const { return want == Producer::Kind::recorded; }
};

/// What a comparison said.
struct Outcome {
  bool fails = false; ///< outside its gate, or the kernel faulted or hung
  std::string kernel;
  Status kernel_status; ///< of the launch, where the pair has one
  Gate gate = Gate::exact;
  std::optional<Judged> judged; ///< none where the kernel or the reference gave nothing
};

class Trial {
public:
  /// All outlive this. `kernels` is open.
  Trial(const Overrides& overrides, Rules& rules, const KernelRunner& kernels)
      : overrides_(overrides), rules_(rules), kernels_(kernels) {}

  /// The comparisons of fed replay, in the order of its report.
  std::vector<Pair> pairs(const OperationData& data) const;
  /// bad_input where the tensors do not go together, or no rule names the tensor.
  Result<Outcome> run(const OperationData& data, const Pair& pair) const;

private:
  Result<Producer> recorded(const OperationData& data, const Pair& pair) const;

  const Overrides& overrides_;
  Rules& rules_;
  const KernelRunner& kernels_;
};

} // namespace dsakit::harness
