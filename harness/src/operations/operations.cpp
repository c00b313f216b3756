#include "dsakit/harness/operations.hpp"

#include "adapters.hpp"

namespace dsakit::harness {

const OperationAdapter* find_adapter(std::string_view operation) {
  if (operation == "index_cache_write") return &index_cache_write_adapter();
  if (operation == "index_cache_gather") return &index_cache_gather_adapter();
  if (operation == "index_logits_decode") return &index_logits_decode_adapter();
  return nullptr;
}

} // namespace dsakit::harness
