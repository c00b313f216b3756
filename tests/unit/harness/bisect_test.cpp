// bisect: the first wrong operation, and where two recordings of one run part.
#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "dsakit/harness/bisect.hpp"
#include "hints_problem.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_dcp.hpp"
#include "support/tiny_dense.hpp"
#include "support/tiny_layer.hpp"

namespace dsakit::harness {
namespace {

using testing::TinyRecording;

class BisectTest : public testing::ReplayTest {
protected:
  Result<Bisection> bisect(const TinyRecording& file,
                           const TinyRecording* against = nullptr) const {
    file.write(path("a.h5"));
    BisectOptions options;
    options.file = path("a.h5");
    if (against) {
      against->write(path("b.h5"));
      options.against = path("b.h5");
    }
    Rules rules = Rules::built_in();
    return harness::bisect(options, rules);
  }

  /// The same under rules of the caller's, and with options for `reproduce`.
  Result<Bisection> bisect_with(Rules& rules, const std::string& repeat = {},
                                bool against = false) const {
    BisectOptions options;
    options.file = path("a.h5");
    options.repeat = repeat;
    if (against) options.against = path("b.h5");
    return harness::bisect(options, rules);
  }

  Rules waiving(const std::string& operation, const std::string& subject) const {
    std::ofstream(path("waivers.json"))
        << R"({"waivers": [{"operation": ")" << operation << R"(", "match": ".*", "subject": ")"
        << subject << R"(", "reason": "known", "expires": "9999-12-31"}]})";
    Rules rules = Rules::built_in();
    EXPECT_TRUE(rules.waivers.add_file(path("waivers.json")));
    return rules;
  }

  static Bisection take(const Result<Bisection>& result) {
    EXPECT_TRUE(result) << result.status().what();
    return result ? *result : Bisection{};
  }
};

