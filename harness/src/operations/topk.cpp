// topk: positions of the k largest logits of each row, of one rank under decode context parallelism
// (spec 2.10, 6, 11).
#include "dsakit/optimized/topk.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "adapters.hpp"
#include "dcp_rank.hpp"
#include "dsakit/reference/topk.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

/// Ours is by rank where the recorded producer leaves the order open.
Result<TopkOrder> order_of(const OperationData& data) {
  if (data.contract.at("topk_order") == "unspecified") return TopkOrder::rank;
  return parse_topk_order(data.contract);
}

/// NaN of either sign last; -0 equals +0 (spec 11).
bool scores_higher(float a, float b) {
  return a > b || (std::isnan(b) && !std::isnan(a));
}

/// A row's logits and what a set of its best positions may hold.
struct Row {
  const float* scores;
  std::int64_t length;
  std::int64_t wanted;              ///< positions: k, or all of a shorter row
  float threshold;                  ///< the lowest score of the best
  std::int64_t threshold_positions; ///< how many of the best have it

  Row(const float* row_scores, std::int64_t row_length, std::int64_t k)
      : scores(row_scores), length(std::max<std::int64_t>(row_length, 0)),
        wanted(std::min(k, length)), threshold(0), threshold_positions(0) {
    if (wanted == 0) return;
    std::vector<float> best(scores, scores + length);
    std::nth_element(best.begin(), best.begin() + (wanted - 1), best.end(), scores_higher);
    threshold = best[static_cast<std::size_t>(wanted - 1)];
    threshold_positions = wanted - std::count_if(scores, scores + length, [&](float score) {
                            return scores_higher(score, threshold);
                          });
  }

  /// Marks what the set of `k` positions may hold: each at most once, none below the threshold, of
  /// those that tie with it no more than there are places for, and -1 in the places left over.
  void mark(const std::int32_t* positions, std::int64_t k, const reference::DcpRank& dcp,
            std::uint8_t* valid) const {
    std::set<std::int32_t> taken;
    std::int64_t padding = k - wanted;
    std::int64_t ties = threshold_positions;
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int32_t position = positions[i];
      if (position == -1) {
        valid[i] = padding-- > 0;
        continue;
      }
      const bool held = position >= 0 && reference::dcp_owner(dcp, position) == dcp.rank;
      const std::int64_t index = held ? reference::dcp_local_index(dcp, position) : length;
      if (index >= length || !taken.insert(position).second ||
          scores_higher(threshold, scores[index]))
        valid[i] = 0;
      else
        valid[i] = scores_higher(scores[index], threshold) || ties-- > 0;
    }
  }
};

class Topk final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto order = order_of(data);
    DSAKIT_TRY(order);
    const auto dcp = rank_of(data, "topk_indices");
    DSAKIT_TRY(dcp);
    const Tensor& logits = data.input("logits");
    Expected indices;
    indices.output = "topk_indices";
    indices.value.tensor = Tensor(Dtype::int32, data.output("topk_indices").tensor.shape);
    DSAKIT_TRY(reference::topk(logits.as<float>(), logits.shape[0], logits.shape[1], nullptr,
                               data.input("row_lens").as<std::int32_t>(),
                               indices.value.tensor.shape[1], *order,
                               indices.value.tensor.as<std::int32_t>(), *dcp));
    std::vector<Expected> outputs;
    if (data.find_output("dcp_scores")) {
      Expected scores;
      scores.output = "dcp_scores";
      scores.value.tensor = Tensor(Dtype::float32, indices.value.tensor.shape);
      reference::dcp_scores(logits.as<float>(), logits.shape[0], logits.shape[1], nullptr,
                            indices.value.tensor.as<std::int32_t>(), indices.value.tensor.shape[1],
                            scores.value.tensor.as<float>(), *dcp);
      outputs.push_back(std::move(scores));
    }
    outputs.push_back(std::move(indices));
    return outputs;
  }

  Result<Mask> valid_set(const OperationData& data, const Tensor& indices) const override {
    const auto dcp = rank_of(data, "topk_indices");
    DSAKIT_TRY(dcp);
    const Tensor& logits = data.input("logits");
    const auto* row_lens = data.input("row_lens").as<std::int32_t>();
    const std::int64_t k = indices.shape[1];
    Mask valid(static_cast<std::size_t>(indices.elements()));
    for (std::int64_t r = 0; r < indices.shape[0]; ++r)
      Row(logits.as<float>() + r * logits.shape[1], row_lens[r], k)
          .mark(indices.as<std::int32_t>() + r * k, k, *dcp, valid.data() + r * k);
    return valid;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto order = order_of(data);
    DSAKIT_TRY(order);
    const auto dcp = rank_of(data, "topk_indices");
    DSAKIT_TRY(dcp);
    const Tensor& logits = data.input("logits");
    const auto device_logits = DeviceBuffer::upload(device, logits);
    DSAKIT_TRY(device_logits);
    const auto row_lens = DeviceBuffer::upload(device, data.input("row_lens"));
    DSAKIT_TRY(row_lens);
    Tensor indices = poisoned(Dtype::int32, data.output("topk_indices").tensor.shape);
    const auto device_indices = DeviceBuffer::upload(device, indices);
    DSAKIT_TRY(device_indices);
    const bool wants_scores = data.find_output("dcp_scores") != nullptr;
    Tensor scores = poisoned(Dtype::float32, wants_scores ? indices.shape : Shape{0});
    const auto device_scores = DeviceBuffer::upload(device, scores);
    DSAKIT_TRY(device_scores);

    optimized::TopkParams params{};
    params.logits = device_logits->as<float>();
    params.row_ends = row_lens->as<std::int32_t>();
    params.topk_indices = device_indices->as<std::int32_t>();
    params.dcp_scores = wants_scores ? device_scores->as<float>() : nullptr;
    params.logits_stride = logits.shape[1];
    params.topk_stride = indices.shape[1];
    params.rows = logits.shape[0];
    params.k = static_cast<std::int32_t>(indices.shape[1]);
    params.order = *order;
    params.dcp_world = static_cast<std::int32_t>(dcp->world);
    params.dcp_interleave = static_cast<std::int32_t>(dcp->interleave);
    params.dcp_rank = static_cast<std::int32_t>(dcp->rank);

    auto run = launch(device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "topk_indices", *device_indices, std::move(indices)));
    if (wants_scores)
      DSAKIT_TRY(take_output(*run, "dcp_scores", *device_scores, std::move(scores)));
    return run;
  }
};

} // namespace

const OperationAdapter& topk_adapter() {
  static const Topk adapter;
  return adapter;
}

} // namespace dsakit::harness
