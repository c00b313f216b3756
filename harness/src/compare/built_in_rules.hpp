// Generated at build time from golden/rules/*.json: harness/CMakeLists.txt.
#pragma once

#include <span>

namespace dsakit::harness {

struct BuiltInRules {
  const char* file;
  const char* json;
};

std::span<const BuiltInRules> built_in_rules();

} // namespace dsakit::harness
