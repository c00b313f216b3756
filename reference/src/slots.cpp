#include "slots.hpp"

#include <string>

namespace dsakit::reference {

Status check_slot_mapping(std::span<const std::int64_t> slot_mapping, std::int64_t slots,
                          const char* input, std::int64_t rows) {
  for (std::size_t t = 0; t < slot_mapping.size(); ++t)
    if (slot_mapping[t] < -1 || slot_mapping[t] >= slots)
      return bad_input("slot_mapping[" + std::to_string(t) + "]: found " +
                       std::to_string(slot_mapping[t]) + ", want -1 or a slot below " +
                       std::to_string(slots));
  if (rows < std::ssize(slot_mapping))
    return bad_input(std::string(input) + ": found " + std::to_string(rows) +
                     " rows, want at least " + std::to_string(slot_mapping.size()) +
                     ", one for each of slot_mapping");
  return {};
}

} // namespace dsakit::reference
