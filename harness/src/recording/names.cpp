#include "names.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "dsakit/core/operations.hpp"

namespace dsakit::harness {
namespace {

constexpr std::array kCausalOrder = std::to_array<std::string_view>({"layer",
                                                                     "qkv_a_proj",
                                                                     "q_norm",
                                                                     "q_b_proj",
                                                                     "kv_norm",
                                                                     "index_q_proj",
                                                                     "index_k_proj",
                                                                     "index_w_proj",
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
                                                                     "output_gate",
                                                                     "o_proj"});
static_assert(kCausalOrder.size() == kOperations.size() + kRecordedOnly.size());

} // namespace

std::optional<std::size_t> causal_position(std::string_view operation) {
  const auto found = std::find(kCausalOrder.begin(), kCausalOrder.end(), operation);
  if (found == kCausalOrder.end()) return std::nullopt;
  return static_cast<std::size_t>(found - kCausalOrder.begin());
}

bool valid_tensor_name(std::string_view name) {
  return !name.empty() && name != "." && std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
}

Status check_writable(const std::string& path, const TensorInfo& info) {
  const auto fail = [&](const std::string& text) {
    return bad_input(path + ": " + info.object + ": " + text);
  };
  if (!valid_tensor_name(info.name())) return fail("found an unusable tensor name");
  if (info.shape.empty()) return fail("found a scalar, want at least one axis");
  if (info.axes.size() != info.shape.size())
    return fail("found " + std::to_string(info.axes.size()) + " axis names, want one for each of " +
                to_string(info.shape));
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
