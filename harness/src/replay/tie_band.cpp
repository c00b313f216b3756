#include "tie_band.hpp"

#include "names.hpp"

namespace dsakit::harness {

Result<std::vector<double>> tie_band(const RecordingReader& reader, const OperationData& topk,
                                     Accumulation accumulation, const RowSample& sample) {
  const Tensor& logits = topk.input("logits");
  for (const OperationId& id : reader.operations()) {
    if (id.step != topk.id.step || !id.operation.starts_with("index_logits_")) continue;
    const ContractValues contract = reader.contract(id.step);
    auto tensors = reader.read(id, contract);
    DSAKIT_TRY(tensors);
    const Operation& operation = OperationData{id, contract, *tensors, reader.config()}.operation();
    const auto sampled = sample_rows(std::move(*tensors), operation, sample);
    DSAKIT_TRY(sampled);
    for (const auto& [name, output] : sampled->outputs) {
      if (output.tensor.bytes != logits.bytes) continue;
      const OperationData data{id, contract, *sampled, reader.config()};
      const OperationAdapter& adapter = *find_adapter(id.operation);
      const auto recorded = parse_accumulation(output.attributes.at("accumulation"));
      DSAKIT_TRY(recorded);
      auto band = adapter.bound(data, "logits", accumulation);
      DSAKIT_TRY(band);
      const auto of_recorded = adapter.bound(data, "logits", *recorded);
      DSAKIT_TRY(of_recorded);
      for (std::size_t i = 0; i < band->size(); ++i)
        (*band)[i] += (*of_recorded)[i];
      return band;
    }
  }
  return bad_input("step " + std::to_string(topk.id.step) +
                   " topk: found no index_logits operation that made its logits, want one: the "
                   "rule's band comes from its inputs");
}

} // namespace dsakit::harness