std::ptrdiff_t lines_of(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

/// index_q_input is wrong, and everything after it is right for what it was given.
TinyRecording with_wrong_q_norm() {
  TinyRecording wrong = testing::tiny_dense();
  auto& out = wrong.operations.at("q_norm").outputs.at("index_q_input");
  out.tensor.as<std::uint16_t>()[24 + 5] ^= 0x0400; // row 1
  const auto feed = [&](const std::string& operation, const std::string& input,
                        const RecordedTensor& value) {
    wrong.operations.at(operation).inputs.at(input) = value;
    testing::tiny::fill_outputs(wrong, operation);
  };
  feed("q_b_proj", "index_q_input", out);
  feed("index_q_proj", "index_q_input", out);
  feed("absorb_q", "q", wrong.operations.at("q_b_proj").outputs.at("q"));
  return wrong;
}

TEST_F(BisectTest, ASoundRecordingHasNoWrongOperation) {
  const Bisection found = take(bisect(testing::tiny_dense()));
  EXPECT_EQ(found.verdict, Verdict::pass);
  EXPECT_FALSE(found.first);
  EXPECT_EQ(found.reproduce + found.next, "");
  EXPECT_EQ(found.operations, 13);
}

TEST_F(BisectTest, TheFirstWrongOperationAndItsRows) {
  const Bisection found = take(bisect(with_wrong_q_norm()));
  EXPECT_EQ(found.verdict, Verdict::fail);
  ASSERT_TRUE(found.first);
  EXPECT_EQ(found.first->operation + " " + found.first->tensor, "q_norm index_q_input");
  EXPECT_EQ(found.first->subject + "/" + found.first->against, "reference/recorded");
  EXPECT_EQ(found.first->first_at, (std::vector<std::int64_t>{1, 5}));
  ASSERT_TRUE(found.rows);
  EXPECT_EQ(found.rows->axis, "rows");
  EXPECT_EQ(found.rows->first, 1);
  EXPECT_EQ(found.rows->last, 1);
  EXPECT_EQ(found.rows->wrong, 1);
  EXPECT_EQ(found.rows->of, 3);
  EXPECT_TRUE(found.others.empty()) << "the operations after it were fed as recorded";
  EXPECT_EQ(found.reproduce, "dsakit replay " + path("a.h5") + " --operation q_norm");
  EXPECT_EQ(found.next, "dsakit shrink " + path("a.h5") + " --operation q_norm -o small.h5");
  EXPECT_LE(lines_of(to_text(found)), 25) << to_text(found);
}

TEST_F(BisectTest, WhatIsWrongAfterIt) {
  TinyRecording wrong = with_wrong_q_norm();
  for (const char* operation : {"output_gate", "absorb_v", "o_proj", "gate_proj", "kv_norm"})
    wrong.operations.at(operation).outputs.begin()->second.tensor.bytes[1] ^= std::byte{0x40};
  const Bisection found = take(bisect(wrong));
  ASSERT_TRUE(found.first);
  EXPECT_EQ(found.first->operation, "q_norm");
  EXPECT_EQ(found.others.size(), 5u);
  EXPECT_EQ(found.others.front().operation, "kv_norm");
  EXPECT_LE(lines_of(to_text(found)), 25) << to_text(found);
}

// A producer's wrong output feeds the operations after it; our kernels, right as they are, end
// further and further from what it recorded.
TEST_F(BisectTest, ErrorsGrowWhereKernelsFeedKernels) {
  const Bisection found = take(bisect(with_wrong_q_norm()));
  const auto grows = [&](const std::string& operation) {
    return std::any_of(found.growth.begin(), found.growth.end(), [&](const Growth& growth) {
      return growth.operation == operation && growth.chained_abs > growth.fed_abs;
    });
  };
  EXPECT_TRUE(grows("q_b_proj"));
  EXPECT_TRUE(grows("absorb_q"));
  EXPECT_FALSE(grows("gate_proj")) << "nothing that it is fed is wrong";
}

TEST_F(BisectTest, AgainstItselfNothingParts) {
  const TinyRecording sound = testing::tiny_dense();
  const Bisection found = take(bisect(sound, &sound));
  EXPECT_EQ(found.verdict, Verdict::pass);
  EXPECT_TRUE(found.partings.empty());
}

TEST_F(BisectTest, TheFirstTensorThatPartsByItself) {
  const TinyRecording sound = testing::tiny_dense();
  const Bisection found = take(bisect(with_wrong_q_norm(), &sound));
  EXPECT_EQ(found.verdict, Verdict::fail);
  ASSERT_EQ(found.partings.size(), 4u) << to_text(found);
  const Parting& first = found.partings[0];
  EXPECT_EQ(first.operation + " " + first.tensor, "q_norm index_q_input");
  EXPECT_EQ(first.cause, Parting::Cause::itself);
  EXPECT_EQ(first.first_at, (std::vector<std::int64_t>{1, 5}));
  EXPECT_EQ(first.got_right, std::optional(false));
  EXPECT_EQ(first.want_right, std::optional(true));
  for (std::size_t i = 1; i < found.partings.size(); ++i)
    EXPECT_EQ(found.partings[i].cause, Parting::Cause::inputs) << found.partings[i].operation;
  EXPECT_EQ(found.reproduce, "dsakit replay " + path("a.h5") + " --operation q_norm");
  EXPECT_LE(lines_of(to_text(found)), 25) << to_text(found);

  const Bisection other = take(bisect(sound, nullptr));
  EXPECT_EQ(other.verdict, Verdict::pass);
  const TinyRecording wrong = with_wrong_q_norm();
  const Bisection reversed = take(bisect(sound, &wrong));
  EXPECT_EQ(reversed.reproduce, "dsakit replay " + path("b.h5") + " --operation q_norm")
      << "the file that the reference contradicts";
}

TEST_F(BisectTest, RunsThatWereGivenDifferentInputs) {
  TinyRecording other = testing::tiny_dense();
  other.input("gate_proj", "hidden_states").as<std::uint16_t>()[3] ^= 0x0040;
  testing::tiny::fill_outputs(other, "gate_proj");
  const TinyRecording sound = testing::tiny_dense();
  const Bisection found = take(bisect(other, &sound));
  ASSERT_EQ(found.partings.size(), 2u);
  EXPECT_EQ(found.partings[0].tensor, "hidden_states");
  EXPECT_EQ(found.partings[0].cause, Parting::Cause::given);
  EXPECT_EQ(found.partings[0].mismatches, 1);
  EXPECT_EQ(found.partings[1].tensor, "gate");
  EXPECT_EQ(found.partings[1].cause, Parting::Cause::inputs);
  EXPECT_EQ(found.reproduce, "dsakit bisect " + path("a.h5") + " --against " + path("b.h5"))
      << "the reference contradicts neither";
  EXPECT_EQ(found.next, "");
}

TEST_F(BisectTest, ContractsAndShapesMustBeTheSame) {
  const TinyRecording sound = testing::tiny_dense();
  TinyRecording other = sound;
  other.contract["gate_rounding"] = "one";
  auto refused = bisect(sound, &other);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.status().what().find("gate_rounding: found two and one"), std::string::npos)
      << refused.status().what();
}

