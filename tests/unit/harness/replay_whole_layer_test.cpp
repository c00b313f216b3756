// Replay of the operation `layer`: the step as one run, each intermediate on what that run fed it.
#include <functional>
#include <set>

#include "dsakit/harness/bisect.hpp"
#include "dsakit/harness/record.hpp"
#include "dsakit/harness/recording.hpp"
#include "replay_fixture.hpp"
#include "support/temp_folder.hpp"

namespace dsakit::harness {
namespace {

constexpr const char* kTinyLayer = R"({
  "hidden_size": 96, "num_attention_heads": 3, "q_lora_rank": 64, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5,
  "mla_use_nope": true, "mla_use_output_gate": true, "max_position_embeddings": 4096,
  "dsa_config": {"index_num_heads": 16, "index_head_dim": 128, "index_topk": 24,
                 "index_k_norm_type": "layernorm"}})";

class ReplayWholeLayer : public testing::ReplayTest {
protected:
  /// A recorded step, changed and written again under "layer.h5".
  std::string recorded(const std::string& requests,
                       const std::function<void(RecordedOperation&)>& change = {}) {
    testing::write_file(path("config.json"), kTinyLayer);
    RecordOptions options;
    options.config = path("config.json");
    options.requests = requests;
    options.seed = 5;
    options.output = path("whole.h5");
    const auto notes = record(options);
    EXPECT_TRUE(notes) << notes.status().what();
    if (!change) return options.output;
    auto reader = RecordingReader::open(options.output);
    EXPECT_TRUE(reader) << reader.status().what();
    auto writer = RecordingWriter::create(path("layer.h5"));
    EXPECT_TRUE(writer && writer->contract(reader->contract()) && writer->config(reader->config()));
    for (const OperationId& id : reader->operations()) {
      auto operation = reader->read(id, reader->contract());
      EXPECT_TRUE(operation) << operation.status().what();
      change(*operation);
      for (const auto& [name, tensor] : operation->inputs)
        EXPECT_TRUE(writer->add(object_path(id, Side::inputs, name), tensor));
      for (const auto& [name, tensor] : operation->outputs)
        EXPECT_TRUE(writer->add(object_path(id, Side::outputs, name), tensor));
    }
    EXPECT_TRUE(writer->commit());
    return path("layer.h5");
  }

  Report replay_layer(const std::string& file, ReplayMode mode = ReplayMode::fed) {
    ReplayOptions options;
    options.paths = {file};
    options.operation = "layer";
    options.mode = mode;
    const auto report = run(options);
    EXPECT_TRUE(report) << report.status().what();
    return report ? *report : Report{};
  }
};

TEST_F(ReplayWholeLayer, EveryIntermediateIsJudgedUnderTheNameOfTheLayer) {
  const std::string file = recorded("prefill:2x30+10,decode:2x70+2");
  for (const ReplayMode mode : {ReplayMode::fed, ReplayMode::chained}) {
    const Report report = replay_layer(file, mode);
    EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
    std::set<std::string> tensors;
    for (const ReportLine& line : report.lines) {
      EXPECT_EQ(line.operation, "layer");
      EXPECT_EQ(line.subject, "kernel");
      EXPECT_EQ(line.kernel, "pipeline");
      EXPECT_NE(line.reproduce.find("--operation layer"), std::string::npos);
      tensors.insert(line.tensor);
    }
    EXPECT_EQ(tensors,
              (std::set<std::string>{
                  "attn_gated",    "attn_value",    "gate",          "index_cache",
                  "index_k",       "index_k_raw",   "index_q",       "index_q_fp8",
                  "index_q_input", "index_q_scale", "index_weights", "index_weights_folded",
                  "kv_c",          "latent",        "logits",        "lse",
                  "mla_cache",     "mla_query",     "output",        "q",
                  "qkv_a",         "slots",         "topk_indices"}));
    EXPECT_EQ(report.lines.size(), 2 * 2 * tensors.size()) << "two steps, two comparisons each";
  }
}

