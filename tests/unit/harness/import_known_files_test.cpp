// Every file of ../shared/recordings becomes a recording that keeps all of its tensors, under the
// names, contracts and reconstructed inputs that docs/recordings.md promises.
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "dsakit/core/operations.hpp"
#include "dsakit/harness/export.hpp"
#include "dsakit/harness/import.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/safetensors.hpp"
#include "support/recordings.hpp"
#include "support/temp_folder.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

Status import(const std::string& input, const std::string& output) {
  ImportOptions options;
  options.input = input;
  options.output = output;
  options.command = "dsakit import";
  return import_safetensors(options).status();
}

std::vector<TensorInfo> all_tensors(const RecordingReader& reader) {
  std::vector<TensorInfo> all = reader.weights();
  for (const OperationId& id : reader.operations())
    for (Side side : {Side::inputs, Side::outputs})
      for (const TensorInfo& info : reader.tensors(id, side))
        all.push_back(info);
  return all;
}

std::string text(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

class ImportKnownFile : public ::testing::TestWithParam<const char*> {
protected:
  TempFolder folder_;
};

TEST_P(ImportKnownFile, KeepsEveryTensorAndSurvivesTheWayBack) {
  DSAKIT_NEED_RECORDING(GetParam());
  const std::string input = recording_path(GetParam());
  const Status imported = import(input, folder_ / "a.h5");
  ASSERT_TRUE(imported) << imported.what();
  auto file = SafetensorsReader::open(input);
  ASSERT_TRUE(file) << file.status().what();
  auto reader = RecordingReader::open(folder_ / "a.h5");
  ASSERT_TRUE(reader) << reader.status().what();

  std::set<std::string> payloads;
  for (const TensorInfo& info : all_tensors(*reader)) {
    auto tensor = reader->read(info);
    ASSERT_TRUE(tensor) << tensor.status().what();
    if (!tensor->attributes.count("reconstructed")) payloads.insert(text(tensor->tensor));
  }
  for (const auto& [name, entry] : file->tensors())
    EXPECT_TRUE(payloads.count(text(*file->read(name)))) << name;

  for (const OperationId& id : reader->operations()) {
    const auto read = reader->read(id, reader->contract(id.step));
    EXPECT_TRUE(read) << id.operation << ": " << read.status().what();
  }

  ASSERT_TRUE(import(input, folder_ / "b.h5"));
  EXPECT_TRUE(read_file(folder_ / "a.h5") == read_file(folder_ / "b.h5")) << "not reproducible";
  const Status exported = export_safetensors(folder_ / "a.h5", folder_ / "c.safetensors");
  ASSERT_TRUE(exported) << exported.what();
  const Status again = import(folder_ / "c.safetensors", folder_ / "c.h5");
  ASSERT_TRUE(again) << again.what();
  EXPECT_TRUE(read_file(folder_ / "a.h5") == read_file(folder_ / "c.h5"))
      << "export lost something";
}

INSTANTIATE_TEST_SUITE_P(
    Shared, ImportKnownFile,
    ::testing::Values("decode_fnuz", "decode_mxfp4", "decode_next_n2", "kernel_cache_write",
                      "kernel_cp_merge", "kernel_fp8_cast", "kernel_index_convert",
                      "kernel_index_insert_normal", "kernel_index_insert_shuffle",
                      "kernel_logits_paged_cancel_h32_n1", "kernel_logits_paged_cancel_h64_n1",
                      "kernel_logits_paged_h32_n1", "kernel_logits_paged_h64_n2",
                      "kernel_logits_paged_rocm_h32_n1", "kernel_logits_paged_rocm_h32_n2",
                      "kernel_logits_paged_rocm_h64_n1", "kernel_logits_paged_rocm_h64_n2",
                      "kernel_logits_prefill_h32", "kernel_logits_prefill_h64",
                      "kernel_mla_decode_h64", "kernel_mla_prefill_bf16_h16",
                      "kernel_mxfp4_insert_flat", "kernel_mxfp4_quant", "kernel_norms",
                      "kernel_quant_q", "kernel_topk", "prefill_no_q_lora_rmsnorm_yarn",
                      "prefill_q_lora_layernorm_gate"),
    [](const auto& info) { return std::string(info.param); });

class ImportKnownFiles : public ::testing::Test {
protected:
  TempFolder folder_;

  RecordingReader imported(const std::string& name) {
    const Status status = import(recording_path(name), folder_ / "x.h5");
    EXPECT_TRUE(status) << status.what();
    auto reader = RecordingReader::open(folder_ / "x.h5");
    EXPECT_TRUE(reader) << reader.status().what();
    return std::move(*reader);
  }

  static RecordedOperation read(const RecordingReader& reader, const OperationId& id) {
    auto operation = reader.read(id, reader.contract(id.step));
    EXPECT_TRUE(operation) << operation.status().what();
    return operation ? *operation : RecordedOperation{};
  }

  static std::set<std::string> operations(const RecordingReader& reader) {
    std::set<std::string> names;
    for (const OperationId& id : reader.operations())
      names.insert(std::to_string(id.step) + " " + id.operation);
    return names;
  }

  static void expect_all_bytes(const RecordedTensor& recorded, std::byte value) {
    EXPECT_EQ(recorded.attributes.at("reconstructed"), "1");
    const auto& bytes = recorded.tensor.bytes;
    EXPECT_EQ(static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), value)),
              bytes.size());
  }
};