TEST_F(BisectTest, EveryNumberIsInTheJson) {
  const Bisection found = take(bisect(with_wrong_q_norm()));
  const auto json = nlohmann::json::parse(to_json(found));
  EXPECT_EQ(json.at("schema"), "dsakit-bisect/1");
  EXPECT_EQ(json.at("first").at("operation"), "q_norm");
  EXPECT_EQ(json.at("rows").at("of"), 3);
  EXPECT_EQ(json.at("growth").size(), found.growth.size());
}

TEST_F(BisectTest, TheCommandsRepeatTheOptions) {
  with_wrong_q_norm().write(path("a.h5"));
  testing::tiny_dense().write(path("b.h5"));
  Rules rules = Rules::built_in();
  const std::string options = "--gate 'q=exact' --waivers w.json";
  const Bisection found = take(bisect_with(rules, options));
  EXPECT_EQ(found.reproduce, "dsakit replay " + path("a.h5") + " --operation q_norm " + options);
  EXPECT_EQ(found.next,
            "dsakit shrink " + path("a.h5") + " --operation q_norm -o small.h5 " + options);
  const Bisection parted = take(bisect_with(rules, options, true));
  EXPECT_EQ(parted.reproduce, found.reproduce);
}

TEST_F(BisectTest, AWaivedFailureIsListedAndIsNotTheFirst) {
  const TinyRecording wrong = with_wrong_q_norm();
  wrong.write(path("a.h5"));
  Rules rules = waiving("q_norm", "reference");
  Bisection found = take(bisect_with(rules));
  ASSERT_TRUE(found.first) << "our kernel against what was recorded is not waived";
  EXPECT_EQ(found.first->subject, "kernel");
  EXPECT_EQ(found.waived(), 1);
  EXPECT_EQ(found.waived_lines[0].subject, "reference");

  std::ofstream(path("waivers.json")) << R"({"waivers": [{"operation": "q_norm", "match": ".*",
      "reason": "known", "expires": "9999-12-31"}]})";
  Rules all = Rules::built_in();
  ASSERT_TRUE(all.waivers.add_file(path("waivers.json")));
  found = take(bisect_with(all));
  EXPECT_EQ(found.verdict, Verdict::waived);
  EXPECT_FALSE(found.first);
  EXPECT_EQ(found.waived(), 2);
  EXPECT_NE(to_text(found).find("waived: q_norm, step 0: index_q_input"), std::string::npos)
      << to_text(found);
  EXPECT_LE(lines_of(to_text(found)), 25) << to_text(found);
}

TEST_F(BisectTest, AWaiverThatMetNoFailureIsAWarning) {
  testing::tiny_dense().write(path("a.h5"));
  testing::tiny_dense().write(path("b.h5"));
  for (const bool against : {false, true}) {
    Rules rules = waiving("q_norm", "recorded");
    const Bisection found = take(bisect_with(rules, {}, against));
    ASSERT_EQ(found.warnings.size(), 1u) << against;
    EXPECT_NE(to_text(found).find("warning: "), std::string::npos);
  }
}

