#include "dsakit/harness/bench.hpp"

#include <algorithm>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "bench/measure.hpp"
#include "bench/problem.hpp"
#include "bench/resources.hpp"
#include "bench/work.hpp"
#include "replay_fixture.hpp"

namespace dsakit::harness {
namespace {

/// A sampler that counts what it was asked for.
struct Counting {
  int asked = 0;

  BenchSampler sampler() {
    return [this](const std::string&, int samples,
                  const std::function<Result<double>()>& once) -> Result<std::vector<double>> {
      ++asked;
      std::vector<double> times;
      for (int i = 0; i < samples; ++i) {
        const auto us = once();
        DSAKIT_TRY(us);
        times.push_back(*us);
      }
      return times;
    };
  }
};

BenchRequest request(const std::string& operation, const BenchDims& shape) {
  const auto complete = complete_shape(operation, shape);
  EXPECT_TRUE(complete) << complete.status().what();
  return {operation, complete ? *complete : BenchDims{}, "", 0, 0};
}

BenchProblem problem(const std::string& operation, const BenchDims& shape, std::uint64_t seed = 0) {
  auto made = generate(operation, request(operation, shape).shape, {}, seed);
  EXPECT_TRUE(made) << made.status().what();
  return made ? std::move(*made) : BenchProblem{};
}

std::string refusal(const std::string& operation, const std::string& shape) {
  const auto requests = requests_by_shape(operation, shape);
  EXPECT_FALSE(requests);
  return requests ? "" : requests.status().what();
}

TEST(BenchShape, RefusalsNameTheValueFoundAndTheOneWanted) {
  EXPECT_EQ(refusal("topk", "row=3"), "topk: found dimension 'row', want rows, keys, k, input");
  EXPECT_EQ(refusal("topk", "rows=0"), "topk: rows: found '0', want a whole number from 1 to 2^30");
  EXPECT_EQ(refusal("topk", "rows=12x"),
            "topk: rows: found '12x', want a whole number from 1 to 2^30");
  EXPECT_EQ(refusal("topk", "rows"), "--shape: found 'rows', want KEY=VALUE[,KEY=VALUE...]");
  EXPECT_EQ(refusal("topk", "rows=1,rows=2"), "--shape: found 'rows' twice, want once");
  EXPECT_EQ(refusal("topk", "input=nice"),
            "topk: input: found 'nice', want normal|narrow|constant|huge|sparse|inf_tail|sorted");
  EXPECT_NE(refusal("top", "").find("'top' matches no operation, want one of qkv_a_proj"),
            std::string::npos);
  EXPECT_NE(refusal("(", "").find("want a regular expression"), std::string::npos);
}

TEST(BenchShape, ARegexIsOfWholeNamesAndDefaultsFillTheRest) {
  const auto requests = requests_by_shape("index_logits_.*", "heads=3");
  ASSERT_TRUE(requests);
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[1].operation, "index_logits_decode");
  EXPECT_EQ((*requests)[1].shape.at("heads"), "3");
  EXPECT_EQ((*requests)[1].shape.at("lengths"), "even");
}

TEST(BenchShape, ValuesAreAFunctionOfTheSeed) {
  const BenchDims shape = {{"rows", "2"}, {"keys", "50"}, {"k", "8"}};
  const auto one = problem("topk", shape, 1), again = problem("topk", shape, 1),
             other = problem("topk", shape, 2);
  const auto& logits = one.tensors.inputs.at("logits").tensor.bytes;
  EXPECT_EQ(logits, again.tensors.inputs.at("logits").tensor.bytes);
  EXPECT_NE(logits, other.tensors.inputs.at("logits").tensor.bytes);
}

TEST(BenchShape, HardInputsAreWhatTheyAreCalled) {
  const auto logits = [](const std::string& input) {
    const auto made =
        problem("topk", {{"rows", "1"}, {"keys", "1000"}, {"k", "8"}, {"input", input}});
    const auto* values = made.tensors.inputs.at("logits").tensor.as<float>();
    return std::vector<float>(values, values + 1000);
  };
  const auto constant = logits("constant"), sparse = logits("sparse"), tail = logits("inf_tail"),
             huge = logits("huge"), narrow = logits("narrow"), sorted = logits("sorted");
  EXPECT_EQ(std::count(constant.begin(), constant.end(), 1.0F), 1000);
  EXPECT_NEAR(static_cast<double>(std::count(sparse.begin(), sparse.end(), 0.0F)), 875, 60);
  EXPECT_EQ(std::count(tail.begin(), tail.end(), -std::numeric_limits<float>::infinity()), 500);
  EXPECT_GT(*std::max_element(huge.begin(), huge.end()), 65504.0F);
  EXPECT_LT(*std::max_element(narrow.begin(), narrow.end()), 1.01F);
  EXPECT_TRUE(std::is_sorted(sorted.rbegin(), sorted.rend()));
}

TEST(BenchShape, UnevenLengthsReachFromASixteenthToTheContext) {
  const auto made = problem("index_logits_decode", {{"requests", "64"},
                                                    {"context", "1600"},
                                                    {"heads", "1"},
                                                    {"next_n", "2"},
                                                    {"lengths", "uneven"}});
  const Tensor& lens = made.tensors.inputs.at("row_lens").tensor;
  ASSERT_EQ(lens.elements(), 128);
  const auto* values = lens.as<std::int32_t>();
  EXPECT_GE(*std::min_element(values, values + 128), 99);
  EXPECT_LE(*std::max_element(values, values + 128), 1600);
  EXPECT_GT(*std::max_element(values, values + 128) - *std::min_element(values, values + 128), 800);
  for (int row = 0; row < 128; row += 2)
    EXPECT_EQ(values[row] + 1, values[row + 1]);
}

TEST(BenchShape, IndexSetsAreDistinctAndLocalOnesAreTheLast) {
  const auto positions = [](const std::string& sets) {
    const auto made =
        problem("topk_slots", {{"rows", "20"}, {"context", "700"}, {"k", "600"}, {"sets", sets}});
    const Tensor& ids = made.tensors.inputs.at("topk_indices").tensor;
    return std::vector<std::int32_t>(ids.as<std::int32_t>(), ids.as<std::int32_t>() + 20 * 600);
  };
  for (const char* sets : {"random", "sorted", "shared", "local"}) {
    const auto ids = positions(sets);
    for (int row = 0; row < 20; ++row) {
      std::vector<std::int32_t> one(ids.begin() + row * 600, ids.begin() + (row + 1) * 600);
      EXPECT_EQ(std::is_sorted(one.begin(), one.end()), std::string(sets) != "random") << sets;
      std::sort(one.begin(), one.end());
      EXPECT_EQ(std::unique(one.begin(), one.end()), one.end()) << sets;
      EXPECT_GE(one.front(), std::string(sets) == "local" ? 100 : 0);
      EXPECT_LT(one.back(), 700);
    }
    const bool alike = std::equal(ids.begin(), ids.begin() + 600, ids.begin() + 15 * 600);
    EXPECT_EQ(alike, std::string(sets) == "shared" || std::string(sets) == "local") << sets;
  }
}

TEST(BenchShape, AProblemThatDoesNotFitIsRefusedBeforeItIsMade) {
  const auto made =
      generate("topk", request("topk", {{"rows", "1000000"}, {"keys", "1000000"}}).shape, {}, 0);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.status().code(), Code::unsupported) << "here; another machine may hold it";
  EXPECT_NE(made.status().what().find("found tensors of 40"), std::string::npos)
      << made.status().what();
}

