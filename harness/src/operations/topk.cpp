// topk: positions of the k largest logits of each row, of one rank under decode context parallelism
// (spec 2.10, 6, 11).
#include "dsakit/optimized/topk.hpp"

#include <algorithm>
#include <limits>

#include "adapters.hpp"
#include "dcp_rank.hpp"
#include "dsakit/reference/topk.hpp"
#include "launch.hpp"
#include "topk_rows.hpp"

namespace dsakit::harness {
namespace {

/// Ours is by rank where the recorded producer leaves the order open.
Result<TopkOrder> order_of(const OperationData& data) {
  if (data.contract.at("topk_order") == "unspecified") return TopkOrder::rank;
  return parse_topk_order(data.contract);
}

/// Where this rank's logits have a request's position; past all of them for another rank's.
std::int32_t local_position(const reference::DcpRank& dcp, std::int32_t position) {
  if (position < 0) return position;
  if (reference::dcp_owner(dcp, position) != dcp.rank)
    return std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(reference::dcp_local_index(dcp, position));
}

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

  Result<Mask> valid_set(const OperationData& data, const Tensor& indices,
                         const std::vector<double>& band) const override {
    const auto dcp = rank_of(data, "topk_indices");
    DSAKIT_TRY(dcp);
    const std::int64_t k = indices.shape[1];
    Mask valid(static_cast<std::size_t>(indices.elements()));
    std::vector<std::int32_t> local(static_cast<std::size_t>(k));
    for (std::int64_t r = 0; r < indices.shape[0]; ++r) {
      const TopkRow row = topk_row(data, r, band);
      const auto* positions = indices.as<std::int32_t>() + r * k;
      std::transform(positions, positions + k, local.begin(),
                     [&](std::int32_t position) { return local_position(*dcp, position); });
      mark_valid(row, local.data(), valid.data() + r * k);
    }
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

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "topk_indices", *device_indices, std::move(indices)));
    if (wants_scores)
      DSAKIT_TRY(take_output(*run, "dcp_scores", *device_scores, std::move(scores)));
    return run;
  }
};

} // namespace

TopkRow topk_row(const OperationData& data, std::int64_t row, const std::vector<double>& band) {
  const Tensor& logits = data.input("logits");
  const std::int64_t begin = row * logits.shape[1];
  return {logits.as<float>() + begin, band.empty() ? nullptr : band.data() + begin,
          data.input("row_lens").as<std::int32_t>()[row],
          data.output("topk_indices").tensor.shape[1]};
}

ReportTies count_ties(const OperationData& data) {
  ReportTies ties;
  for (std::int64_t r = 0; r < data.input("logits").shape[0]; ++r)
    count_ties(topk_row(data, r, {}), r, ties);
  return ties;
}

const OperationAdapter& topk_adapter() {
  static const Topk adapter;
  return adapter;
}

} // namespace dsakit::harness
