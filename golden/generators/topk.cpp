// Rows of logits that are hard to select from.
#include <cmath>
#include <functional>
#include <limits>

#include "generator.hpp"

namespace dsakit::golden {
namespace {

/// What a row of logits holds, by position.
using Row = std::function<float(std::int64_t, Random&)>;

void topk_step(Golden& golden, std::int64_t number, std::int64_t columns, std::int64_t k,
               const std::vector<std::pair<std::int32_t, Row>>& rows) {
  golden.step(number, {});
  Random random(static_cast<std::uint64_t>(number) + 7);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<float> logits;
  std::vector<std::int32_t> lengths;
  for (const auto& [length, value] : rows) {
    lengths.push_back(length);
    for (std::int64_t i = 0; i < columns; ++i)
      // Beyond the row the largest number: who reads it, takes it.
      logits.push_back(i < length ? value(i, random) : std::numeric_limits<float>::max());
  }
  golden.add("topk",
             {{"logits", tensor(Dtype::float32, {count, columns}, {"row", "key"}, logits)},
              {"row_lens", tensor(Dtype::int32, {count}, {"row"}, lengths)}},
             {{"topk_indices", empty(Dtype::int32, {count, k}, {"row", "k"})}});
}

} // namespace

void topk_file(const std::string& folder) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kMax = std::numeric_limits<float>::max();
  const Row normal = [](std::int64_t, Random& r) { return r.normal(); };
  const Row ties = [](std::int64_t, Random& r) { return static_cast<float>(r.below(5)); };
  const Row zeros = [](std::int64_t i, Random& r) { // the threshold lies inside zeros of both signs
    return i % 7 == 0 ? std::abs(r.normal()) : r.below(2) ? 0.0F : -0.0F;
  };
  const Row nans = [](std::int64_t i, Random& r) {
    return i % 3 == 0 ? (i % 2 ? kNan : -kNan) : r.normal();
  };
  const Row holes = [](std::int64_t i, Random& r) { return i % 3 ? -kInf : r.normal(); };
  const Row constant = [](std::int64_t, Random&) { return -1.5F; };
  const Row narrow = [](std::int64_t, Random& r) { // differ in the last bits only
    return 1 + 0x1p-23F * static_cast<float>(r.below(64));
  };
  const Row huge = [](std::int64_t i, Random& r) {
    return i % 5 == 0 ? kMax : i % 5 == 1 ? -kMax : i % 5 == 2 ? kInf : r.normal();
  };
  const Row tiny = [](std::int64_t, Random& r) { return 0x1p-149F * (1000 * r.normal()); };

  Golden golden(folder, "generated_topk", {{"tie_rule", "smaller_index"}, {"topk_order", "rank"}},
                {});
  topk_step(golden, 0, 4100, 2048,
            {{4100, normal},
             {2048, normal},
             {2049, narrow},
             {2047, normal},
             {4099, ties},
             {4097, zeros},
             {3000, holes},
             {4100, nans},
             {0, normal}});
  topk_step(golden, 1, 70, 8,
            {{70, ties},
             {70, zeros},
             {70, huge},
             {70, tiny},
             {70, constant},
             {8, nans},
             {9, holes},
             {1, normal},
             {7, zeros},
             {64, narrow},
             {65, nans}});
  topk_step(golden, 2, 33, 1, {{33, normal}, {33, constant}, {33, nans}, {1, holes}, {2, zeros}});
  golden.commit();
}

} // namespace dsakit::golden
