#include "dsakit/harness/record.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cmath>
#include <numeric>
#include <set>

#include "../../../harness/src/record/draws.hpp"
#include "../../../harness/src/record/philox.hpp"
#include "dsakit/harness/model_config.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/replay.hpp"
#include "dsakit/reference/formats.hpp"
#include "support/safetensors_writer.hpp"
#include "support/temp_folder.hpp"

namespace dsakit::harness {
namespace {

using testing::read_file;
using testing::TempFolder;
using testing::write_file;

/// A layer that runs at once.
constexpr const char* kTiny = R"({
  "hidden_size": 96, "num_attention_heads": 3, "q_lora_rank": 64, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5,
  "mla_use_nope": true, "mla_use_output_gate": true, "max_position_embeddings": 4096,
  "dsa_config": {"index_num_heads": 16, "index_head_dim": 128, "index_topk": 24,
                 "index_k_norm_type": "layernorm"}})";

class Record : public ::testing::Test {
protected:
  Record() { write_file(config_, kTiny); }

  RecordOptions options(const std::string& output) const {
    RecordOptions options;
    options.config = config_;
    options.requests = "prefill:40,decode:2x70+2";
    options.seed = 7;
    options.output = folder_ / output;
    options.command = "dsakit record";
    return options;
  }

  /// The bytes of the recording.
  std::string recorded(const RecordOptions& options) const {
    auto notes = record(options);
    EXPECT_TRUE(notes) << notes.status().what();
    return read_file(options.output);
  }

  /// Records and replays; names of the operations that were compared.
  std::set<std::string> replayed_green(const RecordOptions& options, ReplayMode mode) const {
    recorded(options);
    auto reader = RecordingReader::open(options.output);
    EXPECT_TRUE(reader) << reader.status().what();
    EXPECT_TRUE(reader && reader->verify());
    ReplayOptions replayed;
    replayed.paths = {options.output};
    replayed.mode = mode;
    Rules rules = Rules::built_in();
    const auto report = replay(replayed, rules);
    EXPECT_TRUE(report) << report.status().what();
    std::set<std::string> operations;
    if (report)
      for (const ReportLine& line : report->lines) {
        if (line.operation == "layer" && options.decode_context_parallel_size > 1)
          continue; // only recorded
        EXPECT_EQ(line.verdict, Verdict::pass)
            << line.operation << " " << line.tensor << " " << line.subject << "/" << line.against;
        operations.insert(line.operation);
      }
    return operations;
  }

  std::string refusal(const RecordOptions& options, Code code = Code::bad_input) const {
    const Status status = record(options).status();
    EXPECT_EQ(status.code(), code) << status.what();
    for (const std::string& name : folder_.entries())
      EXPECT_EQ(name, "config.json") << "a refused run left something";
    return status.what();
  }

  TempFolder folder_;
  std::string config_ = folder_ / "config.json";
};

TEST(Philox, GivesThePublishedNumbers) { // the known answers of the authors' own library
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Draws, NormalNumbersHaveTheirMomentsAndAreIndependentOfEachOther) {
  const Draws draws(3, 5), other(3, 6);
  constexpr int kCount = 40000;
  double sum = 0, squares = 0, fourth = 0, lag = 0, across = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double x = draws.normal(i);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    lag += x * draws.normal(i + 1);
    across += x * other.normal(i);
  }
  const double error = 5 / std::sqrt(kCount); // five standard deviations of a mean
  EXPECT_NEAR(sum / kCount, 0, error);
  EXPECT_NEAR(squares / kCount, 1, error * std::sqrt(2));
  EXPECT_NEAR(fourth / kCount, 3, error * std::sqrt(96));
  EXPECT_NEAR(lag / kCount, 0, error);
  EXPECT_NEAR(across / kCount, 0, error);
}