TEST_F(ReplayWholeLayer, AWrongRecordedOutputFailsAndWhatFollowsFromItDoesNot) {
  const std::string file = recorded("decode:2x70+2", [](RecordedOperation& operation) {
    for (auto* side : {&operation.outputs, &operation.inputs})
      if (side->count("kv_c")) side->at("kv_c").tensor.as<std::uint16_t>()[5] ^= 0x40;
  });
  const Report report = replay_layer(file);
  for (const ReportLine& line : report.lines) {
    const bool wrong = line.tensor == "kv_c" && line.against == "recorded";
    EXPECT_EQ(line.verdict, wrong ? Verdict::fail : Verdict::pass)
        << line.tensor << " " << line.against;
  }
}

TEST_F(ReplayWholeLayer, TheKeysOfPrefillAreThoseThatTheLayerGathered) {
  const std::string file = recorded("prefill:2x30+10", [](RecordedOperation& operation) {
    if (operation.inputs.count("k_fp8"))
      operation.inputs.at("k_fp8").tensor.as<std::uint8_t>()[5] ^= 0x30;
  });
  const Report report = replay_layer(file);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_GT(find(report, "layer", "logits", "kernel", "reference")->elements, 0);
}

/// Keys of the first request alone are right for a chunk of it, and say nothing about this run.
TEST_F(ReplayWholeLayer, AGatherOfAnotherChunkIsSkippedWithANote) {
  const std::string file = recorded("prefill:2x30+10", [](RecordedOperation&) {});
  auto reader = RecordingReader::open(file);
  ASSERT_TRUE(reader);
  auto writer = RecordingWriter::create(path("gathered.h5"));
  ASSERT_TRUE(writer && writer->contract(reader->contract()) && writer->config(reader->config()));
  for (const OperationId& id : reader->operations()) {
    const auto operation = reader->read(id, reader->contract());
    ASSERT_TRUE(operation);
    for (const auto& [name, tensor] : operation->inputs)
      ASSERT_TRUE(writer->add(object_path(id, Side::inputs, name), tensor));
    for (const auto& [name, tensor] : operation->outputs)
      ASSERT_TRUE(writer->add(object_path(id, Side::outputs, name), tensor));
    if (id.operation == "topk_slots") {
      Tensor first(Dtype::int32, {1, operation->inputs.at("block_table").tensor.shape[1]});
      std::copy_n(operation->inputs.at("block_table").tensor.bytes.begin(), first.bytes.size(),
                  first.bytes.begin());
      const OperationId gather{0, "index_cache_gather"};
      ASSERT_TRUE(writer->add(object_path(gather, Side::inputs, "block_table"),
                              {std::move(first), {"requests", "columns"}, {}}));
    }
    if (id.operation == "index_cache_write") {
      ASSERT_TRUE(writer->add(object_path({0, "index_cache_gather"}, Side::inputs, "index_cache"),
                              operation->outputs.at("index_cache")));
    }
    if (id.operation == "index_logits_prefill") {
      for (const char* name : {"k_fp8", "k_scale"}) {
        RecordedTensor keys = operation->inputs.at(name);
        keys.tensor.bytes.resize(keys.tensor.bytes.size() / 2);
        keys.tensor.shape[0] /= 2;
        ASSERT_TRUE(writer->add(object_path({0, "index_cache_gather"}, Side::outputs, name), keys));
      }
      Tensor bounds(Dtype::int32, {2});
      bounds.as<std::int32_t>()[1] = 40;
      ASSERT_TRUE(writer->add(object_path({0, "index_cache_gather"}, Side::inputs, "cu_seq_lens"),
                              {std::move(bounds), {"bounds"}, {}}));
    }
  }
  ASSERT_TRUE(writer->commit());
  const Report report = replay_layer(path("gathered.h5"));
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  std::vector<std::string> notes;
  for (const ReportLine& line : report.lines)
    if (line.verdict == Verdict::skipped) notes.push_back(line.reason);
  EXPECT_EQ(notes, std::vector<std::string>{
                       "index_cache_gather is recorded of another chunk: k_fp8: found [40, 128], "
                       "the step as a whole has [80, 128]"});
}