// These caches really were full of 0xA5 before the write, so that what is reconstructed, written
// records as well as untouched cells, must be that everywhere: the page maps are right.
TEST_F(ImportKnownFiles, ReconstructedCachesAreWhatTheRecorderStartedFrom) {
  struct File {
    const char* name;
    std::vector<std::int64_t> steps;
  };
  for (const auto& [name, steps] :
       {File{"kernel_index_insert_normal", {0, 1, 2}}, File{"kernel_index_insert_shuffle", {0, 1}},
        File{"kernel_mxfp4_insert_flat", {0, 1, 2}}}) {
    DSAKIT_NEED_RECORDING(name);
    const RecordingReader reader = imported(name);
    for (std::int64_t step : steps)
      for (const TensorInfo& info : reader.tensors({step, "index_cache_write"}, Side::inputs))
        if (info.name() == "index_cache") expect_all_bytes(*reader.read(info), std::byte{0xA5});
  }
}

TEST_F(ImportKnownFiles, ReconstructedGatherIsWhatTheRecorderStartedFrom) {
  for (const char* name : {"kernel_index_insert_normal", "kernel_index_insert_shuffle"}) {
    DSAKIT_NEED_RECORDING(name);
    const RecordingReader reader = imported(name);
    const RecordedOperation gather = read(reader, {0, "index_cache_gather"});
    expect_all_bytes(gather.inputs.at("k_fp8"), std::byte{0x5A});
    const Tensor& scale = gather.inputs.at("k_scale").tensor;
    ASSERT_EQ(scale.elements(), 340);
    for (std::int64_t j = 0; j < scale.elements(); ++j)
      EXPECT_EQ(scale.as<float>()[j], 7) << j;
  }
}

// This cache started as zeros: written records are poisoned, the others keep their zeros.
TEST_F(ImportKnownFiles, CacheThatStartedAsZerosIsPoisonedWhereItIsWritten) {
  DSAKIT_NEED_RECORDING("kernel_cache_write");
  const RecordingReader reader = imported("kernel_cache_write");
  for (const auto& [operation, tensor, record] :
       {std::tuple("index_cache_write", "index_cache", 132),
        std::tuple("mla_cache_write", "mla_cache", 656)}) {
    const RecordedOperation write = read(reader, {0, operation});
    const Tensor& slots = write.inputs.at("slot_mapping").tensor;
    std::set<std::int64_t> written(slots.as<std::int64_t>(),
                                   slots.as<std::int64_t>() + slots.elements());
    written.erase(-1);
    const auto& bytes = write.inputs.at(tensor).tensor.bytes;
    const auto poisoned = std::count(bytes.begin(), bytes.end(), std::byte{0xA5});
    const auto zeros = std::count(bytes.begin(), bytes.end(), std::byte{0});
    EXPECT_EQ(poisoned, static_cast<std::int64_t>(written.size()) * record);
    EXPECT_EQ(poisoned + zeros, static_cast<std::int64_t>(bytes.size()));
  }
}

