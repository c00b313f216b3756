// Hints: a likely cause of a failure, where a pattern fits. A hint never changes a verdict.
#pragma once

#include <functional>
#include <string>

#include "judge.hpp"

namespace dsakit::harness {

/// The hints of one operation.
class Hints {
public:
  /// The kernel once more, its waves in another order where the device has an order.
  using Rerun = std::function<Result<KernelRun>()>;

  Hints(const OperationAdapter& adapter, ReferenceRun& reference, Rerun rerun = {})
      : adapter_(adapter), reference_(reference), rerun_(std::move(rerun)) {}

  /// At most two, the more specific first; empty where no pattern fits.
  std::string find(const Case& c, const Judged& judged);

private:
  std::string beyond_fp32(const Case& c, const Judged& judged) const;
  std::string differs_when_run_again(const Case& c) const;

  const OperationAdapter& adapter_;
  ReferenceRun& reference_;
  Rerun rerun_;
};

} // namespace dsakit::harness
