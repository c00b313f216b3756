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

class AssumptionCheck {
public:
  /// Nothing where no assumption could be judged: no side is the reference, too few elements are
  /// wrong, or there are more tensors than are worth copying.
  static std::optional<AssumptionCheck> of(const OperationAdapter& adapter, const Failure& f);

  /// The reference explains the values under that assumption: the comparison passes, all that was
  /// compared is, and the worst error is half of what it was, so that a bound which lets
  /// everything pass explains nothing.
  bool explains(const Assumption& assumption) const;

  /// The operation, of some of its rows.
  OperationData data() const { return {id_, contract_, *tensors_, config_}; }

private:
  AssumptionCheck() = default;
  Case case_of(const RecordedOperation& tensors) const;
  /// The comparison under it; nothing where it cannot be judged.
  std::optional<Comparison> under(const Assumption& assumption,
                                  const RecordedOperation& tensors) const;

  const OperationAdapter* adapter_ = nullptr;
  OperationId id_;
  ContractValues contract_;
  Attributes config_;
  std::unique_ptr<RecordedOperation> tensors_; ///< with the side that is not the reference
  /// The same of two rows, the first and a wrong one, which refuse most assumptions sooner.
  std::unique_ptr<RecordedOperation> two_rows_;
  Case case_;
  Comparison before_;
};

/// hint_contract.cpp: a contract field with another value.
std::vector<Assumption> other_contracts(const OperationData& data);
/// hint_inputs.cpp: an input taken in another way.
std::vector<Assumption> other_inputs(const OperationData& data);

} // namespace dsakit::harness
