#include "tie_band.hpp"

#include "names.hpp"

namespace dsakit::harness {
namespace {

std::vector<double> as_doubles(const Tensor& band) {
  return {band.as<float>(), band.as<float>() + band.elements()};
}

} // namespace

Result<std::vector<double>> tie_band(const BandSource& source, const OperationData& topk,
                                     const Rule& rule) {
  if (!rule.band) return std::vector<double>{};
  if (const auto given = topk.tensors.inputs.find(kLogitsBand); given != topk.tensors.inputs.end())
    return as_doubles(given->second.tensor);
  const RecordingReader& reader = source.reader;
  const Tensor& logits = topk.input("logits");
  for (const OperationId& id : reader.operations()) {
    if (id.step != topk.id.step || !id.operation.starts_with("index_logits_")) continue;
    const ContractValues contract = source.overrides.contract(reader, id.step);
    auto tensors = reader.read(id, contract);
    DSAKIT_TRY(tensors);
    const Operation& operation = OperationData{id, contract, *tensors, reader.config()}.operation();
    const auto sampled = sample_rows(std::move(*tensors), operation, source.sample);
    DSAKIT_TRY(sampled);
    for (const auto& [name, output] : sampled->outputs) {
      if (output.tensor.bytes != logits.bytes) continue;
      const OperationData data{id, contract, *sampled, reader.config()};
      const OperationAdapter& adapter = *find_adapter(id.operation);
      const auto recorded = source.overrides.accumulation(&operation, name, output.attributes);
      DSAKIT_TRY(recorded);
      auto band = adapter.bound(data, "logits", *rule.band);
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
