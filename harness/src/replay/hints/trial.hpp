// A failed comparison once more, on a few of its rows: what it takes to try other assumptions.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "failure.hpp"

namespace dsakit::harness {

/// Something else that a producer may have assumed.
struct Assumption {
  std::string hint; ///< what to say where it explains the values
  /// Puts it into the tensors, the contract or the config.
  std::function<void(RecordedOperation&, ContractValues&, Attributes&)> make;
};

class AssumptionTrial {
public:
  /// Nothing where no assumption could be judged: no side is the reference, too few elements are
  /// wrong, or there are more tensors than are worth copying.
  static std::optional<AssumptionTrial> of(const OperationAdapter& adapter, const Failure& f);

  /// The reference explains the values under that assumption: the comparison passes, all that was
  /// compared is, and the worst error is half of what it was, so that a bound which lets
  /// everything pass explains nothing.
  bool explains(const Assumption& assumption) const;

  /// The operation, of the few rows.
  OperationData data() const { return {id_, contract_, *tensors_, config_}; }

private:
  AssumptionTrial() = default;
  Case case_of(const RecordedOperation& tensors) const;

  const OperationAdapter* adapter_ = nullptr;
  OperationId id_;
  ContractValues contract_;
  Attributes config_;
  std::unique_ptr<RecordedOperation> tensors_; ///< with the side that is not the reference
  Case case_;
  Comparison before_;
};

/// hint_contract.cpp: a contract field with another value.
std::vector<Assumption> other_contracts(const OperationData& data);
/// hint_inputs.cpp: an input taken in another way.
std::vector<Assumption> other_inputs(const OperationData& data);

} // namespace dsakit::harness
