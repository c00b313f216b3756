// What is refused of the operations that tiny_layer() holds: forms on opening, ids on reading.
#include "dsakit/harness/recording.hpp"

#include <functional>
#include <limits>
#include <sstream>

#include <gtest/gtest.h>

#include "support/temp_folder.hpp"
#include "support/tiny_layer.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

constexpr std::int32_t kSmallest = std::numeric_limits<std::int32_t>::min();

class RecordingLayer : public ::testing::Test {
protected:
  TempFolder folder_;
  const std::string path_ = folder_ / "x.h5";

  /// What opening and then reading `operation` says, without the path; "" if it reads.
  std::string read(const std::string& operation,
                   const std::function<void(TinyRecording&)>& change) {
    TinyRecording recording = tiny_layer();
    change(recording);
    recording.write(path_);
    auto reader = RecordingReader::open(path_);
    Status status = reader.status();
    if (reader) status = reader->read({0, operation}, reader->contract()).status();
    if (status) return "";
    code_ = status.code();
    EXPECT_EQ(status.what().find(path_ + ": "), 0u) << status.what();
    EXPECT_EQ(status.what().find('\n'), std::string::npos);
    return status.what().substr(path_.size() + 2);
  }

  /// The same with one element of an int32 input changed.
  std::string id(const std::string& operation, const std::string& input, std::int64_t element,
                 std::int32_t value) {
    const std::string what = read(operation, [&](TinyRecording& r) {
      r.input(operation, input).as<std::int32_t>()[element] = value;
    });
    const std::string where = "/steps/0/" + operation + "/inputs/";
    return what.starts_with(where) ? what.substr(where.size()) : what;
  }

  Code code_ = Code::ok;
};

TEST_F(RecordingLayer, GoodOperationsRead) {
  for (const auto& [operation, tensors] : tiny_layer().operations)
    EXPECT_EQ(read(operation, [](TinyRecording&) {}), "");
}

TEST_F(RecordingLayer, EveryRequiredTensorAndKey) {
  for (const auto& [name, tensors] : tiny_layer().operations) {
    const Operation& operation = *find_operation(name);
    for (const auto& [input, tensor] : tensors.inputs) {
      const bool optional = (" " + std::string(operation.optional) + " ").find(" " + input + " ") !=
                            std::string::npos;
      if (optional) continue;
      EXPECT_EQ(read(name, [&](TinyRecording& r) { r.operations.at(name).inputs.erase(input); }),
                "/steps/0/" + name + "/inputs/" + input + ": is missing");
    }
    for (const auto& [output, tensor] : tensors.outputs) {
      EXPECT_EQ(read(name, [&](TinyRecording& r) { r.operations.at(name).outputs.erase(output); }),
                "/steps/0/" + name + "/outputs/" + output + ": is missing");
      for (const auto& [key, value] : tensor.attributes)
        EXPECT_EQ(read(name,
                       [&](TinyRecording& r) {
                         r.operations.at(name).outputs.at(output).attributes.erase(key);
                       })
                      .find("/steps/0/" + name + "/outputs/" + output + ": found no attribute " +
                            key + ", want "),
                  0u);
    }
    std::istringstream keys{std::string(operation.contract)};
    for (std::string key; keys >> key;)
      EXPECT_EQ(read(name,
                     [&](TinyRecording& r) {
                       std::erase_if(r.operations,
                                     [&](const auto& item) { return item.first != name; });
                       r.contract.erase(key);
                     }),
                "/contract (step 0): found no key " + key + ", want it for " + name);
    std::istringstream numbers{std::string(operation.config)};
    for (std::string key; numbers >> key;) {
      EXPECT_EQ(read(name, [&](TinyRecording& r) { r.config.erase(key); }),
                "/config: found no key " + key + ", want it for " + name);
      for (const char* value : {"", "-1", "0x1p-3", "1 ", "inf", "nan"})
        EXPECT_EQ(read(name, [&](TinyRecording& r) { r.config[key] = value; }),
                  "/config: " + key + ": found '" + value + "', want a number > 0");
    }
  }
}

