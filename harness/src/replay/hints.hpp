// Hints: a likely cause of a failure, where a pattern fits. A hint never changes a verdict.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "judge.hpp"

namespace dsakit::harness {

/// The hints of one operation; keeps the references under other contracts between its outputs.
class Hints {
public:
  Hints(const OperationAdapter& adapter, ReferenceRun& reference)
      : adapter_(adapter), reference_(reference) {}

  /// Empty where no pattern fits.
  std::string find(const Case& c, const Judged& judged);

private:
  /// The same inputs under a contract that differs in one field.
  struct Alternative {
    std::string field;
    std::string value;
    std::unique_ptr<ReferenceRun> reference;
  };

  std::string other_accumulation(const Case& c);
  std::string other_contract(const Case& c);
  void make_alternatives();

  const OperationAdapter& adapter_;
  ReferenceRun& reference_;
  std::vector<Alternative> alternatives_;
};

} // namespace dsakit::harness
