// Judging one output: two producers, the reference between them, and a gate.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsakit/harness/compare.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/report.hpp"
#include "places.hpp"

namespace dsakit::harness {

/// The reference of an operation under one contract; each part is computed when first asked for.
class ReferenceRun {
public:
  ReferenceRun(const OperationAdapter& adapter, OperationData data)
      : adapter_(adapter), data_(std::move(data)) {}

  const OperationData& data() const { return data_; }
  Result<const Expected*> expected(const std::string& output);
  Result<const std::vector<double>*> bound(const std::string& output, Accumulation accumulation);
  Result<Mask> valid_set(const Tensor& output, const std::vector<double>& band) const {
    return adapter_.valid_set(data_, output, band);
  }

private:
  const OperationAdapter& adapter_;
  OperationData data_;
  std::optional<Result<std::vector<Expected>>> outputs_;
  std::map<std::pair<std::string, Accumulation>, std::vector<double>> bounds_;
};

/// One side of a comparison.
struct Producer {
  enum class Kind : std::uint8_t { reference, kernel, recorded };

  Kind kind;
  const Tensor* tensor = nullptr; ///< none for the reference
  Accumulation accumulation =
      Accumulation::exact;        ///< decides its bound; not asked of the reference
  bool right = false;             ///< a kernel's: it passed against the reference
  const Tensor* scales = nullptr; ///< of quantised codes, where another output holds them
  /// By how much each logit that a top-k chose from may have been off; none: it had these.
  const std::vector<double>* band = nullptr;
};

std::string_view name(Producer::Kind kind);

/// One output to judge.
struct Case {
  std::string output; ///< canonical
  Gate gate;
  Producer got;
  Producer want;
  Limits limits = {}; ///< of the rule
};

/// Lives no longer than the producers' tensors and the reference: it looks at their elements.
struct Judged {
  Comparison comparison;
  std::int64_t moved = 0; ///< left out, since the references differ there too
  Elements got;
  Elements want;
  std::vector<Axis> axes = {};
  std::optional<ReportQuantised> quantised = {}; ///< where something mismatches
  std::optional<ReportTies> ties = {};
};

/// bad_input where a tensor has another shape than the operation gives it. `fed`: the reference of
/// what was recorded, where `got` was made from other inputs than that (chained mode); the two
/// references then say by how much the outputs may differ.
Result<Judged> judge(const Case& c, ReferenceRun& reference, ReferenceRun* fed = nullptr);

/// The tightest accumulation of the recorded producers under which a derived gate passes.
std::optional<Accumulation> passing_accumulation(const Case& c, ReferenceRun& reference);

/// The tightest gate that passes: another accumulation, or a multiple of this gate.
std::string tightest_gate(const Case& c, const Comparison& comparison, ReferenceRun& reference);

/// The same of an exact gate, which needs no reference.
std::string tightest_gate(const Comparison& comparison);

/// A comparison with what it was held to, without the values.
struct Measured {
  Gate gate;
  const Limits& limits;
  const Comparison& comparison;
  Dtype dtype;
  const Shape& shape;
  const std::vector<Axis>& axes;
};

/// Fills in the verdict and everything but values: samples, got and want.
void fill(ReportLine& line, const Measured& measured);

/// Fills in what `judged` found.
void fill(ReportLine& line, const Case& c, const Judged& judged);

} // namespace dsakit::harness