TEST_F(RecordingLayer, FormsThatDoNotFit) {
  EXPECT_EQ(
      read("index_key_norm",
           [](TinyRecording& r) { r.operations.at("index_key_norm").inputs.erase("norm_bias"); }),
      "/steps/0/index_key_norm/inputs/norm_bias: is missing, want it for layernorm");
  EXPECT_EQ(read("index_key_norm",
                 [](TinyRecording& r) {
                   r.input("index_key_norm", "norm_weight") = Tensor(Dtype::float16, {128});
                 }),
            "/steps/0/index_key_norm/inputs/norm_weight: found dtype float16, want float32 or "
            "bfloat16");
  EXPECT_EQ(read("mla_cache_write",
                 [](TinyRecording& r) {
                   r.input("mla_cache_write", "mla_cache") = Tensor(Dtype::uint8, {2, 4, 656});
                 }),
            "/steps/0/mla_cache_write/inputs/mla_cache: found shape [2, 4, 656], want [pages, 2 "
            "(page_size of the contract), 656]");
  EXPECT_EQ(read("mla_cache_write",
                 [](TinyRecording& r) {
                   r.input("mla_cache_write", "k_pe") = Tensor(Dtype::bfloat16, {3, 64});
                 }),
            "/steps/0/mla_cache_write/inputs/k_pe: found shape [3, 64], want [4 (keys of kv_c), "
            "64]");
  const auto stride = [&](const char* text) {
    return read("topk_slots", [&](TinyRecording& r) {
      r.operations.at("topk_slots").outputs.at("slots").attributes["block_stride"] = text;
    });
  };
  EXPECT_EQ(stride("2"), "");
  for (const char* text : {"1", "x", "2.0", "4294967296", "99999999999999999999"})
    EXPECT_EQ(stride(text), "/steps/0/topk_slots/outputs/slots: found block_stride '" +
                                std::string(text) + "', want slots >= page_size 2");
  EXPECT_EQ(read("topk_slots",
                 [](TinyRecording& r) {
                   auto& outputs = r.operations.at("topk_slots").outputs;
                   outputs["slots.wide"] = outputs.at("slots");
                   outputs["slots.wide"].attributes = {{"output", "slots"}, {"block_stride", "4"}};
                 }),
            "/steps/0/topk_slots/outputs/slots.wide: found block_stride 4, want 2 as in the other "
            "slots of the step");
}

TEST_F(RecordingLayer, WhatIsOnlyRecordedOpensWithoutItsContract) {
  EXPECT_EQ(read("mla_cache_write",
                 [](TinyRecording& r) {
                   r.contract["mla_record"] = "bf16_576";
                   r.contract.erase("mla_fp8_encoding");
                   r.operations.erase("sparse_attention");
                 }),
            "/steps/0/mla_cache_write: mla_record bf16_576 is recorded, but not replayed by this "
            "version");
  EXPECT_EQ(code_, Code::unsupported);
}

TEST_F(RecordingLayer, DenseRowsAreNoRecords) {
  const std::string hint =
      " bytes, want the 656 of mla_record fp8_ds_mla; hint: dense rows of 576 elements; "
      "sparse_attention reads those of bf16 under mla_record bf16_576";
  for (const auto& [dtype, bytes] : {std::pair(Dtype::bfloat16, "1152"), {Dtype::uint8, "576"}})
    EXPECT_EQ(
        read("sparse_attention",
             [&](TinyRecording& r) {
               r.input("sparse_attention", "mla_cache") = Tensor(dtype, {tiny::kPages, 2, 576});
             }),
        std::string("/steps/0/sparse_attention/inputs/mla_cache: found rows of ") + bytes + hint);
}

TEST_F(RecordingLayer, SlotsOfTheCaches) {
  const auto slot = [&](std::int64_t value) {
    return read("mla_cache_write", [&](TinyRecording& r) {
      r.input("mla_cache_write", "slot_mapping").as<std::int64_t>()[1] = value;
    });
  };
  const std::string where = "/steps/0/mla_cache_write/inputs/slot_mapping: [1]: found slot ";
  EXPECT_EQ(slot(7), "");
  EXPECT_EQ(slot(8), where + "8, want -1 to 7");
  EXPECT_EQ(slot(-2), where + "-2, want -1 to 7");
  EXPECT_EQ(slot(5), where + "5 again, want each slot at most once");
  EXPECT_EQ(read("mla_cache_write",
                 [](TinyRecording& r) {
                   r.input("mla_cache_write", "kv_c") = Tensor(Dtype::bfloat16, {2, 512});
                   r.input("mla_cache_write", "k_pe") = Tensor(Dtype::bfloat16, {2, 64});
                 }),
            "/steps/0/mla_cache_write/inputs/kv_c: axis 0: found 2 rows, want at least the 3 of "
            "slot_mapping");
  EXPECT_EQ(id("sparse_attention", "slots", 4, 7), "");
  EXPECT_EQ(id("sparse_attention", "slots", 4, 8), "slots: [1, 1]: found slot 8, want -1 to 7");
  EXPECT_EQ(id("sparse_attention", "slots", 4, -2), "slots: [1, 1]: found slot -2, want -1 to 7");
}

