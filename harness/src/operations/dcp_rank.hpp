// Whose output a recording of context parallelism holds.
#pragma once

#include <cstdlib>
#include <string>

#include "dsakit/harness/operations.hpp"
#include "dsakit/reference/context_parallel.hpp"

namespace dsakit::harness {

/// A number that a recorded output has as attribute. It was checked when the file was opened.
inline std::int64_t attribute(const OperationData& data, std::string_view output,
                              const std::string& name, std::int64_t otherwise) {
  const Attributes& attributes = data.output(output).attributes;
  const auto found = attributes.find(name);
  return found == attributes.end() ? otherwise : std::strtoll(found->second.c_str(), nullptr, 10);
}

inline Result<reference::DcpRank> rank_of(const OperationData& data, std::string_view output) {
  const auto world = parse_dcp_world(data.contract);
  DSAKIT_TRY(world);
  const auto interleave = parse_dcp_interleave(data.contract);
  DSAKIT_TRY(interleave);
  return reference::DcpRank{*world, *interleave, attribute(data, output, "dcp_rank", 0)};
}

} // namespace dsakit::harness
