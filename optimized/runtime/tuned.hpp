// The tuned files of optimized/tuned, which travel inside the library.
#pragma once

#include <string>
#include <vector>

namespace dsakit::optimized {

struct BuiltInTuned {
  std::string source;
  std::string text;
};

std::vector<BuiltInTuned> built_in_tuned();

} // namespace dsakit::optimized
