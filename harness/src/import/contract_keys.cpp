#include "dsakit/harness/contract_keys.hpp"

#include <cstdlib>
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
    {"index_page_layout", "block_flat mfma_preshuffle flat preshuffle64"},
    {"index_q_floor", ""},
    {"lse_base", "e 2"},
    {"mla_fp8_encoding", "e4m3fn e4m3fnuz"},
    {"mla_record", "fp8_ds_mla bf16"},
    {"mla_scale_read", "fp32 bf16"},
    {"page_size", ""},
    {"qmax", "448 240 224"},
    {"rmsnorm_rounding", "one two"},
    {"scale_kind", "ue8m0 fp32"},
    {"tie_rule", "smaller_index unspecified"},
    {"topk_order", "rank ascending unspecified"},
    {"weight_fold", "bf16_intermediate fp32"},
};

bool is_positive_number(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  return !copy.empty() && *end == '\0' && value > 0 && value < 1e30;
}

} // namespace

Status check_contract_value(std::string_view key, std::string_view value) {
  std::string names;
  for (const Key& known : kKeys) {
    names += (names.empty() ? "" : ", ") + std::string(known.name);
    if (known.name != key) continue;
    if (known.values.empty())
      return is_positive_number(value) ? Status{}
                                       : bad_input("contract key " + std::string(key) + ": found " +
                                                   in_quotes(value) + ", want a number > 0");
    std::istringstream values{std::string(known.values)};
    std::string wanted;
    for (std::string one; values >> one;) {
      if (one == value) return {};
      wanted += (wanted.empty() ? "" : " | ") + one;
    }
    return bad_input("contract key " + std::string(key) + ": found " + in_quotes(value) +
                     ", want " + wanted);
  }
  return bad_input("contract key " + in_quotes(key) + " is unknown, want one of " + names);
}

ContractValues kimi_k31_contract(const ContractValues& known) {
  ContractValues values = {
      {"activation_dtype", "bf16"}, {"empty_row", "zero"},
      {"gate_rounding", "two"},     {"hadamard", "none"},
      {"index_k_floor", "1e-4"},    {"index_page_layout", "block_flat"},
      {"index_q_floor", "1e-10"},   {"lse_base", "e"},
      {"mla_record", "fp8_ds_mla"}, {"mla_scale_read", "fp32"},
      {"page_size", "64"},          {"rmsnorm_rounding", "two"},
      {"scale_kind", "ue8m0"},      {"tie_rule", "smaller_index"},
      {"topk_order", "rank"},       {"weight_fold", "bf16_intermediate"},
  };
  if (const auto encoding = known.find("index_fp8_encoding"); encoding != known.end())
    values.emplace("qmax", encoding->second == "e4m3fnuz" ? "224" : "448");
  return values;
}

} // namespace dsakit::harness
