// Names inside a recording: groups, causal order of operations, what a tensor may be called.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

constexpr std::string_view side_name(Side side) {
  return side == Side::inputs ? "inputs" : "outputs";
}

/// Position of a known operation in the layer's causal order (spec 1); nullopt for an unknown one.
std::optional<std::size_t> causal_position(std::string_view operation);

/// A tensor's name is a link name and a part of attribute text.
bool valid_tensor_name(std::string_view name);
/// What it must be, for messages.
inline constexpr const char* kTensorNameRule =
    "a name of 1 to 255 bytes without '/' and control characters, not '.' or '..'";

/// object_path of a known operation or weight_path, with a valid name.
bool valid_object(std::string_view object);

/// What `export` calls an object: "/steps/0/x/inputs/y" is "steps.0.x.inputs.y".
std::string exported_name(const std::string& object);

/// "rows,heads,dim"
std::string join_axes(const std::vector<std::string>& axes);

/// bad_input for a tensor that a reader would refuse: its object, a scalar, axes without names.
Status check_writable(const std::string& path, const TensorInfo& info);

/// The step of "0", "17", ...; nullopt for anything else, leading zeros included.
std::optional<std::int64_t> parse_step(std::string_view text);

} // namespace dsakit::harness
