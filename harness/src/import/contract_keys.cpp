#include "dsakit/harness/contract_keys.hpp"

#include <charconv>
#include <sstream>
#include <string>

#include "../recording/text.hpp"

namespace dsakit::harness {
namespace {

struct Key {
  std::string_view name;
  std::string_view values; ///< space-separated; empty for a number > 0
};

constexpr Key kKeys[] = {
    {"accumulation", "exact fp32 sm90_wgmma_fp8"},
    {"activation_dtype", "bf16 fp16"},
    {"dcp_interleave", ""},
    {"dcp_world", ""},
    {"empty_row", "zero nan"},
    {"gate_rounding", "one two"},
    {"hadamard", "none query_and_key"},
    {"index_fp8_encoding", "e4m3fn e4m3fnuz"},
    {"index_k_floor", ""},
    {"index_k_norm", "layernorm rmsnorm"},
    {"index_page_layout", "block_flat mfma_preshuffle flat preshuffle64"},
    {"index_q_floor", ""},
    {"lse_base", "e 2"},
    {"mla_fp8_encoding", "e4m3fn e4m3fnuz"},
    {"mla_record", "fp8_ds_mla bf16_576"},
    {"mla_scale_read", "fp32 bf16"},
    {"page_size", ""},
    {"qmax", "448 240 224"},
    {"rmsnorm_rounding", "one two"},
    {"scale_kind", "ue8m0 fp32"},
    {"tie_rule", "smaller_index unspecified"},
    {"topk_order", "rank ascending unspecified"},
    {"weight_fold", "bf16_intermediate fp32"},
};

const Key* find_key(std::string_view name) {
  for (const Key& key : kKeys)
    if (key.name == name) return &key;
  return nullptr;
}

} // namespace

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value > 0 && value < 1e30))
    return std::nullopt;
  return value;
}

std::string contract_key_values(std::string_view key) {
  const Key* known = find_key(key);
  if (!known || known->values.empty()) return "a number > 0";
  std::istringstream values{std::string(known->values)};
  std::string text;
  for (std::string one; values >> one;)
    text += (text.empty() ? "" : " | ") + one;
  return text;
}

Status check_contract_value(std::string_view key, std::string_view value) {
  const Key* known = find_key(key);
  if (!known) {
    std::string names;
    for (const Key& other : kKeys)
      names += (names.empty() ? "" : ", ") + std::string(other.name);
    return bad_input("contract key " + in_quotes(key) + " is unknown, want one of " + names);
  }
  std::istringstream values{std::string(known->values)};
  for (std::string one; values >> one;)
    if (one == value) return {};
  if (known->values.empty() && parse_number(value)) return {};
  return bad_input("contract key " + std::string(key) + ": found " + in_quotes(value) + ", want " +
                   contract_key_values(key));
}

ContractValues kimi_k31_contract(const ContractValues& known) {
  ContractValues values = {
      {"activation_dtype", "bf16"},
      {"empty_row", "zero"},
      {"gate_rounding", "two"},
      {"hadamard", "none"},
      {"index_k_floor", "1e-4"},
      {"index_page_layout", "block_flat"},
      {"index_q_floor", "1e-10"},
      {"lse_base", "e"},
      {"mla_record", "fp8_ds_mla"},
      {"page_size", "64"},
      {"rmsnorm_rounding", "two"},
      {"scale_kind", "ue8m0"},
      {"tie_rule", "smaller_index"},
      {"topk_order", "rank"},
      {"weight_fold", "bf16_intermediate"},
  };
  if (const auto encoding = known.find("index_fp8_encoding"); encoding != known.end())
    values.emplace("qmax", encoding->second == "e4m3fnuz" ? "224" : "448");
  return values;
}

} // namespace dsakit::harness