TEST(BenchWorkTest, BytesAndFlopsAreCountedAsTheirFormulasSay) {
  const auto topk = work_of(problem("topk", {{"rows", "2"}, {"keys", "100"}, {"k", "8"}}));
  EXPECT_EQ(topk.bytes, 2 * 100 * 4 + 2 * 4 + 2 * 8 * 4);
  EXPECT_EQ(topk.flops, 0);
  EXPECT_NE(topk.bytes_formula.find("logits inside their rows 200 x 4"), std::string::npos);

  const auto decode =
      work_of(problem("index_logits_decode",
                      {{"requests", "2"}, {"context", "128"}, {"heads", "3"}, {"next_n", "2"}}));
  const double scored = 2 * (127 + 128);
  EXPECT_EQ(decode.flops, scored * 3 * 2 * 128);
  EXPECT_EQ(decode.bytes, 4 * 3 * 128.0     // queries
                              + 4 * 3 * 4   // weights
                              + 2 * 2 * 4   // block table
                              + 4 * 4 * 2   // lengths, requests of rows
                              + 256 * 132.0 // keys, once a request
                              + scored * 4);

  const auto attention = work_of(
      problem("sparse_attention", {{"rows", "2"}, {"context", "64"}, {"heads", "4"}, {"k", "10"}}));
  EXPECT_EQ(attention.flops, 2 * 10 * 4 * 2.0 * (576 + 512));
  EXPECT_EQ(attention.bytes, 20 * 656.0 + 2 * 4 * 576 * 2 + 20 * 4 + 2 * 4 * 512 * 2 + 2 * 4 * 4);

  const auto write = work_of(problem("mla_cache_write", {{"tokens", "5"}}));
  EXPECT_EQ(write.bytes, 5 * (512 + 64) * 2.0 + 5 * 8 + 5 * 656);
}

