// A problem in memory: what a request becomes.
#pragma once

#include "dsakit/harness/bench.hpp"
#include "dsakit/harness/operations.hpp"

namespace dsakit::harness {

struct BenchProblem {
  OperationId id;
  ContractValues contract;
  Attributes config;
  RecordedOperation tensors; ///< outputs of a problem by shape have a form alone
  BenchDims dims;            ///< what names the row
  bool recorded = false;
  optimized::Configuration configuration = {}; ///< of the kernel; empty: as dispatch chooses

  OperationData data(LaunchObserver* observer = nullptr) const {
    return {id, contract, tensors, config, observer, configuration};
  }
};

/// What the request says, under the overrides. bad_input naming what cannot be; unsupported where
/// it does not fit into memory.
Result<BenchProblem> make_problem(const BenchRequest& request, const BenchOptions& options);

/// What names the problem of a request that is not made, or cannot be.
BenchDims dims_of(const BenchRequest& request);

/// bad_input for a problem by shape that makes no sense; nothing of it is made.
Status check_problem(const BenchRequest& request, const BenchOptions& options);

/// bad_input for a shape that names what its operation has not; the dimensions with defaults.
Result<BenchDims> complete_shape(const std::string& operation, const BenchDims& shape);

/// Tensors of that shape, which complete_shape gave; `fill`: false leaves them without payload.
Result<BenchProblem> generate(const std::string& operation, const BenchDims& shape,
                              const std::vector<ContractOverride>& overrides, std::uint64_t seed,
                              bool fill = true);

/// `problem` with its rows repeated until there are `rows`; each repetition has pages of its own,
/// and slots and tables that point to them. An operation whose rows are not independent is repeated
/// as a whole, as often as `rows` needs.
Status tile(BenchProblem& problem, std::int64_t rows);

/// Which of the rows the gate compares, ascending: the first and the last, and as many in between
/// as the reference does in seconds.
std::vector<std::int64_t> gate_rows(std::int64_t rows, const BenchWork& work, std::uint64_t seed);

/// unsupported where so many bytes are more than a third of the memory that is free.
Status check_memory(const std::string& what, double bytes);

} // namespace dsakit::harness
