// The text of a refusal: what was found and what is wanted.
#pragma once

#include <cstdint>
#include <string>

namespace dsakit::reference {

/// "name: found X, want WANT"
inline std::string found(const std::string& name, const std::string& value,
                         const std::string& want) {
  return name + ": found " + value + ", want " + want;
}

inline std::string found(const std::string& name, std::int64_t value, const std::string& want) {
  return found(name, std::to_string(value), want);
}

} // namespace dsakit::reference
