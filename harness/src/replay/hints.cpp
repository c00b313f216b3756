#include "hints.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>

#include "../operations/launch.hpp"
#include "dsakit/core/operations.hpp"
#include "names.hpp"

namespace dsakit::harness {
namespace {

bool is_recorded(const Producer& producer) {
  return producer.kind == Producer::Kind::recorded;
}

/// The contract key says something about the operation or its outputs.
bool takes(const Operation& operation, const std::string& key) {
  for (std::string_view keys :
       {operation.contract, operation.optional_contract, operation.output_attributes}) {
    const auto names = split_names(keys);
    if (std::find(names.begin(), names.end(), key) != names.end()) return true;
  }
  return false;
}

bool is_float(Dtype dtype) {
  return dtype != Dtype::int32 && dtype != Dtype::int64 && dtype != Dtype::uint8;
}

/// Where what is right meets a recording, what is odd is the recording; else it is what was got.
bool odd_is_want(const Case& c) {
  return c.got.kind == Producer::Kind::reference || c.got.right;
}

/// "the recorded values", "the kernel's values"
std::string whose(const Case& c) {
  const Producer& odd = odd_is_want(c) ? c.want : c.got;
  return is_recorded(odd) ? "the recorded values" : "the kernel's values";
}

/// The wrong elements that Comparison kept, each with what it should be.
class WrongElements {
public:
  WrongElements(const Case& c, const Judged& judged)
      : odd_(odd_is_want(c) ? judged.want : judged.got),
        right_(odd_is_want(c) ? judged.got : judged.want), at_(judged.comparison.wrong) {}

  /// True where nearly all of them fit, so that a few accidents do not hide the pattern.
  template <class Fits>
  bool nearly_all(Fits fits) const {
    const auto n = std::count_if(at_.begin(), at_.end(), fits);
    return !at_.empty() && static_cast<double>(n) >= 0.9 * static_cast<double>(at_.size());
  }

  bool have_ratio(double ratio) const {
    const double slack = odd_.tensor.dtype == Dtype::float32 ? 1e-3 : 0x1p-7; // bf16 rounds both
    return nearly_all([&](std::int64_t i) {
      const double right = right_.at(i);
      return right != 0 && std::abs(odd_.at(i) / right / ratio - 1) < slack;
    });
  }
  bool are_zero() const {
    return nearly_all([&](std::int64_t i) { return odd_.at(i) == 0; });
  }
  /// Ids where the right answer is -1, which pads a row.
  bool are_beyond_padding() const {
    return odd_.tensor.dtype == Dtype::int32 &&
           nearly_all([&](std::int64_t i) { return right_.at(i) == -1 && odd_.at(i) >= 0; });
  }
  /// Packed codes with their halves exchanged.
  bool have_swapped_nibbles() const {
    return odd_.tensor.dtype == Dtype::float4_e2m1fn_x2 && nearly_all([&](std::int64_t i) {
             const std::uint8_t right = right_.tensor.as<std::uint8_t>()[i];
             return odd_.tensor.as<std::uint8_t>()[i] ==
                    static_cast<std::uint8_t>(right << 4 | right >> 4);
           });
  }
  /// Exponents one from the right one.
  bool are_one_step_off() const {
    return odd_.tensor.dtype == Dtype::float8_e8m0fnu && nearly_all([&](std::int64_t i) {
             return std::abs(odd_.tensor.as<std::uint8_t>()[i] -
                             right_.tensor.as<std::uint8_t>()[i]) == 1;
           });
  }
  bool are(const Tensor& tensor) const {
    return nearly_all([&](std::int64_t i) { return bytes(odd_.tensor, i) == bytes(tensor, i); });
  }
  bool are_poison() const {
    return nearly_all([&](std::int64_t i) {
      const std::string element = bytes(odd_.tensor, i);
      return element ==
             std::string(element.size(), static_cast<char>(poison_byte(odd_.tensor.dtype)));
    });
  }

private:
  static std::string bytes(const Tensor& tensor, std::int64_t i) {
    const std::size_t size = size_of(tensor.dtype);
    return {reinterpret_cast<const char*>(tensor.bytes.data()) + static_cast<std::size_t>(i) * size,
            size};
  }