TEST_F(BisectTest, AgainstObeysLimitsAndWaivers) {
  with_wrong_q_norm().write(path("a.h5"));
  testing::tiny_dense().write(path("b.h5"));
  const auto parts = [&](const std::string& gate) {
    Rules rules = Rules::built_in();
    EXPECT_TRUE(rules.add_override(gate));
    const auto partings = take(bisect_with(rules, {}, true)).partings;
    return std::any_of(partings.begin(), partings.end(),
                       [](const Parting& p) { return p.operation == "q_norm"; });
  };
  EXPECT_FALSE(parts("index_q_input=exact,budget=1:0.5"));
  EXPECT_TRUE(parts("index_q_input=exact,budget=1:0.001"));

  Rules waived = waiving("q_norm", "recorded");
  const Bisection found = take(bisect_with(waived, {}, true));
  ASSERT_FALSE(found.partings.empty());
  EXPECT_EQ(found.partings[0].waived, "until 9999-12-31: known");
  EXPECT_EQ(found.verdict, Verdict::fail) << "what follows from it is not waived";
  EXPECT_EQ(found.waived(), 1);
}

// What a step made is not made by the next one: there it is given.
TEST_F(BisectTest, WhatWasMadeIsMadeInThatStepAlone) {
  TinyRecording sound = testing::tiny_dense();
  TinyRecording step = sound;
  std::erase_if(step.operations, [](const auto& item) { return item.first != "q_b_proj"; });
  TinyRecording other = step;
  other.input("q_b_proj", "index_q_input").as<std::uint16_t>()[3] ^= 0x0040;
  testing::tiny::fill_outputs(other, "q_b_proj");
  sound.write(path("a.h5"), &other);
  sound.write(path("b.h5"), &step);
  Rules rules = Rules::built_in();
  const Bisection found = take(bisect_with(rules, {}, true));
  ASSERT_EQ(found.partings.size(), 2u) << to_text(found);
  EXPECT_EQ(found.partings[0].step, 1);
  EXPECT_EQ(found.partings[0].tensor, "index_q_input");
  EXPECT_EQ(found.partings[0].cause, Parting::Cause::given);
}

TEST_F(BisectTest, AnOperationThatNoKernelTakesIsToldWithItsReason) {
  TinyRecording r = testing::tiny_recording();
  r.contract["activation_dtype"] = "fp16";
  r.input("index_cache_write", "index_k").dtype = Dtype::float16;
  testing::compute(r, "index_cache_write");
  const Bisection found = take(bisect(r));
  EXPECT_EQ(found.verdict, Verdict::unsupported);
  ASSERT_TRUE(found.first);
  EXPECT_EQ(found.first->operation, "index_cache_write");
  EXPECT_NE(found.reproduce, "");
  EXPECT_EQ(found.next, "") << "it does not fail";
  EXPECT_NE(to_text(found).find("first operation that no kernel takes: index_cache_write"),
            std::string::npos);
}

TEST_F(BisectTest, JunitHasATestForEachOperation) {
  const auto count = [](const std::string& text, const std::string& what) {
    std::int64_t n = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at)
      ++n;
    return n;
  };
  const TinyRecording sound = testing::tiny_dense();
  const Bisection found = take(bisect(with_wrong_q_norm()));
  const std::string junit = to_junit(found);
  EXPECT_EQ(count(junit, "<testcase "), 13);
  EXPECT_EQ(count(junit, "<failure "), 1);
  EXPECT_NE(junit.find(R"(failures="1" errors="0" skipped="0")"), std::string::npos) << junit;
  EXPECT_EQ(count(junit, "reproduce: dsakit replay"), 1);
  const std::string parted = to_junit(take(bisect(with_wrong_q_norm(), &sound)));
  EXPECT_EQ(count(parted, "<testcase "), 13);
  EXPECT_EQ(count(parted, "<failure "), 4) << "tensors that part, one an operation";
  EXPECT_NE(parted.find(R"(failures="4")"), std::string::npos) << parted;
  EXPECT_NE(parted.find("by itself; by the reference"), std::string::npos);
}