TEST_F(ReplayWholeLayer, AStepThatIsNotWholeIsSkippedWithTheReason) {
  const std::string file = recorded("decode:2x70+2");
  auto reader = RecordingReader::open(file);
  ASSERT_TRUE(reader);
  const auto reason = [&](const std::string& without) {
    auto writer = RecordingWriter::create(path("part.h5"));
    EXPECT_TRUE(writer && writer->contract(reader->contract()) && writer->config(reader->config()));
    for (const OperationId& id : reader->operations()) {
      if (id.operation == without) continue;
      const auto operation = reader->read(id, reader->contract());
      for (const auto& [name, tensor] : operation->inputs)
        if (name != without) {
          EXPECT_TRUE(writer->add(object_path(id, Side::inputs, name), tensor));
        }
      for (const auto& [name, tensor] : operation->outputs)
        EXPECT_TRUE(writer->add(object_path(id, Side::outputs, name), tensor));
    }
    EXPECT_TRUE(writer->commit());
    const Report report = replay_layer(path("part.h5"));
    EXPECT_EQ(report.verdict(), Verdict::skipped);
    return report.lines.size() == 1 ? report.lines[0].reason : "";
  };
  EXPECT_EQ(reason("absorb_q"), "step 0 holds no absorb_q, which the layer as a whole needs");
  EXPECT_EQ(reason("query_lens"), "step 0 holds no layer/inputs/query_lens of int32 [requests], "
                                  "which the layer as a whole needs");
  EXPECT_EQ(reason("q_norm"),
            "the operations are not of one layer: qkv_a of a layer without q_norm: found [4, 640], "
            "want [4, 576]");
}

// Lengths that cannot be are bad input, and not a reason to leave the layer out.
TEST_F(ReplayWholeLayer, LengthsThatCannotBeAreBadInput) {
  const auto with = [&](const char* lens, std::int32_t value) {
    ReplayOptions options;
    options.paths = {recorded("decode:2x70+2", [&](RecordedOperation& operation) {
      if (operation.inputs.count("query_lens"))
        operation.inputs.at(lens).tensor.as<std::int32_t>()[1] = value;
    })};
    const auto report = run(options);
    EXPECT_TRUE(report) << report.status().what();
    if (!report) return std::string();
    EXPECT_TRUE(report->files[0].bad_input) << to_text(*report, {});
    const std::string& reason = report->files[0].reason;
    return reason.substr(std::min(reason.find("/steps"), reason.size()));
  };
  EXPECT_EQ(with("seq_lens", 1'000'000), "/steps/0/layer/inputs/seq_lens [1]: found 1000000, want "
                                         "at most the 128 tokens of a row of block_table");
  EXPECT_EQ(with("seq_lens", 100), "/steps/0/layer/inputs/seq_lens [1]: found 100, want at most "
                                   "the 72 columns of logits");
  EXPECT_EQ(with("seq_lens", -1), "/steps/0/layer/inputs/seq_lens [1]: found -1, want at least its "
                                  "2 new tokens (query_lens)");
  EXPECT_EQ(with("query_lens", 3), "/steps/0/layer/inputs/query_lens [1]: found 3, want 0 to the 2 "
                                   "rows that are left of hidden_states");
}

