#include "names.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "dsakit/core/operations.hpp"
#include "text.hpp"

namespace dsakit::harness {
namespace {

/// Every operation whose tensors a recording may hold; kOperations has those that are replayed.
constexpr std::array kCausalOrder = std::to_array<std::string_view>({"layer",
                                                                     "qkv_a_proj",
                                                                     "q_norm",
                                                                     "q_b_proj",
                                                                     "kv_norm",
                                                                     "index_q_proj",
                                                                     "index_k_proj",
                                                                     "index_w_proj",
                                                                     "fp8_cast",
                                                                     "index_query_quant",
                                                                     "index_weights_fold",
                                                                     "index_key_norm",
                                                                     "index_cache_write",
                                                                     "index_cache_gather",
                                                                     "index_logits_prefill",
                                                                     "index_logits_decode",
                                                                     "topk",
                                                                     "dcp_topk_merge",
                                                                     "mla_cache_write",
                                                                     "topk_slots",
                                                                     "absorb_q",
                                                                     "sparse_attention",
                                                                     "dcp_attention_merge",
                                                                     "absorb_v",
                                                                     "gate_proj",
                                                                     "output_gate",
                                                                     "o_proj"});
static_assert(std::ranges::all_of(kOperations, [](const Operation& operation) {
  return std::ranges::count(kCausalOrder, operation.name) == 1;
}));

} // namespace

std::optional<std::size_t> causal_position(std::string_view operation) {
  const auto found = std::find(kCausalOrder.begin(), kCausalOrder.end(), operation);
  if (found == kCausalOrder.end()) return std::nullopt;
  return static_cast<std::size_t>(found - kCausalOrder.begin());
}

std::string exported_name(const std::string& object) {
  std::string name = object.substr(1);
  std::replace(name.begin(), name.end(), '/', '.');
  return name;
}

bool valid_tensor_name(std::string_view name) {
  constexpr std::size_t kLongest =
      255; // rules match by std::regex, which recurses once a character
  return !name.empty() && name.size() <= kLongest && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) {
           return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
         });
}

bool valid_object(std::string_view object) {
  const auto slash = object.rfind('/');
  if (slash == object.npos || !valid_tensor_name(object.substr(slash + 1))) return false;
  std::string_view folder = object.substr(0, slash);
  if (folder == "/weights") return true;
  constexpr std::string_view kSteps = "/steps/";
  const auto side = folder.rfind('/');
  if (!folder.starts_with(kSteps) || side < kSteps.size()) return false;
  if (const auto name = folder.substr(side + 1); name != "inputs" && name != "outputs")
    return false;
  folder = folder.substr(kSteps.size(), side - kSteps.size());
  const auto operation = folder.find('/');
  return operation != folder.npos && parse_step(folder.substr(0, operation)) &&
         causal_position(folder.substr(operation + 1));
}

std::string join_axes(const std::vector<std::string>& axes) {
  std::string text;
  for (std::size_t i = 0; i < axes.size(); ++i)
    text += (i ? "," : "") + axes[i];
  return text;
}

Status check_writable(const std::string& path, const TensorInfo& info) {
  const auto fail = [&](const std::string& text) {
    return bad_input(path + ": " + escaped(info.object) + ": " + text);
  };
  if (!valid_object(info.object))
    return bad_input(path + ": found object " + in_quotes(info.object) +
                     ", want /steps/<n>/<operation>/<inputs|outputs>/<name> or /weights/<name>, " +
                     kTensorNameRule);
  if (info.shape.empty()) return fail("found a scalar, want at least one axis");
  if (info.axes.size() != info.shape.size())
    return fail("found " + std::to_string(info.axes.size()) + " axis names, want one for each of " +
                to_string(info.shape));
  for (const std::string& axis : info.axes)
    if (std::any_of(axis.begin(), axis.end(), [](char c) { return c == ',' || c == '\0'; }))
      return fail("found axis name " + in_quotes(axis) + ", want one without ',' and NUL");
  return {};
}

std::optional<std::int64_t> parse_step(std::string_view text) {
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc{} || end != text.data() + text.size() || step < 0 ||
      std::to_string(step) != text)
    return std::nullopt;
  return step;
}

std::string object_path(const OperationId& id, Side side, std::string_view name) {
  return "/steps/" + std::to_string(id.step) + "/" + id.operation + "/" +
         std::string(side_name(side)) + "/" + std::string(name);
}

std::string weight_path(std::string_view name) {
  return "/weights/" + std::string(name);
}

std::string TensorInfo::name() const {
  return object.substr(object.rfind('/') + 1);
}

std::string TensorInfo::output() const {
  const auto found = attributes.find("output");
  return found == attributes.end() ? name() : found->second;
}

} // namespace dsakit::harness
