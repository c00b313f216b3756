// Which comparisons an operation has: the lines of its report, in order.
#pragma once

#include <string>
#include <vector>

#include "dsakit/harness/operations.hpp"
#include "judge.hpp"
#include "overrides.hpp"

namespace dsakit::harness {

/// One comparison.
struct Pair {
  std::string output;     ///< canonical
  std::string tensor;     ///< with its producer; `output` where nothing recorded is compared
  std::string scale_read; ///< mla_scale_read of the reference; empty: the operation has none
  Producer::Kind got = Producer::Kind::kernel;
  Producer::Kind want = Producer::Kind::reference;
  Accumulation accumulation = Accumulation::exact; ///< of the recorded side, as it is used

  bool of_kernel() const { return got == Producer::Kind::kernel; }
  bool of_recorded() const { return want == Producer::Kind::recorded; }
};

/// Those of fed replay. Each output that the operation has or may have: our kernel against the
/// reference, then each recorded tensor of it against both. A producer that reads MLA scales in
/// another way has another right answer: everything once for each `scale_read`, one after another.
Result<std::vector<Pair>> pairs_of(const OperationData& data, const Overrides& overrides);

/// What a kernel wrote of an output that it has, with its scales; `run` outlives it.
Producer kernel_side(const KernelRun& run, const std::string& output);

/// The recorded side of a pair, with its scales; the tensors are those of `data`.
Producer recorded_side(const OperationData& data, const Pair& pair);

} // namespace dsakit::harness
