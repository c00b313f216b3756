#include "pairs.hpp"

#include <set>

#include "names.hpp"
#include "quantised.hpp"

namespace dsakit::harness {
namespace {

/// The mla_scale_read of a recorded output; empty where its operation has none.
std::string scale_read_of(const OperationData& data, const Overrides& overrides,
                          const std::string& name, const RecordedTensor& recorded) {
  return outputs_hold(&data.operation(), "mla_scale_read") &&
                 recorded.attributes.contains("mla_scale_read")
             ? overrides.attribute("mla_scale_read", name, recorded.attributes)
             : "";
}

} // namespace

Result<std::vector<Pair>> pairs_of(const OperationData& data, const Overrides& overrides) {
  using Kind = Producer::Kind;
  std::vector<std::string> outputs = split_names(data.operation().outputs);
  for (std::string& output : split_names(data.operation().optional_outputs))
    outputs.push_back(std::move(output));
  std::set<std::string> reads;
  for (const auto& [name, recorded] : data.tensors.outputs)
    reads.insert(scale_read_of(data, overrides, name, recorded));
  if (reads.empty()) reads.insert("");

  std::vector<Pair> pairs;
  for (const std::string& read : reads)
    for (const std::string& output : outputs) {
      pairs.push_back({output, output, read, Kind::kernel, Kind::reference});
      for (const auto& [name, recorded] : data.tensors.outputs) {
        if (output_of(name, recorded.attributes) != output ||
            scale_read_of(data, overrides, name, recorded) != read)
          continue;
        const auto accumulation =
            overrides.accumulation(&data.operation(), name, recorded.attributes);
        DSAKIT_TRY(accumulation);
        pairs.push_back({output, name, read, Kind::reference, Kind::recorded, *accumulation});
        pairs.push_back({output, name, read, Kind::kernel, Kind::recorded, *accumulation});
      }
    }
  return pairs;
}

Producer kernel_side(const KernelRun& run, const std::string& output) {
  Producer producer{Producer::Kind::kernel, &run.outputs.at(output), run.accumulation};
  const auto scales = run.outputs.find(scales_output(output));
  if (scales != run.outputs.end()) producer.scales = &scales->second;
  return producer;
}

Producer recorded_side(const OperationData& data, const Pair& pair) {
  Producer producer{Producer::Kind::recorded, &data.tensors.outputs.at(pair.tensor).tensor,
                    pair.accumulation};
  producer.scales = find_scales(data.tensors, pair.tensor, pair.output);
  return producer;
}

} // namespace dsakit::harness