TEST_F(ImportKnownFiles, IndexWritersHaveAStepForEachCache) {
  DSAKIT_NEED_RECORDING("kernel_index_insert_normal");
  const RecordingReader reader = imported("kernel_index_insert_normal");
  EXPECT_EQ(operations(reader),
            (std::set<std::string>{"0 index_cache_write", "0 index_cache_gather",
                                   "1 index_cache_write", "2 index_cache_write"}));
  EXPECT_EQ(reader.contract(), (ContractValues{{"activation_dtype", "bf16"},
                                               {"index_fp8_encoding", "e4m3fn"},
                                               {"index_k_floor", "1e-4"},
                                               {"index_page_layout", "block_flat"},
                                               {"page_size", "64"},
                                               {"qmax", "448"},
                                               {"scale_kind", "ue8m0"}}));
  EXPECT_EQ(reader.contract(1).at("page_size"), "16");
  EXPECT_EQ(reader.contract(2), reader.contract());
  const RecordedOperation packed = read(reader, {2, "index_cache_write"});
  EXPECT_EQ(packed.inputs.at("index_cache").attributes.at("page_offset"), "8448");
  EXPECT_EQ(packed.outputs.at("index_cache").attributes.at("page_offset"), "8448");
  EXPECT_EQ(packed.outputs.at("index_cache").tensor.shape, (Shape{8, 16960}));
  EXPECT_EQ(read(reader, {0, "index_cache_gather"}).inputs.at("row_request").tensor.shape,
            (Shape{340}));
}

TEST_F(ImportKnownFiles, LayoutsOfTheOtherWriters) {
  DSAKIT_NEED_RECORDING("kernel_index_insert_shuffle");
  EXPECT_EQ(imported("kernel_index_insert_shuffle").contract().at("index_page_layout"),
            "mfma_preshuffle");
  DSAKIT_NEED_RECORDING("kernel_mxfp4_insert_flat");
  const RecordingReader reader = imported("kernel_mxfp4_insert_flat");
  EXPECT_EQ(reader.contract(0).at("index_page_layout"), "block_flat");
  EXPECT_EQ(reader.contract(1).at("index_page_layout"), "mfma_preshuffle");
  EXPECT_EQ(reader.contract(2).at("index_page_layout"), "flat");
  EXPECT_EQ(reader.contract(1).at("index_k_floor"), "1e-4");
  EXPECT_EQ(reader.contract(2).at("hadamard"), "none");
}

/// Producer by producer, in both ways that the files write `accumulation`.
TEST_F(ImportKnownFiles, LogitsKeepTheirProducers) {
  DSAKIT_NEED_RECORDING("kernel_logits_paged_rocm_h32_n2");
  {
    const RecordingReader reader = imported("kernel_logits_paged_rocm_h32_n2");
    const RecordedOperation decode = read(reader, {0, "index_logits_decode"});
    ASSERT_EQ(decode.outputs.size(), 2u);
    const Attributes& aiter = decode.outputs.at("logits.aiter").attributes;
    EXPECT_EQ(aiter.at("output"), "logits");
    EXPECT_EQ(aiter.at("accumulation"), "fp32");
    EXPECT_EQ(aiter.at("producer").find("aiter Triton _deepgemm_fp8_paged_mqa_logits"), 0u);
    EXPECT_EQ(decode.outputs.at("logits.vllm").attributes.at("accumulation"), "sm90_wgmma_fp8");
    EXPECT_EQ(decode.inputs.at("index_q_fp8").tensor.shape, (Shape{10, 32, 128}));
    EXPECT_EQ(decode.inputs.at("row_lens").tensor.shape, (Shape{10}));
    for (std::int64_t r = 0; r < 10; ++r)
      EXPECT_EQ(decode.inputs.at("row_request").tensor.as<std::int32_t>()[r], r / 2);
    EXPECT_EQ(decode.inputs.count("context_lens"), 1u);
  }
  DSAKIT_NEED_RECORDING("kernel_logits_paged_h64_n2");
  {
    const RecordingReader reader = imported("kernel_logits_paged_h64_n2");
    const RecordedOperation decode = read(reader, {0, "index_logits_decode"});
    ASSERT_EQ(decode.outputs.size(), 1u);
    EXPECT_EQ(decode.outputs.at("logits").attributes,
              (Attributes{{"accumulation", "sm90_wgmma_fp8"},
                          {"producer", "DeepGEMM fp8_paged_mqa_logits"}}));
  }
  DSAKIT_NEED_RECORDING("kernel_logits_prefill_h32");
  {
    const RecordingReader reader = imported("kernel_logits_prefill_h32");
    const RecordedOperation prefill = read(reader, {0, "index_logits_prefill"});
    EXPECT_EQ(prefill.outputs.at("logits.deepgemm").attributes.at("accumulation"),
              "sm90_wgmma_fp8");
    EXPECT_EQ(prefill.outputs.at("logits.triton").attributes.at("accumulation"), "fp32");
    EXPECT_EQ(prefill.inputs.count("ks") + prefill.inputs.count("ke"), 2u);
  }
}

