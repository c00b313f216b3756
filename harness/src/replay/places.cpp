#include "places.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include "../operations/index_pages.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"
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

/// The token of a page that each of the `bytes` of a row of the index cache belongs to.
std::vector<std::int64_t> tokens_of_bytes(const OperationData& data, std::int64_t bytes) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(bytes), -1);
  const RecordedTensor& cache = data.tensors.inputs.at("index_cache");
  const std::int64_t page = page_size(data);
  const auto note = [&](std::int64_t at, std::int64_t token) {
    if (at >= 0 && at < bytes) tokens[static_cast<std::size_t>(at)] = token;
  };
  if (data.operation().format == "mxfp4") {
    const auto pages = parse_mxfp4_pages(data.contract);
    const auto geometry =
        pages ? page_geometry(cache, *pages) : Result<PageGeometry>(pages.status());
    if (!geometry) return {};
    for (std::int64_t token = 0; token < page; ++token) {
      for (std::int64_t byte = 0; byte < reference::kMxfp4Bytes; ++byte)
        note(geometry->offset + reference::mxfp4_value_offset(*pages, token, byte), token);
      for (std::int64_t group = 0; group < reference::kMxfp4Groups; ++group)
        note(geometry->offset + reference::mxfp4_scale_offset(*pages, token, group), token);
    }
    return tokens;
  }
  const auto pages = parse_index_pages(data.contract);
  const auto geometry = pages ? page_geometry(cache, *pages) : Result<PageGeometry>(pages.status());
  if (!geometry) return {};
  for (std::int64_t token = 0; token < page; ++token) {
    for (std::int64_t dim = 0; dim < reference::kIndexHeadDim; ++dim)
      note(geometry->offset + reference::index_value_offset(*pages, token, dim), token);
    for (std::int64_t byte = 0; byte < 4; ++byte) // a float32
      note(geometry->offset + reference::index_scale_offset(*pages, token) + byte, token);
  }
  return tokens;
}

/// Blocks that are wrong, as runs.
void add_block(AxisMap& map, std::int64_t block) {
  ++map.wrong_blocks;
  const std::int64_t first = block * map.block, last = std::min(map.extent, first + map.block) - 1;
  if (!map.ranges.empty() && map.ranges.back()[1] == first - 1)
    map.ranges.back()[1] = last;
  else if (map.ranges.size() < AxisMap::kRanges)
    map.ranges.push_back({first, last});
}

/// The tokens of a page in which some byte is wrong, whatever its page.
AxisMap token_map(const std::vector<std::int64_t>& token_of, const AxisCounts& bytes) {
  AxisMap map;
  map.axis = "tokens of a page";
  map.unit = "index";
  map.extent = map.blocks = *std::max_element(token_of.begin(), token_of.end()) + 1;
  std::set<std::int64_t> wrong;
  for (std::size_t i = 0; i < bytes.wrong.size(); ++i)
    if (bytes.wrong[i] > 0 && token_of[i] >= 0) wrong.insert(token_of[i]);
  for (const std::int64_t token : wrong)
    add_block(map, token);
  return map;
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
    if (output == "index_cache" && i == 1) axis.token_of = tokens_of_bytes(data, shape[i]);
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
    if (!axes[i].token_of.empty() && counts.step == 1)
      maps.push_back(token_map(axes[i].token_of, counts));
    AxisMap& map = maps.emplace_back();
    map.axis = axes[i].name;
    map.unit = axes[i].unit;
    map.extent = shape[i];
    // A huge axis was counted in parts already: whole ones.
    map.block = (axes[i].block + counts.step - 1) / counts.step * counts.step;
    map.blocks = (map.extent + map.block - 1) / map.block;
    const std::int64_t parts = map.block / counts.step;
    for (std::int64_t b = 0; b < map.blocks; ++b) {
      const auto begin = counts.wrong.begin() + b * parts;
      const auto end = counts.wrong.begin() +
                       std::min(static_cast<std::int64_t>(counts.wrong.size()), (b + 1) * parts);
      if (!std::all_of(begin, end, [](std::int64_t n) { return n == 0; })) add_block(map, b);
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
