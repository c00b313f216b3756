// Whether a kernel gives the same bits again: run after run, for a row alone, for other splits.
#pragma once

#include <functional>
#include <vector>

#include "dsakit/harness/replay.hpp"
#include "kernel_runner.hpp"

namespace dsakit::harness {

/// Adds a line for each level that is asked for and each output, below what `new_line` gives.
/// `first` is what the kernel gave. A level that no kernel of the operation claims is skipped, with
/// why. bad_input where the rows cannot be taken apart.
Status check_determinism(const Determinism& wanted, const OperationAdapter& adapter,
                         const OperationData& data, const KernelRun& first,
                         const KernelRunner& kernels, const std::function<ReportLine()>& new_line,
                         std::vector<ReportLine>& lines);

} // namespace dsakit::harness
