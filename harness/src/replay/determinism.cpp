#include "determinism.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "../recording/text.hpp"
#include "dsakit/optimized/configuration.hpp"
#include "judge.hpp"
#include "names.hpp"
#include "places.hpp"
#include "sample_rows.hpp"

namespace dsakit::harness {
namespace {

/// One level at work: the lines of its outputs.
class BitsLevel {
public:
  BitsLevel(const std::string& level, const OperationData& data, const KernelRun& first,
            const std::function<ReportLine()>& new_line)
      : data_(data) {
    for (const auto& [output, tensor] : first.outputs) {
      ReportLine line = new_line();
      line.tensor = output;
      line.subject = name(Producer::Kind::kernel);
      line.against = level;
      line.kernel = first.kernel;
      line.workgroups = first.workgroups;
      lines_[output] = std::move(line);
    }
  }

  /// `got` against `want`, once more; the first difference stays in the line.
  void compare(const std::string& output, const Tensor& got, const Tensor& want,
               const std::string& hint) {
    ReportLine& line = lines_.at(output);
    if (line.verdict == Verdict::fail) return;
    const Comparison comparison = compare_exact(Elements(got), Elements(want), {});
    const Limits none;
    const auto axes = axes_of(data_, output, got.shape);
    const auto compared = line.elements;
    fill(line, Measured{Gate::exact, none, comparison, got.dtype, got.shape, axes});
    line.elements += line.verdict == Verdict::fail ? 0 : compared;
    if (line.verdict != Verdict::fail) return;
    line.hint = hint;
    const std::int64_t at = comparison.first.value_or(0);
    line.got = Sample{element(got, at), hex(got, at)};
    line.want = Sample{element(want, at), hex(want, at)};
  }

  void stop(Verdict verdict, const std::string& reason) {
    for (auto& [output, line] : lines_) {
      line.verdict = verdict;
      line.reason = reason;
    }
  }

