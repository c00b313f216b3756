// Some rows of a problem: those that the gate compares, out of more than the reference can do.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace dsakit::harness {

using RowNumbers = std::vector<std::int64_t>;

/// Leaves these rows of each output that has rows; none: all of them.
void cut_to_rows(KernelRun& run, const Operation& operation, const RowNumbers& rows);

/// An adapter whose kernel's outputs are cut down to some rows, before they leave a child process.
class SomeRows final : public OperationAdapter {
public:
  SomeRows(const OperationAdapter& whole, const Operation& operation, const RowNumbers& rows)
      : whole_(whole), operation_(operation), rows_(rows) {}

  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    return whole_.reference(data);
  }
  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    auto run = whole_.run(data, device);
    DSAKIT_TRY(run);
    cut_to_rows(*run, operation_, rows_);
    return run;
  }

private:
  const OperationAdapter& whole_;
  const Operation& operation_;
  const RowNumbers& rows_;
};

} // namespace dsakit::harness
