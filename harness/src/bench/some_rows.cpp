#include "some_rows.hpp"

#include <algorithm>

#include "../replay/sample_rows.hpp"

namespace dsakit::harness {
namespace {

// What the reference is asked for at most: it takes seconds, whatever the size of the problem.
constexpr double kGateFlops = 4e9, kGateBytes = 64e6;
constexpr std::int64_t kLeastGateRows = 4;

} // namespace

void cut_to_rows(KernelRun& run, const Operation& operation, const RowNumbers& rows) {
  if (rows.empty()) return;
  for (auto& [name, tensor] : run.outputs)
    if (const auto axis = row_axis(operation, name)) tensor = of_axis(tensor, *axis, rows);
}

std::vector<std::int64_t> gate_rows(std::int64_t rows, const BenchWork& work, std::uint64_t seed) {
  const double part = std::min(kGateFlops / std::max(work.flops, 1.0), kGateBytes / work.bytes);
  const auto wanted = static_cast<std::int64_t>(part * static_cast<double>(rows));
  const std::int64_t count = std::min(rows, std::max(kLeastGateRows, wanted));
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < count; ++i) { // one of each of `count` parts
    const std::int64_t first = i * rows / count, end = (i + 1) * rows / count;
    const auto offset =
        static_cast<std::int64_t>(
            (seed + 1) * 0x9E3779B97F4A7C15 * static_cast<std::uint64_t>(i + 1) >> 33) %
        (end - first);
    chosen.push_back(i == 0 ? 0 : i == count - 1 ? rows - 1 : first + offset);
  }
  return chosen;
}

} // namespace dsakit::harness
