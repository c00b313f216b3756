#include "makers.hpp"

#include <algorithm>
#include <optional>

#include "../replay/feeds.hpp"

namespace dsakit::harness {
namespace {

/// Where the input holds that output of the recording; nothing where there is no such output.
Result<std::optional<std::ptrdiff_t>>
place_of_output(const RecordingReader& reader, const OperationId& id, const std::string& tensor,
                const std::string& name, const Tensor& input) {
  const std::vector<TensorInfo>& outputs = reader.tensors(id, Side::outputs);
  const auto info = std::find_if(outputs.begin(), outputs.end(),
                                 [&](const TensorInfo& each) { return each.name() == tensor; });
  if (info == outputs.end()) return std::optional<std::ptrdiff_t>{};
  const auto output = reader.read(*info);
  DSAKIT_TRY(output);
  return place_of(as_input(output->tensor, name), input);
}

} // namespace

void Makers::note(const OperationId& id) {
  for (const TensorInfo& output : got_.tensors(id, Side::outputs))
    for (const std::string& input : inputs_fed_by(output.output()))
      made_.emplace(input, Made{id, output.name()});
}

Result<Makers::Origin> Makers::origin(const std::string& input, const Tensor& got,
                                      const Tensor& want) const {
  Origin origin;
  const auto [first, last] = made_.equal_range(input);
  for (auto made = first; made != last; ++made) {
    const auto& [id, tensor] = made->second;
    const auto in_got = place_of_output(got_, id, tensor, input, got);
    DSAKIT_TRY(in_got);
    const auto in_want = place_of_output(want_, id, tensor, input, want);
    DSAKIT_TRY(in_want);
    origin.operation = id.operation;
    origin.got |= in_got->has_value();
    origin.want |= in_want->has_value();
    if (!*in_got || *in_got != *in_want) continue;
    std::ptrdiff_t size = std::ssize(got.bytes);
    for (const TensorInfo& output : got_.tensors(id, Side::outputs))
      if (output.name() == tensor && output.shape.size() < got.shape.size())
        size /= std::max<std::ptrdiff_t>(got.shape[0], 1); // one rank of those that are merged
    origin.explained.emplace_back(**in_got, **in_got + size);
  }
  return origin;
}

} // namespace dsakit::harness
