#include "trial.hpp"

#include <algorithm>

#include "../sample_rows.hpp"

namespace dsakit::harness {
namespace {

constexpr std::size_t kRows = 16;
constexpr std::size_t kMostBytes = std::size_t{256} << 20; ///< each assumption copies the tensors
/// Two elements whose bytes an assumption gives exactly, and no other one changed, are no accident.
constexpr std::size_t kEnoughOfExact = 2;
constexpr const char* kOdd = "odd"; ///< name of the side that is not the reference

std::size_t bytes_of(const RecordedOperation& tensors) {
  std::size_t bytes = 0;
  for (const auto* side : {&tensors.inputs, &tensors.outputs})
    for (const auto& [name, tensor] : *side)
      bytes += tensor.tensor.bytes.size();
  return bytes;
}

/// Row 0, which a producer may take for all rows, and the first ones that are wrong.
std::vector<std::int64_t> rows_to_try(const Failure& f, std::size_t axis) {
  std::vector<std::int64_t> rows = {0};
  for (const std::int64_t i : f.wrong.at()) {
    const std::int64_t row = coordinates(f.wrong.shape(), i)[axis];
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    if (rows.size() > kRows) break;
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

} // namespace

std::optional<AssumptionTrial> AssumptionTrial::of(const OperationAdapter& adapter,
                                                   const Failure& f) {
  const bool got_is_reference = f.c.got.kind == Producer::Kind::reference;
  if (!got_is_reference && f.c.want.kind != Producer::Kind::reference) return std::nullopt;
  const OperationData& data = f.data;
  AssumptionTrial trial;
  trial.adapter_ = &adapter;
  trial.id_ = data.id;
  trial.contract_ = data.contract;
  trial.config_ = data.config;
  trial.case_ = f.c;
  for (Producer* side : {&trial.case_.got, &trial.case_.want}) // of all rows
    side->scales = nullptr, side->band = nullptr;

  RecordedTensor odd;
  odd.tensor = *(got_is_reference ? f.c.want : f.c.got).tensor;
  if (const RecordedTensor* recorded = data.find_output(f.c.output))
    odd.attributes = recorded->attributes; // such as whose rank it is
  odd.attributes["output"] = f.c.output;
  RecordedOperation tensors;
  if (const auto axis = row_axis(data.operation(), f.c.output)) {
    const std::vector<std::int64_t> rows = rows_to_try(f, *axis);
    auto of_rows = keep_rows(data.tensors, data.operation(), rows);
    if (!of_rows) return std::nullopt;
    tensors = std::move(*of_rows);
    odd.tensor = of_axis(odd.tensor, *axis, rows);
  } else {
    tensors = data.tensors;
  }
  tensors.outputs[kOdd] = std::move(odd);
  if (bytes_of(tensors) > kMostBytes) return std::nullopt;
  trial.tensors_ = std::make_unique<RecordedOperation>(std::move(tensors));

  ReferenceRun reference(adapter, trial.data());
  const auto judged = judge(trial.case_of(*trial.tensors_), reference);
  const std::size_t enough = f.c.gate == Gate::derived ? kEnough : kEnoughOfExact;
  if (!judged || judged->comparison.mismatches < static_cast<std::int64_t>(enough))
    return std::nullopt;
  trial.before_ = judged->comparison;
  return trial;
}

Case AssumptionTrial::case_of(const RecordedOperation& tensors) const {
  Case c = case_;
  (c.got.kind == Producer::Kind::reference ? c.want : c.got).tensor =
      &tensors.outputs.at(kOdd).tensor;
  return c;
}

bool AssumptionTrial::explains(const Assumption& assumption) const {
  RecordedOperation tensors = *tensors_;
  OperationData other{id_, contract_, tensors, config_};
  assumption.make(tensors, other.contract, other.config);
  ReferenceRun reference(*adapter_, std::move(other));
  const auto judged = judge(case_of(tensors), reference);
  return judged && judged->comparison.passes() && judged->comparison.elements >= before_.elements &&
         judged->comparison.used <= before_.used / 2;
}

} // namespace dsakit::harness