TEST(Draws, DistributionsAreWhatTheirNamesSay) {
  const Draws draws(1, 2);
  const auto rows = [&](Distribution distribution) {
    const auto bits = draw_rows(draws, distribution, 0, 256, 128, ActivationDtype::bf16);
    std::vector<std::vector<float>> values(256);
    for (std::size_t i = 0; i < bits.size(); ++i)
      values[i / 128].push_back(reference::bf16_to_float(bits[i]));
    return values;
  };
  const auto ties = rows(Distribution::ties);
  EXPECT_EQ(std::set(ties.begin(), ties.end()).size(), 8u);
  const auto narrow = rows(Distribution::narrow);
  EXPECT_NE(narrow[0], narrow[1]);
  for (std::size_t c = 0; c < 128; ++c)
    EXPECT_LT(std::fabs(narrow[0][c] - narrow[1][c]), 0.1f);
  std::size_t zeros = 0;
  for (const auto& row : rows(Distribution::zeros))
    zeros += row == std::vector<float>(128, 0);
  EXPECT_GT(zeros, 200u);
  EXPECT_LT(zeros, 250u);
  float largest = 0, smallest = 1;
  for (const auto& row : rows(Distribution::extreme)) {
    largest = std::max(largest, std::fabs(row[0]));
    smallest = std::min(smallest, std::fabs(row[0]));
  }
  EXPECT_GT(largest, 0x1p15f);
  EXPECT_LT(smallest, 0x1p-30f);
  EXPECT_EQ(parse_distribution("outliers"), Distribution::outliers);
  EXPECT_FALSE(parse_distribution("uniform"));
}

TEST(Requests, AreReadAsWritten) {
  const auto groups = parse_requests("prefill:4096,decode:8x32768+2,decode:5,prefill:2x64+16");
  ASSERT_TRUE(groups) << groups.status().what();
  const auto expect = [&](std::size_t i, bool prefill, std::int64_t count, std::int64_t context,
                          std::int64_t added) {
    const RequestGroup& group = (*groups)[i];
    EXPECT_EQ(group.prefill, prefill) << i;
    EXPECT_EQ(group.count, count) << i;
    EXPECT_EQ(group.context, context) << i;
    EXPECT_EQ(group.added, added) << i;
  };
  ASSERT_EQ(groups->size(), 4u);
  expect(0, true, 1, 0, 4096);
  expect(1, false, 8, 32768, 2);
  expect(2, false, 1, 5, 1);
  expect(3, true, 2, 64, 16);
  for (const char* bad : {"", "prefill", "prefill:", "prefill:0", "decode:0x5", "decode:-1",
                          "decode:5+0", "decode:5,", "decode:5 ", "verify:3", "decode:2y3",
                          "decode:99999999999999999999", "decode:2x1073741824"}) {
    const auto refused = parse_requests(bad);
    EXPECT_FALSE(refused) << bad;
    EXPECT_EQ(refused.status().what().find("--requests: found '"), 0u) << bad;
  }
}

TEST_F(Record, SameSeedSameBytesWithAnyNumberOfThreads) {
  const std::string want = recorded(options("a.h5"));
  EXPECT_FALSE(want.empty());
  EXPECT_EQ(want, recorded(options("b.h5"))); // nor does the name matter
  for (std::size_t threads : {1, 2, 3}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    EXPECT_EQ(want, recorded(options("c.h5"))) << threads << " threads";
  }
  RecordOptions other = options("d.h5");
  other.seed = 8;
  EXPECT_NE(want, recorded(other));
}

TEST_F(Record, DeflatedItIsSmallerAndReplaysAlike) {
  RecordOptions deflated = options("small.h5");
  deflated.deflate = true;
  const std::string plain = recorded(options("plain.h5"));
  EXPECT_LT(recorded(deflated).size(), plain.size() * 3 / 4);
  EXPECT_EQ(replayed_green(deflated, ReplayMode::fed),
            replayed_green(options("plain.h5"), ReplayMode::fed));
}

/// Large enough for every operation to have work for each thread.
TEST_F(Record, SameBytesOfALargerLayerWithAnyNumberOfThreads) {
  std::string config = kTiny;
  for (const auto& [tiny, large] : {std::pair("\"hidden_size\": 96", "\"hidden_size\": 1024"),
                                    {"\"num_attention_heads\": 3", "\"num_attention_heads\": 12"},
                                    {"\"q_lora_rank\": 64", "\"q_lora_rank\": 384"}})
    config.replace(config.find(tiny), std::string(tiny).size(), large);
  write_file(config_, config);
  RecordOptions larger = options("a.h5");
  larger.requests = "prefill:200,decode:3x700+2";
  larger.decode_context_parallel_size = 2;
  const std::string want = recorded(larger);
  EXPECT_GT(want.size(), 4u << 20);
  for (std::size_t threads : {1, 2, 3}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    EXPECT_TRUE(want == recorded(larger)) << threads << " threads";
  }
}