  void give(std::vector<ReportLine>& lines) {
    for (auto& [output, line] : lines_)
      lines.push_back(std::move(line));
  }

private:
  const OperationData& data_;
  std::map<std::string, ReportLine> lines_;
};

/// `count` rows of `rows`, the first and the last among them.
std::vector<std::int64_t> spread(std::int64_t rows, std::int64_t count) {
  std::vector<std::int64_t> chosen;
  count = std::min(rows, count);
  for (std::int64_t i = 0; i < count; ++i)
    chosen.push_back(count == 1 ? 0 : i * (rows - 1) / (count - 1));
  return chosen;
}

void say_failure(BitsLevel& level, const Status& status, const std::string& what) {
  level.stop(Verdict::error, what + ": " + status.what());
}

Status compare_runs(BitsLevel& level, int runs, const OperationAdapter& adapter,
                    const OperationData& data, const KernelRun& first,
                    const KernelRunner& kernels) {
  for (int i = 1; i < runs; ++i) {
    const auto again = kernels.run_again(adapter, data, i);
    const std::string what = "run " + std::to_string(i + 1) + " of " + std::to_string(runs);
    if (!again) {
      say_failure(level, again.status(), what);
      return {};
    }
    for (const auto& [output, tensor] : again->outputs)
      level.compare(output, tensor, first.outputs.at(output), what + " gave other bits");
  }
  return {};
}

/// `batch` ran in the configuration of `data`. A dispatch that was tuned may take another one for a
/// row alone, and with it, rightly, other bits: the claim is about one configuration.
Status compare_rows_alone(BitsLevel& level, int count, const OperationAdapter& adapter,
                          const OperationData& data, const KernelRun& batch,
                          const KernelRunner& kernels, const std::string& with = "") {
  const Operation& operation = data.operation();
  const std::int64_t rows = independent_rows(data.tensors, operation);
  if (rows == 0) {
    level.stop(Verdict::skipped, "not claimed: its rows are not independent");
    return {};
  }
  for (const std::int64_t row : spread(rows, count)) {
    const auto alone = keep_rows(data.tensors, operation, {row});
    DSAKIT_TRY(alone);
    const auto run = kernels.run(
        adapter, {data.id, data.contract, *alone, data.config, nullptr, data.configuration});
    const std::string what = with + "row " + std::to_string(row) + " of " + std::to_string(rows);
    if (!run) {
      say_failure(level, run.status(), what + ", alone");
      return {};
    }
    for (const auto& [output, tensor] : run->outputs)
      if (const auto axis = row_axis(operation, output))
        level.compare(output, tensor, of_axis(batch.outputs.at(output), *axis, {row}),
                      what + " gave other bits alone");
  }
  return {};
}

/// What may be tuned of the kernel that ran; nullptr: nothing.
const optimized::ConfigurationKey* split_of(const OperationData& data, const KernelRun& first) {
  for (const optimized::ConfigurationSpace& space : optimized::configuration_spaces())
    if (space.operation == data.id.operation && space.kernel == first.kernel)
      return &space.keys.front();
  return nullptr;
}

/// Top-k's lanes share a row, and the result does not depend on their number. What attention gives
/// depends on its splits, and on nothing else: a row alone is the same as in its batch.
Status compare_splits(BitsLevel& level, int count, const OperationAdapter& adapter,
                      const OperationData& data, const KernelRun& first,
                      const KernelRunner& kernels) {
  const optimized::ConfigurationKey* key = split_of(data, first);
  if (!key) {
    level.stop(Verdict::skipped, "not claimed: " + first.kernel + " lists no splits");
    return {};
  }
  for (const std::int64_t i : spread(std::ssize(key->values), count)) {
    OperationData split = data;
    split.configuration = {{std::string(key->key), key->values[static_cast<std::size_t>(i)]}};
    const std::string with = optimized::configuration_text(split.configuration);
    const auto run = kernels.run(adapter, split);
    if (!run) {
      say_failure(level, run.status(), with);
      return {};
    }
    if (key->key == "lanes")
      for (const auto& [output, tensor] : run->outputs)
        level.compare(output, tensor, first.outputs.at(output), with + " gave other bits");
    else
      DSAKIT_TRY(compare_rows_alone(level, 2, adapter, split, *run, kernels, with + ": "));
  }
  return {};
}

} // namespace

Result<Determinism> parse_determinism(const std::string& levels, const std::string& count) {
  Determinism wanted;
  std::istringstream in(levels);
  for (std::string level; std::getline(in, level, ',');) {
    bool* which = level == "run"     ? &wanted.run
                  : level == "batch" ? &wanted.batch
                  : level == "split" ? &wanted.split
                                     : nullptr;
    if (which == nullptr)
      return bad_input("--determinism: found level " + in_quotes(level) +
                       ", want run, batch and split");
    *which = true;
  }
  const auto [end, error] =
      std::from_chars(count.data(), count.data() + count.size(), wanted.count);
  if (error != std::errc{} || end != count.data() + count.size() || wanted.count < 2 ||
      wanted.count > 10000)
    return bad_input("--determinism: found count " + in_quotes(count) + ", want 2 to 10000");
  return wanted;
}

Status check_determinism(const Determinism& wanted, const OperationAdapter& adapter,
                         const OperationData& data, const KernelRun& first,
                         const KernelRunner& kernels, const std::function<ReportLine()>& new_line,
                         std::vector<ReportLine>& lines) {
  if (wanted.run) {
    BitsLevel level("run", data, first, new_line);
    DSAKIT_TRY(compare_runs(level, wanted.count, adapter, data, first, kernels));
    level.give(lines);
  }
  if (wanted.batch) {
    BitsLevel level("batch", data, first, new_line);
    OperationData as_it_ran = data;
    as_it_ran.configuration = first.configuration;
    DSAKIT_TRY(compare_rows_alone(level, wanted.count, adapter, as_it_ran, first, kernels));
    level.give(lines);
  }
  if (wanted.split) {
    BitsLevel level("split", data, first, new_line);
    DSAKIT_TRY(compare_splits(level, wanted.count, adapter, data, first, kernels));
    level.give(lines);
  }
  return {};
}

} // namespace dsakit::harness