/// The recorded logits say how long each row is: -inf beyond it and nowhere before.
TEST_F(ImportKnownFiles, DerivedRowLengthsAreThoseOfTheLogits) {
  for (const char* name : {"decode_next_n2", "decode_fnuz"}) {
    DSAKIT_NEED_RECORDING(name);
    const RecordingReader reader = imported(name);
    const RecordedOperation decode = read(reader, {0, "index_logits_decode"});
    EXPECT_EQ(decode.outputs.at("logits").attributes.at("accumulation"), "exact");
    const Tensor& logits = decode.outputs.at("logits").tensor;
    const Tensor& row_lens = decode.inputs.at("row_lens").tensor;
    ASSERT_GT(row_lens.elements(), 0);
    for (std::int64_t r = 0; r < row_lens.elements(); ++r)
      for (std::int64_t p = 0; p < logits.shape[1]; ++p)
        EXPECT_EQ(std::isinf(logits.as<float>()[r * logits.shape[1] + p]),
                  p >= row_lens.as<std::int32_t>()[r])
            << name << " [" << r << ", " << p << "]";
  }
}

TEST_F(ImportKnownFiles, PrefillWindowsAreAsWideAsTheLogits) {
  DSAKIT_NEED_RECORDING("prefill_q_lora_layernorm_gate");
  const RecordingReader reader = imported("prefill_q_lora_layernorm_gate");
  const RecordedOperation prefill = read(reader, {0, "index_logits_prefill"});
  const Tensor& logits = prefill.outputs.at("logits").tensor;
  const auto* ks = prefill.inputs.at("ks").tensor.as<std::int32_t>();
  const auto* ke = prefill.inputs.at("ke").tensor.as<std::int32_t>();
  const auto* request = prefill.inputs.at("row_request").tensor.as<std::int32_t>();
  const RecordedOperation layer = read(reader, {0, "layer"});
  const auto* seq_lens = layer.inputs.at("seq_lens").tensor.as<std::int32_t>();
  for (std::int64_t r = 0; r < logits.shape[0]; ++r) {
    EXPECT_EQ(ks[r], request[r] == 0 ? 0 : seq_lens[0]) << r;
    for (std::int64_t p = 0; p < logits.shape[1]; ++p)
      EXPECT_EQ(std::isinf(logits.as<float>()[r * logits.shape[1] + p]), p >= ke[r] - ks[r]) << r;
  }
}

TEST_F(ImportKnownFiles, LayerKeepsItsEncodingLinksAndWeights) {
  DSAKIT_NEED_RECORDING("decode_fnuz");
  const RecordingReader reader = imported("decode_fnuz");
  EXPECT_EQ(reader.contract().at("index_fp8_encoding"), "e4m3fnuz");
  EXPECT_EQ(reader.contract().at("qmax"), "224");
  EXPECT_EQ(reader.config().at("softmax_scale"), "0.07216878364870322");
  EXPECT_EQ(reader.config().at("index_topk"), "64");
  EXPECT_EQ(reader.weights().size(), 12u);
  for (const TensorInfo& info : reader.tensors({0, "index_logits_decode"}, Side::inputs)) {
    const bool is_cache = info.name() == "index_cache";
    EXPECT_EQ(info.stored_as == "/steps/0/index_cache_write/outputs/index_cache", is_cache);
    EXPECT_EQ(info.dtype == Dtype::float8_e4m3fnuz, info.name() == "index_q_fp8");
  }
}

TEST_F(ImportKnownFiles, Mxfp4QueriesHaveHeadsAndGroups) {
  DSAKIT_NEED_RECORDING("kernel_mxfp4_quant");
  const RecordingReader reader = imported("kernel_mxfp4_quant");
  EXPECT_EQ(reader.contract(),
            (ContractValues{{"activation_dtype", "bf16"}, {"hadamard", "none"}}));
  const RecordedOperation quant = read(reader, {0, "index_query_quant"});
  EXPECT_EQ(quant.inputs.at("index_q").tensor.shape, (Shape{143, 1, 128}));
  const RecordedTensor& packed = quant.outputs.at("index_q_packed");
  EXPECT_EQ(packed.tensor.dtype, Dtype::float4_e2m1fn_x2);
  EXPECT_EQ(packed.tensor.shape, (Shape{143, 1, 64}));
  const RecordedTensor& scale = quant.outputs.at("index_q_scale");
  EXPECT_EQ(scale.tensor.dtype, Dtype::float8_e8m0fnu);
  EXPECT_EQ(scale.tensor.shape, (Shape{143, 1, 4}));
  EXPECT_EQ(scale.axes, (std::vector<std::string>{"rows", "heads", "groups"}));
}