/// Windows [0, 1), [0, 2), [2, 5) of 5 keys in 4 columns that count from 0, 0, 2.
TEST_F(RecordingLayer, WindowsOfAPrefill) {
  const auto window = [&](const char* name, std::int64_t row, std::int32_t value) {
    return id("index_logits_prefill", name, row, value);
  };
  EXPECT_EQ(window("ke", 0, 4), "");
  EXPECT_EQ(window("ke", 2, 6), "ke: [2]: found 6, want 0 to 5");
  EXPECT_EQ(window("ke", 0, 5), "ke: [0]: found 5 columns, want at most the 4 of logits");
  EXPECT_EQ(window("ks", 1, -1), "ks: [1]: found -1, want 0 to 4");
  EXPECT_EQ(window("column_origin", 1, 1), "column_origin: [1]: found 1, want at most the first "
                                           "key, 0");
  EXPECT_EQ(window("column_origin", 2, kSmallest),
            "ke: [2]: found 2147483653 columns, want at most the 4 of logits");
  EXPECT_EQ(window("ke", 2, kSmallest), "") << "an empty window may be anything";
}

TEST_F(RecordingLayer, RowsOfATopk) {
  EXPECT_EQ(id("topk", "row_lens", 0, 6), "");
  EXPECT_EQ(id("topk", "row_lens", 0, -1), "");
  EXPECT_EQ(id("topk", "row_lens", 0, 7),
            "row_lens: [0]: found 7, want at most the 6 columns of logits");
}

TEST_F(RecordingLayer, SelectionsOfAnOpenOrderCarryTheirProducer) {
  for (const char* key : {"tie_rule", "topk_order"}) {
    EXPECT_EQ(read("topk", [&](TinyRecording& r) { r.contract[key] = "unspecified"; }),
              "/steps/0/topk/outputs/topk_indices: found no producer in its name under an "
              "unspecified tie_rule or topk_order, want topk_indices.<producer> with output = "
              "topk_indices");
    EXPECT_EQ(read("topk",
                   [&](TinyRecording& r) {
                     r.contract[key] = "unspecified";
                     auto& outputs = r.operations.at("topk").outputs;
                     outputs["topk_indices.x"] = outputs.extract("topk_indices").mapped();
                     outputs.at("topk_indices.x").attributes["output"] = "topk_indices";
                   }),
              "");
  }
}

/// Rows of 2, 6 and 4 positions, tables of 3 pages of 2 tokens.
TEST_F(RecordingLayer, PositionsBecomeSlotsWhereTheirRowsAreKnown) {
  const auto position = [&](std::int32_t value) {
    return id("topk_slots", "topk_indices", 6, value);
  };
  EXPECT_EQ(position(3), "");
  EXPECT_EQ(position(-1), "");
  EXPECT_EQ(position(4), "topk_indices: [2, 0]: found position 4, want -1 to 3");
  EXPECT_EQ(position(-2), "topk_indices: [2, 0]: found position -2, want -1 to 3");
  EXPECT_EQ(id("topk_slots", "row_request", 0, 2), "row_request: [0]: found 2, want 0 to 1");
  EXPECT_EQ(id("topk_slots", "row_lens", 1, 7),
            "row_lens: [1]: found 7, want at most the 6 tokens of a row of block_table");
  EXPECT_EQ(id("topk_slots", "block_table", 4, -1), "");
  EXPECT_EQ(id("topk_slots", "block_table", 4, -2),
            "block_table: [1, 1]: found page -2, want -1 or a page");
  EXPECT_EQ(id("topk_slots", "block_table", 5, -2), "") << "no position reaches it";
  EXPECT_EQ(read("topk_slots",
                 [](TinyRecording& r) {
                   r.contract["dcp_world"] = "2";
                   r.contract["dcp_interleave"] = "1";
                   r.operations.at("topk_slots").outputs.at("slots").attributes["dcp_rank"] = "1";
                   r.input("topk_slots", "block_table").as<std::int32_t>()[4] = -2;
                 }),
            "")
      << "rank 1 holds positions 1 and 3 in its first page";
  for (const std::int32_t value : {kSmallest, -2, 4, std::numeric_limits<std::int32_t>::max()})
    EXPECT_EQ(read("topk_slots",
                   [&](TinyRecording& r) {
                     r.operations.at("topk_slots").inputs.erase("row_lens");
                     r.input("topk_slots", "topk_indices").as<std::int32_t>()[6] = value;
                   }),
              "");
}

} // namespace
} // namespace dsakit::testing