TEST(BenchWorkTest, TheLimitIsTheRateThatTakesLongest) {
  const auto prefill =
      problem("index_logits_prefill", {{"rows", "64"}, {"keys", "512"}, {"heads", "64"}});
  const BenchWork work = {4210e3, 1303e6 * 3, "", ""}; // 1 us of bytes, 3 us of fp8
  const auto limit = limit_of(prefill, work, "NVIDIA H200");
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->name, "H200, measured fp8");
  EXPECT_TRUE(limit->compute);
  EXPECT_NEAR(limit->time_us, 3, 1e-9);
  const auto copy = limit_of(prefill, {8420e3, 1303e6, "", ""}, "NVIDIA H200");
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->name, "H200, measured copy");
  EXPECT_NEAR(copy->time_us, 2, 1e-9);
  EXPECT_FALSE(limit_of(prefill, work, "host lanes (gfx942 model)"));
}

TEST(BenchTest, AKernelThatPassesIsTimedHotAndCold) {
  Counting counting;
  Rules rules = Rules::built_in();
  BenchOptions options;
  options.samples = 3;
  const auto report = bench(options, {request("topk", {{"rows", "2"}, {"keys", "64"}, {"k", "8"}})},
                            rules, counting.sampler());
  ASSERT_TRUE(report) << report.status().what();
  ASSERT_EQ(report->rows.size(), 1u);
  const BenchRow& row = report->rows[0];
  EXPECT_EQ(row.verdict, Verdict::pass) << row.reason;
  EXPECT_EQ(row.kernel, "radix64");
  EXPECT_EQ(row.gate, "2 of 2 rows");
  EXPECT_EQ(counting.asked, 2);
  ASSERT_TRUE(row.hot && row.cold);
  EXPECT_EQ(row.hot->samples.size(), 3u);
  EXPECT_EQ(row.hot->copies, 1);
  EXPECT_EQ(row.cold->copies, 16); // as many as host lanes get
  EXPECT_FALSE(row.graph);
  EXPECT_FALSE(row.reference);
  EXPECT_EQ(row.code_hash.size(), 64u);
  EXPECT_EQ(report->exit_code(), 0);
}