TEST_F(ImportKnownFiles, Mxfp4LayerScoresPackedQueriesWithTheRawWeights) {
  DSAKIT_NEED_RECORDING("decode_mxfp4");
  const RecordingReader reader = imported("decode_mxfp4");
  EXPECT_EQ(reader.contract().at("index_page_layout"), "flat");
  EXPECT_EQ(reader.contract().at("hadamard"), "none");
  for (const char* of_fp8 :
       {"index_fp8_encoding", "index_k_floor", "index_q_floor", "scale_kind", "weight_fold"})
    EXPECT_EQ(reader.contract().count(of_fp8), 0u) << of_fp8;
  std::set<std::string> inputs;
  for (const TensorInfo& info : reader.tensors({0, "index_logits_decode"}, Side::inputs)) {
    inputs.insert(info.name());
    EXPECT_EQ(info.dtype == Dtype::float4_e2m1fn_x2, info.name() == "index_q_packed");
    EXPECT_EQ(info.dtype == Dtype::float8_e8m0fnu, info.name() == "index_q_scale");
  }
  EXPECT_EQ(inputs,
            (std::set<std::string>{"block_table", "index_cache", "index_q_packed", "index_q_scale",
                                   "index_weights", "row_lens", "row_request"}));
}

TEST_F(ImportKnownFiles, QueriesHaveHeadsAndWhatIsOnlyRecordedLiesApart) {
  DSAKIT_NEED_RECORDING("kernel_quant_q");
  const RecordingReader reader = imported("kernel_quant_q");
  EXPECT_EQ(operations(reader), (std::set<std::string>{"0 fp8_cast", "0 index_query_quant"}));
  const RecordedOperation quant = read(reader, {0, "index_query_quant"});
  EXPECT_EQ(quant.inputs.at("index_q").tensor.shape, (Shape{443, 1, 128}));
  for (const char* name : {"index_q_fp8", "index_q_fp8.division"})
    EXPECT_EQ(quant.outputs.at(name).tensor.shape, (Shape{443, 1, 128})) << name;
  EXPECT_EQ(quant.outputs.at("index_q_scale.division").tensor.shape, (Shape{443, 1}));
  EXPECT_EQ(reader.tensors({0, "fp8_cast"}, Side::outputs).size(), 4u);
}

TEST_F(ImportKnownFiles, SlotsHaveAStepForEachPageGeometry) {
  DSAKIT_NEED_RECORDING("kernel_index_convert");
  const RecordingReader reader = imported("kernel_index_convert");
  const std::pair<const char*, const char*> geometry[] = {{"64", "64"}, {"64", "80"}, {"16", "64"}};
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto& [page_size, block_stride] = geometry[step];
    EXPECT_EQ(reader.contract(step).at("page_size"), page_size);
    EXPECT_EQ(read(reader, {step, "topk_slots"}).outputs.at("slots").attributes.at("block_stride"),
              block_stride);
  }
  EXPECT_EQ(reader.tensors({0, "layer"}, Side::outputs).size(), 2u); // the ragged list
}

TEST_F(ImportKnownFiles, EveryRankHasAStepOfItsSlots) {
  DSAKIT_NEED_RECORDING("kernel_index_convert");
  const RecordingReader reader = imported("kernel_index_convert");
  std::set<std::string> ranks;
  for (std::int64_t step = 3; step < 13; ++step) {
    const ContractValues contract = reader.contract(step);
    const RecordedOperation slots = read(reader, {step, "topk_slots"});
    EXPECT_EQ(slots.outputs.size(), 3u);
    ranks.insert(contract.at("dcp_world") + "/" + contract.at("dcp_interleave") + "/" +
                 slots.outputs.at("slots").attributes.at("dcp_rank"));
  }
  EXPECT_EQ(ranks, (std::set<std::string>{"2/1/0", "2/1/1", "2/16/0", "2/16/1", "4/1/0", "4/1/3",
                                          "4/64/0", "4/64/3", "8/4/0", "8/4/7"}));
  EXPECT_EQ(reader.contract(0).count("dcp_world"), 0u);
}

