// Names: lists as the operation table writes them, outputs with their producers.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/operations.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

/// The step as a whole, after its operations.
inline constexpr std::string_view kLayer = "layer";

/// "k_fp8 k_scale" -> {"k_fp8", "k_scale"}
inline std::vector<std::string> split_names(std::string_view names) {
  std::istringstream in{std::string(names)};
  std::vector<std::string> result;
  for (std::string name; in >> name;)
    result.push_back(name);
  return result;
}

/// `name` is one of them.
inline bool is_one_of(std::string_view names, std::string_view name) {
  const auto all = split_names(names);
  return std::find(all.begin(), all.end(), name) != all.end();
}

/// Keys that a recording holds for each output, not in its contract.
inline bool is_per_output(std::string_view key) {
  return key == "accumulation" || key == "mla_scale_read";
}

/// The operation's outputs say `key` in a recording; false of an unknown operation.
inline bool outputs_hold(const Operation* operation, std::string_view key) {
  return operation && is_one_of(operation->output_attributes, key);
}

inline bool has(const RecordingReader& reader, const OperationId& id) {
  return std::any_of(reader.operations().begin(), reader.operations().end(),
                     [&](const OperationId& other) {
                       return other.step == id.step && other.operation == id.operation;
                     });
}

/// The output that a recorded tensor is: TensorInfo::output() of a tensor that was read.
inline std::string output_of(const std::string& name, const Attributes& attributes) {
  const auto output = attributes.find("output");
  return output == attributes.end() ? name : output->second;
}

} // namespace dsakit::harness
