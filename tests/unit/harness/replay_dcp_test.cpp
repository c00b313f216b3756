// The operations of decode context parallelism: what is refused of a recording, what passes, what
// fails and why.
#include <cmath>
#include <functional>
#include <limits>

#include "dsakit/harness/operations.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_dcp.hpp"

namespace dsakit::harness {
namespace {

using testing::TinyRecording;
using testing::tiny::tensor;

using testing::tiny_dcp;
using namespace testing::tiny_dcp_sizes;

class ReplayDcp : public testing::ReplayTest {
protected:
  /// What opening or reading the changed recording says; "" if nothing.
  std::string refusal(const std::function<void(TinyRecording&)>& change) {
    TinyRecording recording = tiny_dcp();
    change(recording);
    recording.write(path("x.h5"));
    const auto reader = RecordingReader::open(path("x.h5"));
    Status status = reader.status();
    for (const auto& [name, operation] : recording.operations)
      if (status) status = reader->read({0, name}, reader->contract(0)).status();
    return status ? "" : status.what().substr(path("x.h5: ").size());
  }
};

TEST_F(ReplayDcp, ASoundRecordingPasses) {
  for (const optimized::Arch arch : {optimized::Arch::gfx942, optimized::Arch::gfx950}) {
    ReplayOptions options;
    options.host.arch = arch;
    const Report report = replay(tiny_dcp(), options);
    EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
    EXPECT_EQ(report.lines.size(), 27u) << "3 comparisons of each of 9 outputs";
    EXPECT_EQ(find(report, "topk_slots", "counts", "kernel", "reference")->kernel, "row_scan");
  }
}

// The latent is compared with the reference even where it is not recorded; what the kernel is only
// asked for where it is recorded has no line then.
TEST_F(ReplayDcp, OutputsThatARecordingLacks) {
  TinyRecording recording = tiny_dcp();
  recording.operations.at("topk").outputs.erase("dcp_scores");
  recording.operations.at("topk_slots").outputs.erase("compact_slots");
  recording.operations.at("topk_slots").outputs.erase("counts");
  recording.operations.at("dcp_attention_merge").outputs.erase("latent");
  recording.operations.at("dcp_attention_merge").outputs.erase("corrected");
  const Report report = replay(recording);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(report.lines.size(), 13u);
  EXPECT_EQ(find(report, "topk_slots", "slots", "kernel", "reference")->kernel, "lane_each");
  EXPECT_EQ(find(report, "dcp_attention_merge", "latent", "kernel", "reference")->verdict,
            Verdict::pass);
  recording.operations.at("dcp_attention_merge").outputs.erase("lse");
  recording.write(path("x.h5"));
  EXPECT_EQ(RecordingReader::open(path("x.h5")).status().what(),
            path("x.h5") + ": /steps/0/dcp_attention_merge/outputs/lse: is missing");
}

// Row 0 has six keys of rank 1, which are positions 3 to 5 and 9 to 11 of its request.
TEST_F(ReplayDcp, ASelectionNamesPositionsOfTheRequest) {
  TinyRecording recording = tiny_dcp();
  const Tensor& indices = recording.output("topk", "topk_indices");
  EXPECT_EQ(std::vector(indices.as<std::int32_t>(), indices.as<std::int32_t>() + kK),
            (std::vector<std::int32_t>{11, 9, 10, 3}));
  EXPECT_EQ(std::vector(indices.as<std::int32_t>() + 2 * kK, indices.as<std::int32_t>() + 3 * kK),
            (std::vector<std::int32_t>{3, 4, -1, -1}));
  // Of a producer with ties of its own: the set in another order, and one position of rank 0.
  recording.contract["tie_rule"] = "unspecified";
  auto& outputs = recording.operations.at("topk").outputs;
  outputs["topk_indices.other"] = outputs.at("topk_indices");
  outputs.at("topk_indices.other").attributes["output"] = "topk_indices";
  outputs.erase("topk_indices");
  auto* other = recording.output("topk", "topk_indices.other").as<std::int32_t>();
  std::reverse(other, other + kK);
  EXPECT_EQ(replay(recording).verdict(), Verdict::pass);
  other[0] = 0;
  const Report report = replay(recording);
  EXPECT_EQ(find(report, "topk", "topk_indices.other", "reference", "recorded")->verdict,
            Verdict::fail);
}

TEST_F(ReplayDcp, AWrongInterleaveFailsAndTheFieldIsNamed) {
  TinyRecording recording = tiny_dcp();
  recording.contract["dcp_interleave"] = "1";
  const auto slots =
      find_adapter("topk_slots")
          ->reference(
              {{0, "topk_slots"}, recording.contract, recording.operations.at("topk_slots")});
  for (const Expected& output : *slots)
    recording.output("topk_slots", output.output) = output.value.tensor;
  recording.contract["dcp_interleave"] = "3";
  const Report report = replay(recording);
  EXPECT_EQ(report.verdict(), Verdict::fail);
  const ReportLine* line = find(report, "topk_slots", "slots", "reference", "recorded");
  EXPECT_NE(line->hint.find("dcp_interleave=1: the contract field is dcp_interleave"),
            std::string::npos)
      << line->hint;
}

TEST_F(ReplayDcp, AnOutputBeyondItsGateFails) {
  for (const char* output : {"latent", "lse", "corrected"}) {
    TinyRecording recording = tiny_dcp();
    Tensor& changed = recording.output("dcp_attention_merge", output);
    if (changed.dtype == Dtype::bfloat16)
      changed.as<std::uint16_t>()[7] += 2;
    else
      changed.as<float>()[7 % changed.elements()] *= 1.00001F;
    const Report report = replay(recording);
    EXPECT_EQ(find(report, "dcp_attention_merge", output, "reference", "recorded")->verdict,
              Verdict::fail)
        << output;
    EXPECT_EQ(find(report, "dcp_attention_merge", output, "kernel", "reference")->verdict,
              Verdict::pass);
  }
}

TEST_F(ReplayDcp, RowsAreSampledOfEveryRank) {
  TinyRecording recording = tiny_dcp();
  ReplayOptions options;
  options.rows = 2;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    options.seed = seed;
    const Report report = replay(recording, options);
    EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
    EXPECT_EQ(find(report, "dcp_attention_merge", "corrected", "kernel", "reference")->elements,
              kRanks * 2 * kHeads * kDim);
    EXPECT_EQ(find(report, "dcp_topk_merge", "topk_indices", "kernel", "reference")->elements,
              2 * kK);
  }
}

TEST_F(ReplayDcp, ContractsAndAttributesThatDoNotFit) {
  EXPECT_EQ(refusal([](auto& r) { r.contract.erase("dcp_interleave"); }),
            "/contract (step 0): found no key dcp_interleave, want it with dcp_world");
  EXPECT_EQ(refusal([](auto& r) { r.contract.erase("dcp_world"); }),
            "/contract (step 0): found no key dcp_world, want it with dcp_interleave");
  EXPECT_EQ(
      refusal([](auto& r) { r.contract["dcp_world"] = "2.5"; }),
      "/contract (step 0): contract key dcp_world: found '2.5', want a whole number of ranks");
  EXPECT_EQ(
      refusal([](auto& r) {
        r.contract["dcp_interleave"] = "0";
      }).find("/contract (step 0): contract key dcp_interleave: found '0', want a number in [1,"),
      0u);
  for (const auto& [operation, output] :
       {std::pair("topk", "topk_indices"), {"topk_slots", "slots"}})
    for (const char* rank : {"2", "-1", "x"})
      EXPECT_EQ(refusal([&](auto& r) {
                  r.operations.at(operation).outputs.at(output).attributes["dcp_rank"] = rank;
                }),
                "/steps/0/" + std::string(operation) + "/outputs/" + output + ": found dcp_rank '" +
                    rank + "', want 0 to 1 (dcp_world)");
  EXPECT_EQ(refusal([](auto& r) {
              auto& outputs = r.operations.at("topk_slots").outputs;
              outputs["slots.other"] = outputs.at("slots");
              outputs["slots.other"].attributes = {{"output", "slots"}, {"dcp_rank", "0"}};
            }),
            "/steps/0/topk_slots/outputs/slots.other: found dcp_rank 0, want 1 as in the other "
            "slots of the step");
  EXPECT_EQ(refusal([](auto& r) {
              auto& outputs = r.operations.at("dcp_attention_merge").outputs;
              outputs.at("corrected").tensor =
                  Tensor(Dtype::bfloat16, {kRanks, kRows, kHeads, kDim});
            }),
            "/steps/0/dcp_attention_merge/outputs/corrected: found dtype bfloat16, want float32 as "
            "rank_latent");
}

TEST_F(ReplayDcp, PositionsThatNoRankCanHold) {
  const std::string indices = "/steps/0/dcp_topk_merge/inputs/rank_indices: ";
  EXPECT_EQ(refusal([](auto& r) {
              r.input("dcp_topk_merge", "rank_indices").template as<std::int32_t>()[4] = -2;
            }),
            indices + "[0, 1, 0]: found position -2, want -1 or a position");
  EXPECT_EQ(refusal([](auto& r) {
              r.input("dcp_topk_merge", "rank_indices").template as<std::int32_t>()[12] = 6;
            }),
            indices +
                "[1, 0, 0]: found position 6 again, want each position of a row at most once");
  // Twelve positions on two ranks are six in the pages of each.
  EXPECT_EQ(
      refusal(
          [](auto& r) { r.input("topk_slots", "row_lens").template as<std::int32_t>()[1] = 13; }),
      "/steps/0/topk_slots/inputs/row_lens: [1]: found 13, want at most the 6 tokens of a row "
      "of block_table");
}

} // namespace
} // namespace dsakit::harness
