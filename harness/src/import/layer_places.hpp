// Where a recording keeps the tensors of a whole layer, and the contract that a layer has by
// default: for files that are imported and for synthetic ones.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dsakit/core/contract.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

struct LayerKind {
  std::string logits; ///< index_logits_decode | index_logits_prefill
  bool mxfp4, q_lora, gate;
  std::string index_k_norm;
  bool dcp = false; ///< of several ranks that share the keys, the first one's view
};

/// A tensor and one of its places.
struct Placement {
  std::string tensor; ///< prefix + name, or "weights." + name
  std::string operation;
  Side side;
  std::string name;
};

/// Places of the tensors that there are, in the order of the tables: the first of a tensor stores
/// it, the others are links. Dense operations that are not whole are among them.
std::vector<Placement> layer_placements(const std::function<bool(const std::string&)>& has,
                                        const std::string& prefix, const LayerKind& kind);

/// What spec 11 says where a layer leaves a choice.
ContractValues layer_contract(const LayerKind& kind, const std::string& fp8_encoding,
                              const std::string& page_size);

} // namespace dsakit::harness
