// Which outputs of a step are inputs of later operations, and under what names.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/core/tensor.hpp"

namespace dsakit::harness {

/// The names under which later operations take that output: its own, and what they call it.
std::vector<std::string> inputs_fed_by(const std::string& output);

/// What an operation takes of `output` under the name `input`: as k_pe the last columns of qkv_a.
Tensor as_input(const Tensor& output, const std::string& input);

/// Where, in BYTES, the input holds the output: at 0 if it is all of it, at a rank's place if the
/// input has the outputs of ranks one after the other.
std::optional<std::ptrdiff_t> place_of(const Tensor& output, const Tensor& input);

} // namespace dsakit::harness
