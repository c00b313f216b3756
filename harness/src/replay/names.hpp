// Names: lists as the operation table writes them, outputs with their producers.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

/// "k_fp8 k_scale" -> {"k_fp8", "k_scale"}
inline std::vector<std::string> split_names(std::string_view names) {
  std::istringstream in{std::string(names)};
  std::vector<std::string> result;
  for (std::string name; in >> name;)
    result.push_back(name);
  return result;
}

/// The output that a recorded tensor is: TensorInfo::output() of a tensor that was read.
inline std::string output_of(const std::string& name, const Attributes& attributes) {
  const auto output = attributes.find("output");
  return output == attributes.end() ? name : output->second;
}

} // namespace dsakit::harness