/// Records and replays through the reference and the kernels on host lanes.
TEST_F(Record, ReplaysGreenInEveryDistributionAndFormat) {
  std::vector<RecordOptions> all;
  for (const char* distribution : {"normal", "outliers", "ties", "narrow", "zeros", "extreme"}) {
    all.push_back(options("x.h5"));
    all.back().requests = "prefill:2x30+10,decode:2x70+2";
    all.back().distribution = distribution;
  }
  all.push_back(options("x.h5"));
  all.back().indexer_kv_dtype = "mxfp4";
  all.push_back(options("x.h5"));
  all.back().tensor_parallel_size = 2;
  for (const RecordOptions& one : all) {
    SCOPED_TRACE(one.distribution + " " + one.indexer_kv_dtype);
    const std::set<std::string> operations = replayed_green(one, ReplayMode::fed);
    for (const char* operation :
         {"qkv_a_proj", "q_norm", "kv_norm", "q_b_proj", "index_key_norm", "index_cache_write",
          "index_logits_prefill", "index_logits_decode", "topk", "mla_cache_write", "topk_slots",
          "absorb_q", "sparse_attention", "absorb_v", "output_gate", "o_proj", "layer"})
      EXPECT_TRUE(operations.count(operation)) << operation;
  }
}

TEST_F(Record, RankZeroOfContextParallelismReplaysGreenFedAndChained) {
  for (const auto& [ranks, interleave] : {std::pair(2, 1), {3, 16}, {8, 64}})
    for (const char* indexer : {"fp8", "mxfp4"})
      for (const ReplayMode mode : {ReplayMode::fed, ReplayMode::chained}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, interleave " + std::to_string(interleave) +
                     ", " + indexer + (mode == ReplayMode::fed ? ", fed" : ", chained"));
        RecordOptions one = options("x.h5");
        one.indexer_kv_dtype = indexer;
        one.decode_context_parallel_size = ranks;
        one.cp_kv_cache_interleave_size = interleave;
        const auto operations = replayed_green(one, mode);
        for (const char* operation :
             {"index_cache_write", "index_logits_prefill", "index_logits_decode", "topk",
              "dcp_topk_merge", "mla_cache_write", "topk_slots", "sparse_attention",
              "dcp_attention_merge", "absorb_v", "o_proj"})
          EXPECT_TRUE(operations.count(operation)) << operation;
      }
}

/// What the first rank holds is a part of what one rank alone does, and the selection is the same.
TEST_F(Record, RanksShareTheTokensOfOne) {
  const auto read = [&](const RecordOptions& one, const char* operation, Side side,
                        const char* name) {
    recorded(one);
    auto reader = RecordingReader::open(one.output);
    EXPECT_TRUE(reader) << reader.status().what();
    auto tensors = reader->read({1, operation}, reader->contract(1));
    EXPECT_TRUE(tensors) << tensors.status().what();
    return (side == Side::inputs ? tensors->inputs : tensors->outputs).at(name).tensor;
  };
  RecordOptions alone = options("x.h5"), ranks = alone;
  ranks.decode_context_parallel_size = 2;
  ranks.cp_kv_cache_interleave_size = 4;
  const Tensor whole = read(alone, "index_logits_decode", Side::outputs, "logits");
  const Tensor own = read(ranks, "index_logits_decode", Side::outputs, "logits");
  EXPECT_EQ(whole.shape[1], 72);
  EXPECT_EQ(own.shape[1], 36);
  for (std::int64_t row = 0; row < own.shape[0]; ++row)
    for (std::int64_t key = 0; key < 35; ++key) // every row has so many
      EXPECT_EQ(own.as<float>()[row * 36 + key],
                whole.as<float>()[row * 72 + key / 4 * 8 + key % 4]);
  const Tensor one = read(alone, "topk_slots", Side::inputs, "topk_indices");
  const Tensor merged = read(ranks, "topk_slots", Side::inputs, "topk_indices");
  EXPECT_EQ(one.bytes, merged.bytes); // more keys than k: by rank in both
}