TEST(BenchTest, AKernelWhoseGateFailsIsNeverTimed) {
  Counting counting;
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.add_override("index_logits_decode/logits=exact")); // fp32 sums are not
  const auto report = bench({},
                            {request("index_logits_decode", {{"requests", "2"}, {"context", "64"}}),
                             request("topk", {{"rows", "2"}, {"keys", "64"}, {"k", "8"}})},
                            rules, counting.sampler());
  ASSERT_TRUE(report) << report.status().what();
  ASSERT_EQ(report->rows.size(), 2u);
  EXPECT_EQ(report->rows[0].verdict, Verdict::fail);
  EXPECT_NE(report->rows[0].reason.find("logits: "), std::string::npos);
  EXPECT_FALSE(report->rows[0].hot);
  EXPECT_EQ(counting.asked, 2); // of the other row alone
  EXPECT_EQ(report->exit_code(), 1);
  EXPECT_NE(to_text(*report, {}).find("reproduce: dsakit bench --op index_logits_decode"),
            std::string::npos);
}

TEST(BenchTest, WhatDoesNotFitIsARowAndTheOthersAreTimed) {
  Counting counting;
  Rules rules = Rules::built_in();
  const auto report = bench({},
                            {request("topk", {{"rows", "1000000"}, {"keys", "1000000"}}),
                             request("topk", {{"rows", "2"}, {"keys", "64"}, {"k", "8"}})},
                            rules, counting.sampler());
  ASSERT_TRUE(report) << report.status().what();
  ASSERT_EQ(report->rows.size(), 2u);
  EXPECT_EQ(report->rows[0].verdict, Verdict::unsupported);
  EXPECT_NE(report->rows[0].reason.find("GB, want at most"), std::string::npos);
  EXPECT_EQ(report->rows[0].problem.at("keys"), "1000000");
  EXPECT_EQ(report->rows[1].verdict, Verdict::pass);
  EXPECT_EQ(report->exit_code(), 3);
}