TEST_F(ImportKnownFiles, CorrectedAttentionHasAStepForEachDtypeAndBase) {
  DSAKIT_NEED_RECORDING("kernel_cp_merge");
  const RecordingReader reader = imported("kernel_cp_merge");
  const std::pair<Dtype, const char*> steps[] = {
      {Dtype::bfloat16, "e"}, {Dtype::float32, "e"}, {Dtype::float32, "2"}};
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto& [dtype, base] = steps[step];
    const RecordedOperation merge = read(reader, {step, "dcp_attention_merge"});
    EXPECT_EQ(reader.contract(step).at("lse_base"), base);
    EXPECT_EQ(merge.outputs.at("corrected").tensor.dtype, dtype);
    EXPECT_EQ(merge.outputs.at("lse").attributes.at("accumulation"), "fp32");
    EXPECT_EQ(merge.inputs.at("rank_lse").tensor.shape, (Shape{4, 5, 4}));
  }
}

TEST_F(ImportKnownFiles, NormsHaveAStepForEachRounding) {
  DSAKIT_NEED_RECORDING("kernel_norms");
  const RecordingReader reader = imported("kernel_norms");
  EXPECT_EQ(reader.contract(0).at("index_k_norm"), "layernorm");
  EXPECT_EQ(reader.contract(1).at("index_k_norm"), "rmsnorm");
  EXPECT_EQ(reader.contract(1).at("rmsnorm_rounding"), "two");
  EXPECT_EQ(reader.contract(2).at("rmsnorm_rounding"), "one");
  std::vector<std::set<std::string>> outputs;
  for (std::int64_t step = 0; step < 3; ++step) {
    outputs.emplace_back();
    for (const auto& [name, tensor] : read(reader, {step, "index_key_norm"}).outputs)
      outputs.back().insert(name);
  }
  EXPECT_EQ(outputs[0], (std::set<std::string>{"index_k.cpu", "index_k.cuda"}));
  EXPECT_EQ(outputs[1], outputs[0]);
  EXPECT_EQ(outputs[2], (std::set<std::string>{"index_k.aiter"}));
}

TEST_F(ImportKnownFiles, SelectionsAndAttentionSayWhatTheirProducerDid) {
  DSAKIT_NEED_RECORDING("kernel_topk");
  {
    const RecordingReader reader = imported("kernel_topk");
    const Attributes attributes =
        read(reader, {0, "topk"}).outputs.at("topk_indices.vllm").attributes;
    EXPECT_EQ(attributes.at("output"), "topk_indices");
    EXPECT_EQ(attributes.at("producer"), "vLLM top_k_per_row_prefill (order and ties unspecified)");
    EXPECT_EQ(reader.contract().at("tie_rule"), "unspecified");
  }
  DSAKIT_NEED_RECORDING("kernel_mla_decode_h64");
  const RecordingReader reader = imported("kernel_mla_decode_h64");
  EXPECT_EQ(reader.contract().count("mla_scale_read"), 0u);
  for (const auto& [name, tensor] : read(reader, {0, "sparse_attention"}).outputs)
    EXPECT_EQ(tensor.attributes, (Attributes{{"accumulation", "fp32"}, {"mla_scale_read", "bf16"}}))
        << name;
}

TEST_F(ImportKnownFiles, FactsOfTheFileAreNotOverruled) {
  DSAKIT_NEED_RECORDING("kernel_cache_write");
  const auto with = [&](const ContractValues& contract) {
    ImportOptions options;
    options.input = recording_path("kernel_cache_write");
    options.output = folder_ / "x.h5";
    options.contract = contract;
    return import_safetensors(options).status();
  };
  EXPECT_TRUE(with({{"index_fp8_encoding", "e4m3fn"}}));
  for (const ContractValues& contract :
       {ContractValues{{"index_fp8_encoding", "e4m3fnuz"}}, ContractValues{{"page_size", "16"}},
        ContractValues{{"scale_kind", "fp32"}}, ContractValues{{"index_k_floor", "1e-10"}}}) {
    const Status status = with(contract);
    EXPECT_EQ(status.code(), Code::bad_input) << contract.begin()->first;
    EXPECT_NE(status.what().find("contract key " + contract.begin()->first + ": found "),
              std::string::npos)
        << status.what();
  }
}

} // namespace
} // namespace dsakit::testing