TEST_F(BisectTest, MarkdownHasTheFirstFailureAndTheCommands) {
  const TinyRecording sound = testing::tiny_dense();
  const std::string md = to_markdown(take(bisect(with_wrong_q_norm())));
  for (const char* text : {"### dsakit bisect: FAIL", "| 0 | q\\_norm | index\\_q\\_input |",
                           "First wrong: rows 1 (1 of 3)", "Errors that grow",
                           "reproduce: dsakit replay", "next: dsakit shrink"})
    EXPECT_NE(md.find(text), std::string::npos) << text << "\n" << md;
  const std::string parted = to_markdown(take(bisect(with_wrong_q_norm(), &sound)));
  EXPECT_NE(parted.find("by itself; by the reference"), std::string::npos) << parted;
  EXPECT_NE(parted.find("because of its inputs"), std::string::npos);
}

TEST_F(BisectTest, AnInterruptLeavesWhatWasLookedAt) {
  with_wrong_q_norm().write(path("a.h5"));
  testing::tiny_dense().write(path("b.h5"));
  for (const bool against : {false, true}) {
    std::atomic<bool> interrupted = false;
    BisectOptions options;
    options.file = path("a.h5");
    if (against) options.against = path("b.h5");
    options.interrupted = &interrupted;
    std::vector<double> seen;
    options.progress = [&](double done, const std::string& what) {
      seen.push_back(done);
      interrupted = interrupted || what == "gate_proj";
    };
    Rules rules = Rules::built_in();
    const Bisection found = take(harness::bisect(options, rules));
    EXPECT_TRUE(found.partial);
    EXPECT_EQ(found.verdict, Verdict::fail) << "q_norm comes before";
    EXPECT_LT(found.operations, 13);
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_NE(to_text(found).find("PARTIAL"), std::string::npos);
    EXPECT_NE(to_markdown(found).find("(PARTIAL: interrupted)"), std::string::npos);
    EXPECT_NE(to_junit(found).find("(PARTIAL: interrupted)"), std::string::npos);
    EXPECT_TRUE(nlohmann::json::parse(to_json(found)).at("partial"));
  }
}

/// A decode that reads what index_cache_write wrote.
TinyRecording with_fresh_cache() {
  TinyRecording fresh = testing::tiny_recording();
  for (const char* operation : {"index_cache_gather", "index_logits_decode"})
    fresh.input(operation, "index_cache") = fresh.output("index_cache_write", "index_cache");
  return fresh;
}

// The cache before the step's writes, where one file's decode reads it: nothing that was recorded
// of its outputs differs.
TEST_F(BisectTest, AStaleCacheIsTheInputThatDiffers) {
  const TinyRecording fresh = with_fresh_cache();
  TinyRecording stale = fresh;
  stale.input("index_logits_decode", "index_cache") =
      stale.input("index_cache_write", "index_cache");
  const Bisection found = take(bisect(stale, &fresh));
  EXPECT_EQ(found.verdict, Verdict::fail);
  ASSERT_EQ(found.partings.size(), 1u) << to_text(found);
  const Parting& parting = found.partings[0];
  EXPECT_EQ(parting.operation + " " + parting.tensor, "index_logits_decode index_cache");
  EXPECT_EQ(parting.cause, Parting::Cause::stale);
  EXPECT_EQ(parting.maker, "index_cache_write");
  EXPECT_EQ(parting.got_right, std::optional(false));
  EXPECT_EQ(parting.want_right, std::optional(true));
  EXPECT_NE(
      to_text(found).find("inputs differ: not what index_cache_write made in " + path("a.h5")),
      std::string::npos)
      << to_text(found);
  EXPECT_NE(to_markdown(found).find("inputs differ: not what index\\_cache\\_write made in"),
            std::string::npos)
      << to_markdown(found);
  EXPECT_EQ(found.reproduce, "dsakit bisect " + path("a.h5") + " --against " + path("b.h5"))
      << "replay feeds what was recorded, and sees nothing";
  EXPECT_EQ(nlohmann::json::parse(to_json(found)).at("partings")[0].at("maker"),
            "index_cache_write");
}