TEST_F(Record, RefusalsLeaveNothing) {
  RecordOptions bad = options("x.h5");
  bad.requests = "prefill:5000";
  EXPECT_EQ(refusal(bad),
            "--requests: found a request of 5000 tokens, want at most the model's 4096");
  bad = options("x.h5");
  bad.distribution = "uniform";
  EXPECT_EQ(refusal(bad), "--distribution: found 'uniform', want normal | outliers | ties | narrow "
                          "| zeros | extreme");
  bad = options("x.h5");
  bad.tensor_parallel_size = 0;
  EXPECT_EQ(refusal(bad), "tensor_parallel_size: found 0, want at least 1");
  bad = options("x.h5");
  bad.decode_context_parallel_size = 0;
  EXPECT_EQ(refusal(bad), "decode_context_parallel_size: found 0, want at least 1");
  bad.decode_context_parallel_size = 2;
  bad.cp_kv_cache_interleave_size = 0;
  EXPECT_EQ(refusal(bad), "cp_kv_cache_interleave_size: found 0, want at least 1");
  bad = options("x.h5");
  bad.config = "deepseek-v3.2";
  EXPECT_NE(refusal(bad, Code::unsupported).find("no rotary embedding"), std::string::npos);
  bad = options("x.h5");
  bad.weights = folder_ / "none";
  EXPECT_NE(refusal(bad).find("found no .safetensors file"), std::string::npos);
  bad = options("config.json");
  EXPECT_FALSE(record(bad));
  EXPECT_EQ(read_file(config_), kTiny);
}

TEST_F(Record, HeadsThatTheRanksDoNotDivideGiveANote) {
  RecordOptions padded = options("x.h5");
  padded.tensor_parallel_size = 2;
  const auto notes = record(padded);
  ASSERT_TRUE(notes);
  ASSERT_EQ(notes->size(), 1u);
  EXPECT_NE((*notes)[0].find("padded to 4"), std::string::npos);
}

TEST_F(Record, WeightsComeFromACheckpointsShards) {
  auto config = read_model_config(config_);
  ASSERT_TRUE(config);
  testing::SafetensorsFile shards[2];
  std::map<std::string, std::vector<std::uint16_t>> rows;
  std::uint16_t next = 0x3C00; // small bf16 of both signs
  int at = 0;
  for (const auto& [weight, shape] : reference::weight_shapes(*config)) {
    const auto names = checkpoint_names(weight);
    for (std::size_t part = 0; part < names.size(); ++part) {
      Shape of_part = shape;
      if (names.size() == 2) of_part[0] = part == 0 ? 64 : shape[0] - 64; // q_lora_rank rows first
      std::vector<std::uint16_t> bits(static_cast<std::size_t>(element_count(of_part)));
      for (std::uint16_t& b : bits)
        b = static_cast<std::uint16_t>(next++ & 0xBCFF) | 0x3C00;
      rows[weight].insert(rows[weight].end(), bits.begin(), bits.end());
      shards[at++ % 2].add("model.layers.3." + names[part], "BF16", of_part, bits);
    }
  }
  shards[0].add<std::uint16_t>("model.layers.13.self_attn.o_proj.weight", "BF16", {1}, {0});
  std::filesystem::create_directory(folder_ / "model");
  shards[0].write(folder_ / "model/a.safetensors");
  shards[1].write(folder_ / "model/b.safetensors");
  RecordOptions from_files = options("x.h5");
  from_files.weights = folder_ / "model";
  from_files.layer = 3;
  recorded(from_files);
  auto reader = RecordingReader::open(from_files.output);
  ASSERT_TRUE(reader) << reader.status().what();
  EXPECT_EQ(reader->weights().size(), rows.size());
  for (const TensorInfo& info : reader->weights()) {
    auto weight = reader->read(info);
    ASSERT_TRUE(weight);
    const auto& want = rows.at(info.name());
    ASSERT_EQ(weight->tensor.elements(), std::ssize(want)) << info.name();
    for (std::size_t i = 0; i < want.size(); ++i)
      if (info.dtype == Dtype::bfloat16)
        ASSERT_EQ(weight->tensor.as<std::uint16_t>()[i], want[i]) << info.name();
      else
        ASSERT_EQ(weight->tensor.as<float>()[i], reference::bf16_to_float(want[i])) << info.name();
  }
  from_files.layer = 4;
  EXPECT_NE(record(from_files)
                .status()
                .what()
                .find("layer 4: layers.4.self_attn.q_a_proj.weight is missing"),
            std::string::npos);
}