TEST(BenchTest, OfManyRowsTheGateTakesSomeWithTheFirstAndTheLast) {
  for (const std::uint64_t seed : {0, 1, 2}) {
    const auto rows = gate_rows(4096, {1e6, 4e11, "", ""}, seed); // a hundredth of the work fits
    ASSERT_EQ(rows.size(), 40u);
    EXPECT_EQ(rows.front(), 0);
    EXPECT_EQ(rows.back(), 4095);
    EXPECT_EQ(std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()), rows.end());
  }
  EXPECT_NE(gate_rows(4096, {1e6, 4e11, "", ""}, 1), gate_rows(4096, {1e6, 4e11, "", ""}, 2));
  EXPECT_EQ(gate_rows(4096, {64e9, 1, "", ""}, 0).size(), 4u);
  EXPECT_EQ(gate_rows(3, {64e9, 1e15, "", ""}, 0), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(gate_rows(1, {8, 0, "", ""}, 0), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(gate_rows(100, {1e6, 0, "", ""}, 0).size(), 100u);
}

TEST(BenchTest, AConfigurationThatNoKernelListsIsRefused) {
  Counting counting;
  Rules rules = Rules::built_in();
  BenchOptions options;
  const auto refusal = [&](const std::string& operation) {
    const auto report = bench(options, {request(operation, {})}, rules, counting.sampler());
    EXPECT_EQ(report.status().code(), Code::bad_input);
    return report.status().what();
  };
  options.configuration = {{"tile", 64}};
  EXPECT_EQ(refusal("topk"), "--configuration: found tile, want one of lanes for topk");
  EXPECT_EQ(refusal("o_proj").find("--configuration: found o_proj, which has nothing to tune"), 0u);
  options.configuration = {{"lanes", 300}};
  EXPECT_EQ(refusal("topk").find("--configuration: lanes: found 300, which no kernel"), 0u);
}

TEST(BenchTest, TheConfigurationThatIsAskedForRuns) {
  Counting counting;
  Rules rules = Rules::built_in();
  BenchOptions options;
  options.samples = 1;
  for (const std::int32_t lanes : {0, 256, 1024}) {
    options.configuration = {{"lanes", lanes}};
    const auto report =
        bench(options, {request("topk", {{"rows", "3"}, {"keys", "300"}, {"k", "64"}})}, rules,
              counting.sampler());
    ASSERT_TRUE(report) << report.status().what();
    const BenchRow& row = report->rows.at(0);
    EXPECT_EQ(row.verdict, Verdict::pass) << row.reason;
    EXPECT_EQ(row.ran, (optimized::Configuration{{"lanes", lanes == 0 ? 512 : lanes}}));
    EXPECT_EQ(row.configuration.at("lanes"), lanes == 0 ? "default" : std::to_string(lanes));
    EXPECT_EQ(row.problem_class, "rows=4 columns=512 k=64");
  }
}

class BenchTile : public testing::ReplayTest {};

/// What the reference makes of a tiled recording is what it made of it before, again and again: the
/// repetitions read pages of their own that hold the same.
TEST_F(BenchTile, EveryRepetitionGivesWhatTheRecordingGave) {
  testing::tiny_recording().write(path("tiny.h5"));
  const auto requests = requests_of_recording(path("tiny.h5"), "", 0);
  ASSERT_TRUE(requests) << requests.status().what();
  ASSERT_EQ(requests->size(), 3u);
  for (const BenchRequest& once : *requests) {
    BenchRequest more = once;
    more.tile = 12;
    const auto recorded = make_problem(once, {}), tiled = make_problem(more, {});
    ASSERT_TRUE(recorded) << recorded.status().what();
    ASSERT_TRUE(tiled) << tiled.status().what();
    const OperationAdapter& adapter = *find_adapter(once.operation);
    const auto want = adapter.reference(recorded->data()), got = adapter.reference(tiled->data());
    ASSERT_TRUE(want) << want.status().what();
    ASSERT_TRUE(got) << once.operation << ": " << got.status().what();
    for (std::size_t i = 0; i < want->size(); ++i) {
      const auto& one = (*want)[i].value.tensor.bytes;
      const auto& all = (*got)[i].value.tensor.bytes;
      ASSERT_GE(all.size(), 2 * one.size()) << once.operation;
      for (std::size_t at = 0; at < all.size(); ++at)
        ASSERT_EQ(all[at], one[at % one.size()]) << once.operation << " byte " << at;
    }
    const auto cache = tiled->tensors.inputs.find("index_cache");
    ASSERT_NE(cache, tiled->tensors.inputs.end());
    EXPECT_GT(cache->second.tensor.shape[0],
              recorded->tensors.inputs.at("index_cache").tensor.shape[0]);
  }
}

TEST_F(BenchTile, RepetitionsPointToPagesOfTheirOwn) {
  testing::tiny_recording().write(path("tiny.h5"));
  const auto requests = requests_of_recording(path("tiny.h5"), "index_logits_decode", 7);
  ASSERT_TRUE(requests) << requests.status().what();
  const auto tiled = make_problem(requests->at(0), {});
  ASSERT_TRUE(tiled) << tiled.status().what();
  const auto ids = [&](const char* name) {
    const Tensor& tensor = tiled->tensors.inputs.at(name).tensor;
    return std::vector<std::int32_t>(tensor.as<std::int32_t>(),
                                     tensor.as<std::int32_t>() + tensor.elements());
  };
  EXPECT_EQ(ids("row_request"), (std::vector<std::int32_t>{0, 1, 1, 2, 3, 3, 4}));
  EXPECT_EQ(ids("block_table"), (std::vector<std::int32_t>{1, 3, 2, 0, 5, 7, 6, 4, 9, 11, 10, 8}));
  EXPECT_EQ(tiled->dims.at("tile"), "7");
  EXPECT_EQ(tiled->dims.at("recording"), "tiny.h5");
}

TEST_F(BenchTile, RowsOfNoRequestDoNotShiftTheNextRepetition) {
  testing::TinyRecording recording = testing::tiny_recording();
  auto& gather = recording.operations.at("index_cache_gather");
  for (const char* name : {"k_fp8", "k_scale"}) { // two rows more than the requests have tokens
    Tensor& rows = gather.outputs.at(name).tensor;
    rows.bytes.resize(rows.bytes.size() / 5 * 7);
    rows.shape[0] = 7;
  }
  recording.write(path("tiny.h5"));
  const auto requests = requests_of_recording(path("tiny.h5"), "index_cache_gather", 10);
  ASSERT_TRUE(requests) << requests.status().what();
  const auto tiled = make_problem(requests->at(0), {});
  ASSERT_TRUE(tiled) << tiled.status().what();
  const Tensor& ends = tiled->tensors.inputs.at("cu_seq_lens").tensor;
  EXPECT_EQ(std::vector<std::int32_t>(ends.as<std::int32_t>(), ends.as<std::int32_t>() + 5),
            (std::vector<std::int32_t>{0, 2, 5, 7, 10}));
  EXPECT_EQ(tiled->tensors.outputs.at("k_fp8").tensor.shape, (Shape{10, 128}));
}

TEST_F(BenchTile, ARecordingIsTimedWithItsReference) {
  testing::tiny_recording().write(path("tiny.h5"));
  const auto requests = requests_of_recording(path("tiny.h5"), "index_logits_decode", 6);
  ASSERT_TRUE(requests) << requests.status().what();
  Counting counting;
  Rules rules = Rules::built_in();
  const auto report = bench({}, *requests, rules, counting.sampler());
  ASSERT_TRUE(report) << report.status().what();
  const BenchRow& row = report->rows.at(0);
  EXPECT_EQ(row.verdict, Verdict::pass) << row.reason;
  ASSERT_TRUE(row.reference);
  EXPECT_GT(row.reference->median_us, 0);
  EXPECT_NE(to_text(*report, {}).find("rows/s: reference "), std::string::npos);
  EXPECT_NE(to_text(*report, {}).find("they are no kernel times"), std::string::npos);
}

TEST_F(BenchTile, AnOperationThatTheFileHasNotIsNamed) {
  testing::tiny_recording().write(path("tiny.h5"));
  const auto requests = requests_of_recording(path("tiny.h5"), "topk", 0);
  ASSERT_FALSE(requests);
  EXPECT_EQ(requests.status().code(), Code::no_device) << "nothing can run, as without a device";
  EXPECT_EQ(requests_of_recording(path("tiny.h5"), "topkk", 0).status().code(), Code::bad_input);
  EXPECT_EQ(requests.status().what(), path("tiny.h5") +
                                          ": holds no operation 'topk', but index_cache_write, "
                                          "index_cache_gather, index_logits_decode");
}

TEST(BenchResources, ACodeObjectSaysWhatItsKernelsNeed) {
  Counting counting;
  const auto made = problem("topk", {{"rows", "1"}, {"keys", "64"}, {"k", "8"}});
  const auto device = optimized::open_device(optimized::DeviceKind::host);
  ASSERT_TRUE(device);
  const auto measured = measure(made, **device, 2, 0, counting.sampler());
  ASSERT_TRUE(measured) << measured.status().what();
  ASSERT_FALSE(measured->symbols.empty());
  const auto resources = kernel_resources(optimized::Arch::gfx942, measured->symbols);
  if (resources.empty()) GTEST_SKIP() << "this build has no gfx942 code objects";
  EXPECT_GT(resources.at("vgprs"), 0);
  EXPECT_EQ(resources.at("spills"), 0);
  EXPECT_GT(resources.at("lds"), 0);
  const auto hash =
      code_hash(optimized::DeviceKind::hip, optimized::Arch::gfx942, measured->symbols);
  ASSERT_TRUE(hash);
  EXPECT_EQ(hash->size(), 64u);
  EXPECT_TRUE(kernel_resources(optimized::Arch::gfx942, {"no_such_kernel"}).empty());
  const Measurement copy = parse_measurement(serialise(*measured));
  EXPECT_EQ(copy.kernel, measured->kernel);
  EXPECT_EQ(copy.symbols, measured->symbols);
  EXPECT_EQ(copy.cold.samples, measured->cold.samples);
  EXPECT_EQ(copy.cold.copies, measured->cold.copies);
}

} // namespace
} // namespace dsakit::harness
