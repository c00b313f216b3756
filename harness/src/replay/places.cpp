#include "places.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include "names.hpp"

namespace dsakit::harness {
namespace {

constexpr std::int64_t kTile = 16;
constexpr std::int64_t kShortAxis = 64; ///< up to here every index can be told

/// Tokens of a page; 0 where the operation has no pages.
std::int64_t page_size(const OperationData& data) {
  const auto keys = split_names(data.operation().contract);
  const auto found = data.contract.find("page_size");
  if (found == data.contract.end() ||
      std::find(keys.begin(), keys.end(), "page_size") == keys.end())
    return 0;
  std::int64_t size = 0;
  std::from_chars(found->second.data(), found->second.data() + found->second.size(), size);
  return size;
}

} // namespace

std::vector<Axis> axes_of(const OperationData& data, const std::string& output,
                          const Shape& shape) {
  const RecordedTensor* recorded = data.find_output(output);
  const bool named = recorded && recorded->axes.size() == shape.size();
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    Axis& axis = axes.emplace_back();
    axis.name = named ? recorded->axes[i] : "axis" + std::to_string(i);
    if (i == 0 || i + 1 < shape.size() || shape[i] <= kShortAxis) continue;
    const bool paged = output == "logits" && page_size(data) > 0;
    axis.unit = paged ? "page" : "tile";
    axis.block = paged ? page_size(data) : kTile;
  }
  return axes;
}

std::vector<AxisMap> map_of(const Comparison& comparison, const Shape& shape,
                            const std::vector<Axis>& axes) {
  std::vector<AxisMap> maps;
  for (std::size_t i = 0; i < comparison.wrong_along.size(); ++i) {
    const AxisCounts& counts = comparison.wrong_along[i];
    AxisMap& map = maps.emplace_back();
    map.axis = axes[i].name;
    map.unit = axes[i].unit;
    map.extent = shape[i];
    // A huge axis was counted in parts already: whole ones.
    map.block = (axes[i].block + counts.step - 1) / counts.step * counts.step;
    map.blocks = (map.extent + map.block - 1) / map.block;
    const std::int64_t parts = map.block / counts.step;
    std::int64_t last_wrong = -2;
    for (std::int64_t b = 0; b < map.blocks; ++b) {
      const auto begin = counts.wrong.begin() + b * parts;
      const auto end = counts.wrong.begin() +
                       std::min(static_cast<std::int64_t>(counts.wrong.size()), (b + 1) * parts);
      if (std::all_of(begin, end, [](std::int64_t n) { return n == 0; })) continue;
      ++map.wrong_blocks;
      const std::int64_t last = std::min(map.extent, (b + 1) * map.block) - 1;
      if (b == last_wrong + 1 && !map.ranges.empty()) {
        if (map.ranges.back()[1] == b * map.block - 1) map.ranges.back()[1] = last;
      } else if (map.ranges.size() < AxisMap::kRanges) {
        map.ranges.push_back({b * map.block, last});
      }
      last_wrong = b;
    }
  }
  return maps;
}

std::vector<std::int64_t> samples_of(const Comparison& comparison) {
  const std::vector<std::int64_t>& wrong = comparison.wrong;
  std::set<std::int64_t> samples;
  if (wrong.empty()) return {};
  if (comparison.worst) samples.insert(*comparison.worst);
  const std::size_t others = ReportLine::kSamples - samples.size();
  for (std::size_t i = 0; i < std::min(others, wrong.size()); ++i)
    samples.insert(wrong[wrong.size() <= others ? i : i * wrong.size() / others]);
  return {samples.begin(), samples.end()};
}

} // namespace dsakit::harness