  const Values& odd_;
  const Values& right_;
  const std::vector<std::int64_t>& at_;
};

} // namespace

std::string Hints::find(const Case& c, const Judged& judged) {
  if (std::string hint = other_accumulation(c); !hint.empty()) return hint;
  if (std::string hint = other_contract(c); !hint.empty()) return hint;

  const auto expected = reference_.expected(c.output);
  if (!expected) return {};
  const WrongElements wrong(c, judged);
  const std::string from =
      to_string(coordinates(judged.want.tensor.shape, *judged.comparison.first));
  if ((*expected)->before && wrong.are(*(*expected)->before))
    return whose(c) + " from " + from + " on are what was there before: unwritten or stale";
  if (c.got.kind == Producer::Kind::kernel && wrong.are_poison())
    return whose(c) + " from " + from + " on are the poison of the output: unwritten";
  if (wrong.are_beyond_padding())
    return whose(c) + " from " + from + " on stand where there is nothing left (-1): a stale tail";
  for (const auto& [ratio, base, of] :
       {std::tuple(std::numbers::log2e, "2", "e"), std::tuple(std::numbers::ln2, "e", "2")})
    if (c.output == "lse" && wrong.have_ratio(ratio))
      return whose(c) + " are logarithms to base " + base + ", not " + of +
             "? The contract field is lse_base";
  if (wrong.are_zero())
    return whose(c) + " from " + from + " on are zero: unwritten or a cleared tail";
  if (wrong.have_swapped_nibbles())
    return whose(c) + " have the halves of each byte exchanged: is the even element in the high "
                      "nibble?";
  if (wrong.are_one_step_off())
    return whose(c) + " are one exponent from right: a scale rounded down or to even, not up?";
  const Operation& operation = reference_.data().operation();
  const char* encoding =
      takes(operation, "index_fp8_encoding") ? "index_fp8_encoding" : "mla_fp8_encoding";
  for (const double ratio : {0.25, 0.5, 2.0, 4.0})
    if (takes(operation, encoding) && is_float(judged.want.tensor.dtype) &&
        wrong.have_ratio(ratio)) {
      const std::string times = ratio == 0.25  ? "0.25"
                                : ratio == 0.5 ? "0.5"
                                : ratio == 2   ? "2"
                                               : "4";
      return whose(c) + " are " + times + " times what they should be: " +
             (ratio < 1 ? "e4m3fn read as e4m3fnuz" : "e4m3fnuz read as e4m3fn") +
             "? The contract field is " + encoding;
    }
  return {};
}

std::string Hints::other_accumulation(const Case& c) {
  const auto accumulation = passing_accumulation(c, reference_);
  if (!accumulation) return {};
  return "passes with accumulation=" + std::string(dsakit::name(*accumulation)) +
         ": the contract field accumulation may be wrong for this producer";
}

std::string Hints::other_contract(const Case& c) {
  // Only a comparison with the reference changes with the reference.
  if (c.got.kind != Producer::Kind::reference && c.want.kind != Producer::Kind::reference)
    return {};
  if (alternatives_.empty()) make_alternatives();
  for (const Alternative& alternative : alternatives_)
    if (const auto judged = judge(c, *alternative.reference); judged && judged->comparison.passes())
      return whose(c) + " are right under " + alternative.field + "=" + alternative.value +
             ": the contract field is " + alternative.field;
  return {};
}

void Hints::make_alternatives() {
  const ContractValues& contract = reference_.data().contract;
  const Operation& operation = reference_.data().operation();
  const auto add = [&](const std::string& field, const char* value, const char* qmax) {
    const auto found = contract.find(field);
    if (found == contract.end() || found->second == value || !takes(operation, field)) return;
    OperationData data = reference_.data();
    data.contract[field] = value;
    // Each encoding has its own usual divisor.
    if (qmax && data.contract.contains("qmax")) data.contract["qmax"] = qmax;
    alternatives_.push_back(
        {field, value, std::make_unique<ReferenceRun>(adapter_, std::move(data))});
  };
  add("index_fp8_encoding", "e4m3fn", "448");
  add("index_fp8_encoding", "e4m3fnuz", "224");
  const bool mxfp4 = operation.format == "mxfp4"; // the other format's layouts hold no such records
  add("index_page_layout", mxfp4 ? "flat" : "block_flat", nullptr);
  add("index_page_layout", mxfp4 ? "preshuffle64" : "mfma_preshuffle", nullptr);
  add("hadamard", "none", nullptr);
  add("hadamard", "query_and_key", nullptr);
  add("mla_fp8_encoding", "e4m3fn", "448");
  add("mla_fp8_encoding", "e4m3fnuz", "224");
  add("mla_scale_read", "fp32", nullptr);
  add("mla_scale_read", "bf16", nullptr);
  for (const char* interleave : {"1", "2", "4", "8", "16", "32", "64"})
    add("dcp_interleave", interleave, nullptr);
  add("lse_base", "e", nullptr);
  add("lse_base", "2", nullptr);
  add("gate_rounding", "one", nullptr);
  add("gate_rounding", "two", nullptr);
  add("rmsnorm_rounding", "one", nullptr);
  add("rmsnorm_rounding", "two", nullptr);
}

} // namespace dsakit::harness