/// A checkpoint of random bf16 weights whose projections but wk and weights_proj are e4m3, with a
/// scale a row or a block of 128 x 128.
class RecordFp8 : public Record {
protected:
  RecordOptions checkpoint(bool block, const Shape& first_scale = {}) {
    testing::SafetensorsFile shard;
    const auto config = read_model_config(config_);
    EXPECT_TRUE(config);
    std::uint32_t next = 1;
    const auto random = [&] { return (next = next * 1664525 + 1013904223) >> 16; };
    for (const auto& [weight, shape] : reference::weight_shapes(*config)) {
      const auto names = checkpoint_names(weight);
      for (std::size_t part = 0; part < names.size(); ++part) {
        Shape of_part = shape;
        if (names.size() == 2) of_part[0] = part == 0 ? 64 : shape[0] - 64;
        const std::string name = "layers.0." + names[part];
        const auto elements = static_cast<std::size_t>(element_count(of_part));
        if (shape.size() == 1 || weight == "wk_index" || weight == "wv_index") {
          std::vector<std::uint16_t> bits(elements);
          for (std::uint16_t& b : bits)
            b = static_cast<std::uint16_t>(0x3D00 | (random() & 0x80FF));
          shard.add(name, "BF16", of_part, bits);
          continue;
        }
        std::vector<std::uint8_t> codes(elements);
        for (std::uint8_t& code : codes)
          code = static_cast<std::uint8_t>(random() & 0xBF); // magnitudes below 2
        shard.add(name, "F8_E4M3", of_part, codes);
        const Shape rows = {of_part[0], 1},
                    blocks = {(of_part[0] + 127) / 128, (of_part[1] + 127) / 128};
        Shape scales = block ? blocks : rows;
        if (!first_scale.empty()) scales = first_scale;
        std::vector<float> values(static_cast<std::size_t>(element_count(scales)));
        for (float& value : values)
          value = 0.05F + 0.001F * static_cast<float>(random() % 64);
        shard.add(name + (block ? "_scale_inv" : "_scale"), "F32", scales, values);
      }
    }
    std::filesystem::create_directories(folder_ / "fp8");
    shard.write(folder_ / "fp8/model.safetensors");
    RecordOptions from_files = options("fp8.h5");
    from_files.weights = folder_ / "fp8";
    return from_files;
  }

  void expect_unsupported(const RecordOptions& refused, const std::string& part) const {
    const Status status = record(refused).status();
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(status.what().find(part), std::string::npos) << status.what();
  }
};

TEST_F(RecordFp8, ACheckpointIsRecordedAndReplaysAsAWholeAndByOperation) {
  const RecordOptions from_files = checkpoint(false);
  recorded(from_files);
  auto reader = RecordingReader::open(from_files.output);
  ASSERT_TRUE(reader) << reader.status().what();
  const auto& inputs = reader->tensors({0, "o_proj"}, Side::inputs);
  const auto scales = std::find_if(inputs.begin(), inputs.end(), [](const TensorInfo& tensor) {
    return tensor.name() == "weight_scale";
  });
  ASSERT_NE(scales, inputs.end());
  EXPECT_EQ(scales->dtype, Dtype::float32);
  Rules rules = Rules::built_in();
  ReplayOptions replayed;
  replayed.paths = {from_files.output};
  const auto report = replay(replayed, rules);
  ASSERT_TRUE(report) << report.status().what();
  EXPECT_EQ(report->verdict(), Verdict::pass) << to_text(*report, {});
  std::set<std::string> tensors; // of the layer
  for (const ReportLine& line : report->lines)
    if (line.operation == "layer") tensors.insert(line.tensor);
  EXPECT_EQ(tensors.count("q") + tensors.count("mla_query") + tensors.count("output"), 3U);
}

TEST_F(RecordFp8, RefusalsNameTheScales) {
  // 64 rows of q_a_proj lie before those of kv_a_proj_with_mqa: a block would hold rows of both.
  expect_unsupported(checkpoint(true), "kv_a_proj_with_mqa.weight: found 64 rows before it, want a "
                                       "multiple of 128 for scales of blocks");
  expect_unsupported(checkpoint(false, {1}),
                     "q_a_proj.weight_scale: found [1], want [64] or [1, 1]");
}

} // namespace
} // namespace dsakit::harness