// A cache that both wrote otherwise: the operation that wrote it parts, and not the one that reads.
TEST_F(BisectTest, WhatFollowsFromAnOutputIsNoInputThatDiffers) {
  const TinyRecording fresh = with_fresh_cache();
  TinyRecording other = fresh;
  for (Tensor* cache : {&other.output("index_cache_write", "index_cache"),
                        &other.input("index_cache_gather", "index_cache"),
                        &other.input("index_logits_decode", "index_cache")})
    cache->as<std::uint8_t>()[2] ^= 0x08;
  const Bisection found = take(bisect(other, &fresh));
  ASSERT_FALSE(found.partings.empty());
  EXPECT_EQ(found.partings[0].operation, "index_cache_write");
  EXPECT_EQ(found.partings[0].cause, Parting::Cause::itself);
  for (const Parting& parting : found.partings) {
    EXPECT_NE(parting.cause, Parting::Cause::stale) << parting.operation << " " << parting.tensor;
    EXPECT_NE(parting.cause, Parting::Cause::given) << parting.operation << " " << parting.tensor;
  }
}

// What one rank selected is a part of what the merge is given; the others' parts are given.
TEST_F(BisectTest, ARanksPartOfAMergeFollowsFromItsSelection) {
  const auto merged = [](std::ptrdiff_t rank, bool exchanged, bool other_rank) {
    TinyRecording r = testing::tiny_dcp();
    Tensor& ids = r.input("dcp_topk_merge", "rank_indices");
    Tensor& scores = r.input("dcp_topk_merge", "rank_scores");
    std::fill_n(ids.as<std::int32_t>(), ids.elements(), -1);
    std::fill_n(scores.as<float>(), scores.elements(), -INFINITY);
    Tensor& chosen = r.output("topk", "topk_indices");
    if (exchanged) std::swap(chosen.as<std::int32_t>()[0], chosen.as<std::int32_t>()[1]);
    const auto offer = [&](Tensor& all, const Tensor& part) {
      std::copy(part.bytes.begin(), part.bytes.end(),
                all.bytes.begin() + rank * std::ssize(part.bytes));
    };
    offer(ids, chosen);
    offer(scores, r.output("topk", "dcp_scores"));
    const std::int64_t other = rank == 0 ? ids.elements() - 1 : 0;
    if (other_rank) ids.as<std::int32_t>()[other] = 1000, scores.as<float>()[other] = 1;
    testing::compute(r, "dcp_topk_merge");
    return r;
  };
  for (const std::ptrdiff_t rank : {0, 1}) {
    const TinyRecording sound = merged(rank, false, false);
    const auto causes = [&](const TinyRecording& other) {
      std::vector<std::string> list;
      for (const Parting& parting : take(bisect(other, &sound)).partings)
        list.push_back(parting.operation + " " + parting.tensor + " " +
                       std::string(name(parting.cause)) + " " + std::to_string(parting.mismatches));
      return list;
    };
    EXPECT_EQ(causes(merged(rank, true, false)),
              (std::vector<std::string>{"topk topk_indices itself 2",
                                        "dcp_topk_merge topk_indices inputs 2"}));
    const auto both = causes(merged(rank, true, true));
    EXPECT_EQ(std::count(both.begin(), both.end(), "dcp_topk_merge rank_indices given 1"), 1);
    EXPECT_EQ(std::count(both.begin(), both.end(), "dcp_topk_merge rank_scores given 1"), 1);
  }
}

TEST_F(BisectTest, AnInputOfOneFileAloneIsBadInput) {
  const TinyRecording sound = testing::logits_recording();
  TinyRecording other = sound;
  other.operations.at("index_logits_prefill").inputs["column_origin"] =
      testing::tiny::tensor(Dtype::int32, {5}, std::vector<std::int32_t>(5, 0));
  const auto refused = bisect(sound, &other);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.status().what().find("inputs/column_origin: found none and the tensor"),
            std::string::npos)
      << refused.status().what();
}

} // namespace
} // namespace dsakit::harness