TEST_F(ReplayWholeLayer, ALayerThatIsLeftOutIsToldWithItsReason) {
  ReplayOptions options;
  options.paths = {recorded("decode:2x70+2", [](RecordedOperation& operation) {
    if (operation.inputs.count("seq_lens"))
      for (int i = 0; i < 2; ++i)
        operation.inputs.at("seq_lens").tensor.as<std::int32_t>()[i] = 71;
  })};
  const auto report = run(options);
  ASSERT_TRUE(report) << report.status().what();
  EXPECT_EQ(report->verdict(), Verdict::pass);
  std::string text = to_text(*report, {});
  std::replace(text.begin(), text.end(), '\n', ' ');
  EXPECT_NE(
      text.find("layer, step 0: skipped: the operations are not of one layer: seq_lens: found "
                "71 as the longest, want 72"),
      std::string::npos)
      << text;
}

// A layer has no reference of its own: bisect names it, and neither its rows nor how to shrink it.
TEST_F(ReplayWholeLayer, BisectNamesTheOperationBeforeTheLayer) {
  BisectOptions options;
  options.file = recorded("decode:2x70+2", [](RecordedOperation& operation) {
    if (operation.outputs.count("kv_c"))
      operation.outputs.at("kv_c").tensor.as<std::uint16_t>()[5] ^= 0x40;
  });
  Rules rules = Rules::built_in();
  Result<Bisection> found = bisect(options, rules);
  ASSERT_TRUE(found) << found.status().what();
  ASSERT_TRUE(found->first);
  EXPECT_EQ(found->first->operation, "kv_norm");
  ASSERT_EQ(found->others.size(), 1u);
  EXPECT_EQ(found->others[0].operation + " " + found->others[0].tensor, "layer kv_c");

  // Where the part is allowed to differ, the layer is what is left.
  Rules loose = Rules::built_in();
  ASSERT_TRUE(loose.add_override("kv_norm/kv_c=exact,budget=9:0.9"));
  found = bisect(options, loose);
  ASSERT_TRUE(found) << found.status().what();
  ASSERT_TRUE(found->first);
  EXPECT_EQ(found->first->operation, "layer");
  EXPECT_FALSE(found->rows);
  EXPECT_EQ(found->next, "");
  EXPECT_EQ(found->reproduce, "dsakit replay " + options.file + " --operation layer");
  EXPECT_NE(to_text(*found).find("layer, step 0: kv_c"), std::string::npos) << to_text(*found);
}

// A request that has nothing new in this step, and holds nothing: the layer as a whole is skipped
// with the reason, and its operations pass.
TEST_F(ReplayWholeLayer, APrefillWithARequestOfNoNewTokens) {
  const std::string file = recorded("prefill:2x30+10", [](RecordedOperation& operation) {
    const auto append = [&](const char* input, auto value) {
      const auto found = operation.inputs.find(input);
      if (found == operation.inputs.end()) return;
      Tensor& tensor = found->second.tensor;
      const Tensor before = tensor;
      ++tensor.shape[0];
      const auto row = tensor.elements() / tensor.shape[0];
      tensor.bytes.resize(before.bytes.size() + static_cast<std::size_t>(row) * 4);
      for (std::int64_t i = 0; i < row; ++i)
        tensor.as<std::int32_t>()[before.elements() + i] = value(before);
    };
    append("query_lens", [](const Tensor&) { return 0; });
    append("seq_lens", [](const Tensor&) { return 0; });
    append("block_table", [](const Tensor&) { return -1; });
    append("cu_seq_lens",
           [](const Tensor& starts) { return starts.as<std::int32_t>()[starts.elements() - 1]; });
  });
  const Report report = replay_layer(file);
  EXPECT_EQ(report.verdict(), Verdict::skipped) << to_text(report, {});
  ASSERT_EQ(report.lines.size(), 1u);
  EXPECT_NE(report.lines[0].reason.find("found a request without new tokens in a prefill step"),
            std::string::npos)
      << report.lines[0].reason;
  ReplayOptions options;
  options.paths = {file};
  const auto parts = run(options);
  ASSERT_TRUE(parts) << parts.status().what();
  EXPECT_EQ(parts->verdict(), Verdict::pass) << to_text(*parts, {});
}

} // namespace
} // namespace dsakit::harness
