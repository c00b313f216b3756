#include "assumption.hpp"

#include <algorithm>

#include "../sample_rows.hpp"

namespace dsakit::harness {
namespace {

constexpr std::size_t kRows = 16;
constexpr std::size_t kMostBytes = std::size_t{256} << 20; ///< each assumption copies the tensors
constexpr std::size_t kMostBytesTwice = std::size_t{64} << 20;
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

/// Rows without a wrong element, which an assumption has to leave right: the first, middle and
/// last.
std::vector<std::int64_t> right_rows(const Failure& f, std::size_t axis) {
  std::vector<std::int64_t> rows;
  const std::vector<AxisCounts>& along = f.judged.comparison.wrong_along;
  if (axis >= along.size() || along[axis].step != 1) return rows;
  for (std::size_t row = 0; row < along[axis].wrong.size(); ++row)
    if (along[axis].wrong[row] == 0) rows.push_back(static_cast<std::int64_t>(row));
  if (rows.size() > 3) rows = {rows.front(), rows[rows.size() / 2], rows.back()};
  return rows;
}

/// Row 0, which a producer may take for all rows, the first ones that are wrong, and a few right
/// ones.
std::vector<std::int64_t> rows_to_try(const Failure& f, std::size_t axis) {
  std::vector<std::int64_t> rows = {0};
  for (const std::int64_t i : f.wrong.at()) {
    const std::int64_t row = coordinates(f.wrong.shape(), i)[axis];
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    if (rows.size() > kRows) break;
  }
  for (const std::int64_t row : right_rows(f, axis))
    if (row != 0) rows.push_back(row);
  std::sort(rows.begin(), rows.end());
  return rows;
}

} // namespace

std::optional<AssumptionCheck> AssumptionCheck::of(const OperationAdapter& adapter,
                                                   const Failure& f) {
  const bool got_is_reference = f.c.got.kind == Producer::Kind::reference;
  if (!got_is_reference && f.c.want.kind != Producer::Kind::reference) return std::nullopt;
  const OperationData& data = f.data;
  AssumptionCheck check;
  check.adapter_ = &adapter;
  check.id_ = data.id;
  check.contract_ = data.contract;
  check.config_ = data.config;
  check.case_ = f.c;
  for (Producer* side : {&check.case_.got, &check.case_.want}) // of all rows
    side->scales = nullptr, side->band = nullptr;

  RecordedTensor odd;
  odd.tensor = *(got_is_reference ? f.c.want : f.c.got).tensor;
  if (const RecordedTensor* recorded = data.find_output(f.c.output))
    odd.attributes = recorded->attributes; // such as whose rank it is
  odd.attributes["output"] = f.c.output;
  RecordedOperation tensors;
  if (const auto axis = row_axis(data.operation(), f.c.output)) {
    const auto of = [&](const std::vector<std::int64_t>& rows) {
      auto some = keep_rows(data.tensors, data.operation(), rows);
      if (some) {
        RecordedTensor& of_rows = some->outputs[kOdd] = odd;
        of_rows.tensor = of_axis(odd.tensor, *axis, rows);
      }
      return some;
    };
    auto of_rows = of(rows_to_try(f, *axis));
    if (!of_rows) return std::nullopt;
    tensors = std::move(*of_rows);
    const std::int64_t wrong = coordinates(f.wrong.shape(), f.wrong.at().front())[*axis];
    if (wrong > 0 && bytes_of(tensors) <= kMostBytesTwice)
      if (auto two = of({0, wrong}))
        check.two_rows_ = std::make_unique<RecordedOperation>(std::move(*two));
  } else {
    tensors = data.tensors;
    tensors.outputs[kOdd] = std::move(odd);
  }
  if (bytes_of(tensors) > kMostBytes) return std::nullopt;
  check.tensors_ = std::make_unique<RecordedOperation>(std::move(tensors));

  ReferenceRun reference(adapter, check.data());
  const auto judged = judge(check.case_of(*check.tensors_), reference);
  const std::size_t enough = f.c.gate == Gate::derived ? kEnough : kEnoughOfExact;
  if (!judged || judged->comparison.mismatches < static_cast<std::int64_t>(enough))
    return std::nullopt;
  check.before_ = judged->comparison;
  return check;
}

Case AssumptionCheck::case_of(const RecordedOperation& tensors) const {
  Case c = case_;
  (c.got.kind == Producer::Kind::reference ? c.want : c.got).tensor =
      &tensors.outputs.at(kOdd).tensor;
  return c;
}

std::optional<Comparison> AssumptionCheck::under(const Assumption& assumption,
                                                 const RecordedOperation& tensors) const {
  RecordedOperation changed = tensors;
  OperationData other{id_, contract_, changed, config_};
  assumption.make(changed, other.contract, other.config);
  ReferenceRun reference(*adapter_, std::move(other));
  auto judged = judge(case_of(changed), reference);
  return judged ? std::optional(std::move(judged->comparison)) : std::nullopt;
}

bool AssumptionCheck::explains(const Assumption& assumption) const {
  if (two_rows_) {
    const auto found = under(assumption, *two_rows_);
    if (!found || !found->passes()) return false;
  }
  const auto found = under(assumption, *tensors_);
  return found && found->passes() && found->elements >= before_.elements &&
         found->used <= before_.used / 2;
}

} // namespace dsakit::harness
