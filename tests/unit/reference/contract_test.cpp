#include "dsakit/core/contract.hpp"

#include <gtest/gtest.h>

#include <string>

namespace dsakit {
namespace contract_test {

/// Every key that the parsers know, with values that differ from an enum's first one where they
/// can.
ContractValues full_contract() {
  return {{"index_fp8_encoding", "e4m3fn"},
          {"mla_fp8_encoding", "e4m3fnuz"},
          {"activation_dtype", "fp16"},
          {"scale_kind", "fp32"},
          {"index_q_floor", "1e-10"},
          {"index_k_floor", "1e-4"},
          {"qmax", "224"},
          {"index_page_layout", "mfma_preshuffle"},
          {"page_size", "48"},
          {"weight_fold", "fp32"},
          {"index_k_norm", "rmsnorm"},
          {"rmsnorm_rounding", "two"},
          {"lse_base", "2"},
          {"topk_order", "ascending"}};
}

TEST(Contract, QuantisersTakeTheirOwnEncodingAndFloor) {
  const ContractValues values = full_contract();
  const auto query = parse_index_query_quant(values);
  ASSERT_TRUE(query) << query.status().what();
  EXPECT_EQ(query->index_fp8_encoding, Fp8Encoding::e4m3fn);
  EXPECT_EQ(query->activation_dtype, ActivationDtype::fp16);
  EXPECT_EQ(query->scale_kind, ScaleKind::fp32);
  EXPECT_EQ(query->index_q_floor, 1e-10f);
  EXPECT_EQ(query->qmax, 224.0f);

  const auto key = parse_index_key_quant(values);
  ASSERT_TRUE(key) << key.status().what();
  EXPECT_EQ(key->pages.value.index_page_layout, IndexPageLayout::mfma_preshuffle);
  EXPECT_EQ(key->pages.value.page_size, 48);
  EXPECT_EQ(key->index_k_floor, 1e-4f);

  const auto mla = parse_mla_quant(values);
  ASSERT_TRUE(mla) << mla.status().what();
  EXPECT_EQ(mla->mla_fp8_encoding, Fp8Encoding::e4m3fnuz);
  EXPECT_EQ(mla->activation_dtype, ActivationDtype::fp16);
  EXPECT_EQ(mla->qmax, 224.0f);
}

TEST(Contract, SingleKeysAreReadUnderTheirNames) {
  const ContractValues values = full_contract();
  EXPECT_EQ(*parse_index_fp8_encoding(values), Fp8Encoding::e4m3fn);
  EXPECT_EQ(*parse_mla_fp8_encoding(values), Fp8Encoding::e4m3fnuz);
  EXPECT_EQ(*parse_activation_dtype(values), ActivationDtype::fp16);
  EXPECT_EQ(*parse_weight_fold(values), WeightFold::fp32);
  EXPECT_EQ(*parse_index_k_norm(values), IndexKNorm::rmsnorm);
  EXPECT_EQ(*parse_rmsnorm_rounding(values), RmsNormRounding::two);
  EXPECT_EQ(*parse_lse_base(values), LseBase::two);
  EXPECT_EQ(*parse_topk_order(values), TopkOrder::ascending);
  EXPECT_EQ(*parse_page_size(values), 48);
  EXPECT_EQ(*parse_accumulation("sm90_wgmma_fp8"), Accumulation::sm90_wgmma_fp8);
  EXPECT_EQ(*parse_mla_scale_read("bf16"), MlaScaleRead::bf16);
}

TEST(Contract, NamesAreWhatTheParsersRead) {
  for (WeightFold v : {WeightFold::bf16_intermediate, WeightFold::fp32})
    EXPECT_EQ(*parse_weight_fold({{"weight_fold", std::string(name(v))}}), v);
  for (IndexKNorm v : {IndexKNorm::layernorm, IndexKNorm::rmsnorm})
    EXPECT_EQ(*parse_index_k_norm({{"index_k_norm", std::string(name(v))}}), v);
  for (RmsNormRounding v : {RmsNormRounding::one, RmsNormRounding::two})
    EXPECT_EQ(*parse_rmsnorm_rounding({{"rmsnorm_rounding", std::string(name(v))}}), v);
  for (LseBase v : {LseBase::e, LseBase::two})
    EXPECT_EQ(*parse_lse_base({{"lse_base", std::string(name(v))}}), v);
  for (TopkOrder v : {TopkOrder::rank, TopkOrder::ascending})
    EXPECT_EQ(*parse_topk_order({{"topk_order", std::string(name(v))}}), v);
  for (MlaScaleRead v : {MlaScaleRead::fp32, MlaScaleRead::bf16})
    EXPECT_EQ(*parse_mla_scale_read(name(v)), v);
}

TEST(Contract, AMissingKeyIsNamed) {
  for (const char* key :
       {"index_fp8_encoding", "activation_dtype", "scale_kind", "index_q_floor", "qmax"}) {
    ContractValues values = full_contract();
    values.erase(key);
    const auto query = parse_index_query_quant(values);
    EXPECT_EQ(query.status().code(), Code::bad_input) << key;
    EXPECT_EQ(query.status().what(), "contract key " + std::string(key) + " is missing");
  }
  for (const char* key : {"mla_fp8_encoding", "activation_dtype", "qmax"}) {
    ContractValues values = full_contract();
    values.erase(key);
    EXPECT_EQ(parse_mla_quant(values).status().what(),
              "contract key " + std::string(key) + " is missing");
  }
  EXPECT_EQ(parse_lse_base({}).status().what(), "contract key lse_base is missing");
}

TEST(Contract, AWrongValueIsNamedWithTheValuesWanted) {
  EXPECT_EQ(parse_lse_base({{"lse_base", "10"}}).status().what(),
            "contract key lse_base: found '10', want e | 2");
  EXPECT_EQ(parse_weight_fold({{"weight_fold", "bf16"}}).status().what(),
            "contract key weight_fold: found 'bf16', want bf16_intermediate | fp32");
  EXPECT_EQ(parse_mla_scale_read("fp16").status().what(),
            "contract key mla_scale_read: found 'fp16', want fp32 | bf16");
  EXPECT_EQ(parse_page_size({{"page_size", "6.5"}}).status().what(),
            "contract key page_size: found '6.5', want a whole number of tokens");

  ContractValues values = full_contract();
  values["qmax"] = "256";
  EXPECT_EQ(parse_index_query_quant(values).status().what(),
            "contract key qmax: found '256', want 448 | 240 | 224");
  values["qmax"] = "448"; // of e4m3fn; the MLA cache here is e4m3fnuz
  EXPECT_TRUE(parse_index_query_quant(values));
  EXPECT_EQ(parse_mla_quant(values).status().what(),
            "contract key qmax: found '448', want at most 240, the largest e4m3fnuz");
  values["index_q_floor"] = "0";
  EXPECT_EQ(parse_index_query_quant(values).status().code(), Code::bad_input);
}

} // namespace contract_test
} // namespace dsakit
