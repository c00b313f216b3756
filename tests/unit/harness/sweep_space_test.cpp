// Spaces of a sweep: what they expand to, and that what is wrong is named with its place.
#include <gtest/gtest.h>

#include "dsakit/harness/sweep.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_topk.hpp"
#include "sweep/constraint.hpp"

namespace dsakit::harness {
namespace {

class SweepSpaceTest : public ::testing::Test {
protected:
  testing::TempFolder folder_;
  const std::string path_ = folder_ / "space.json";

  Result<SweepSpace> read(const std::string& text) {
    std::ofstream(path_, std::ios::trunc) << text;
    return read_sweep_space(path_);
  }
  /// Of one sweep with these members.
  Result<SweepSpace> read_sweep(const std::string& members) {
    return read(R"({"schema": "dsakit.sweep-space/1", "sweeps": [{)" + members + "}]}");
  }
  /// The message behind the file's name.
  std::string refusal(const Result<SweepSpace>& space) {
    EXPECT_EQ(space.status().code(), Code::bad_input);
    const std::string what = space.status().what();
    EXPECT_EQ(what.find(path_ + ": "), 0u) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos);
    return what.substr(std::min(what.size(), path_.size() + 2));
  }
};

constexpr const char* kTopkProblem =
    R"("problems": [{"operation": "topk", "shape": {"rows": [1, 64], "k": 2048, "input": "narrow"}}])";

TEST_F(SweepSpaceTest, ProblemsTimesAxesEachWithItsDefaultFirst) {
  const auto space = read_sweep(std::string(kTopkProblem) + R"(, "axes": {"lanes": [256, 1024]})");
  ASSERT_TRUE(space) << space.status().what();
  std::vector<std::string> found;
  for (const SweepCandidate& candidate : space->candidates) {
    found.push_back(candidate.problem + optimized::configuration_text(candidate.configuration));
    EXPECT_EQ(candidate.operation, "topk");
  }
  const std::string one = R"({"operation":"topk","shape":{"input":"narrow","k":2048,"rows":1}})";
  const std::string many = R"({"operation":"topk","shape":{"input":"narrow","k":2048,"rows":64}})";
  EXPECT_EQ(found, (std::vector<std::string>{one + "lanes=default", one + "lanes=256",
                                             one + "lanes=1024", many + "lanes=default",
                                             many + "lanes=256", many + "lanes=1024"}));
  EXPECT_TRUE(space->candidates[3].is_default());
  EXPECT_FALSE(space->candidates[4].is_default());
  EXPECT_EQ(space->candidates[5].arguments,
            (std::vector<std::string>{"--op", "topk", "--shape", "input=narrow,k=2048,rows=64",
                                      "--configuration", "lanes=1024"}));
}

TEST_F(SweepSpaceTest, ConstraintsLeaveOutAllButTheDefault) {
  const auto space = read_sweep(
      R"("problems": [{"operation": "sparse_attention", "shape": {"k": [64, 2048]}}],
         "axes": {"splits": [1, 2, 4, 64]}, "constraints": ["splits*32 <= k", "splits != 1"])");
  ASSERT_TRUE(space) << space.status().what();
  EXPECT_EQ(space->excluded, 2 + 1 + 1);
  EXPECT_EQ(space->candidates.size(), std::size_t{2 + 4});
}

TEST_F(SweepSpaceTest, ARecordingIsKnownByItsContents) {
  testing::tiny_topk(0).write(folder_ / "a.h5");
  const std::string members =
      R"("problems": [{"operation": "topk", "recording": "a.h5", "tile": 64}], "axes": {"lanes": 512})";
  const auto space = read_sweep(members);
  ASSERT_TRUE(space) << space.status().what();
  const SweepCandidate& candidate = space->candidates[1];
  EXPECT_EQ(candidate.problem.find(folder_ / ""), std::string::npos) << "no path in a key";
  EXPECT_EQ(candidate.arguments,
            (std::vector<std::string>{folder_ / "a.h5", "--op", "topk", "--tile", "rows=64",
                                      "--configuration", "lanes=512"}));
  testing::tiny_topk(1).write(folder_ / "a.h5");
  EXPECT_NE(read_sweep(members)->candidates[1].problem, candidate.problem);
}

TEST_F(SweepSpaceTest, AProblemThatBenchDoesNotTakeIsFoundBeforeTheFirstIsRun) {
  const auto second = [&](const std::string& problem) {
    const std::string what =
        refusal(read_sweep(R"("problems": [{"operation": "topk", "shape": {"rows": 1}}, )" +
                           problem + R"(], "axes": {"lanes": 512})"));
    EXPECT_EQ(what.find("sweeps[0]: problems[1]: "), 0u) << what;
    return what.substr(std::min<std::size_t>(what.size(), 24));
  };
  EXPECT_EQ(second(R"({"operation": "topk", "shape": {"rowz": 1}})"),
            "topk: found dimension 'rowz', want rows, keys, k, input");
  EXPECT_EQ(second(R"({"operation": "topk", "shape": {"input": "nice"}})"),
            "topk: input: found 'nice', want normal|narrow|constant|huge|sparse|inf_tail|sorted");
  testing::tiny_recording().write(folder_ / "a.h5");
  EXPECT_NE(
      second(R"({"operation": "topk", "recording": "a.h5"})").find("holds no operation 'topk'"),
      std::string::npos);
  std::ofstream(folder_ / "b.h5") << "no recording";
  EXPECT_NE(second(R"({"operation": "topk", "recording": "b.h5"})").find("b.h5: "),
            std::string::npos);
  // Room is a matter of the moment: that is a candidate's result.
  EXPECT_TRUE(read_sweep(R"("problems": [{"operation": "topk", "shape": {"rows": 1000000,
                         "keys": 1000000}}], "axes": {"lanes": 512})"));
}

TEST_F(SweepSpaceTest, ALibrarysKernelIsSweptOverWhateverItTakesOrAsItIs) {
  const std::string problem = R"("problems": [{"operation": "output_gate", "shape": {"rows": 1}}])";
  std::ofstream(path_)
      << R"({"schema": "dsakit.sweep-space/1", "sweeps": [{)" + problem +
             R"(}, {"problems": [{"operation": "output_gate", "shape": {"rows": 2}},
                              {"operation": "topk", "shape": {"rows": 1}}],
                              "axes": {"lanes": [256]}}]})";
  const auto space = read_sweep_space(path_, {"output_gate"});
  ASSERT_TRUE(space) << space.status().what();
  ASSERT_EQ(space->candidates.size(), 5u);
  EXPECT_TRUE(space->candidates[0].configuration.empty());
  EXPECT_EQ(space->candidates[0].arguments,
            (std::vector<std::string>{"--op", "output_gate", "--shape", "rows=1"}));
  EXPECT_EQ(space->candidates[2].configuration, (optimized::Configuration{{"lanes", 256}}));
  EXPECT_TRUE(space->candidates[2].foreign);
  EXPECT_FALSE(space->candidates[4].foreign);
  EXPECT_NE(refusal(read_sweep(problem)).find("axes: found none"), std::string::npos)
      << "ours has nothing to sweep without them";
}

TEST_F(SweepSpaceTest, WhatIsWrongIsNamedWithItsPlace) {
  EXPECT_EQ(refusal(read("{")).find("line 1, column 2 (byte 2): found no valid JSON, want some"),
            0u);
  EXPECT_EQ(refusal(read("[]")), "schema: found another, want dsakit.sweep-space/1");
  EXPECT_EQ(refusal(read(R"({"schema": "dsakit.sweep-space/1"})")),
            "sweeps: found no list with sweeps, want one");
  EXPECT_EQ(refusal(read(R"({"schema": "dsakit.sweep-space/1", "sweeps": [], "sweeps": []})")),
            "found the key 'sweeps' twice, want it once");
  const std::string axes = R"(, "axes": {"lanes": [512]})";
  const std::string problem = std::string(kTopkProblem) + axes;
  const auto of_sweep = [&](const std::string& members) {
    const std::string what = refusal(read_sweep(members));
    EXPECT_EQ(what.find("sweeps[0]: "), 0u) << what;
    return what.substr(std::min<std::size_t>(what.size(), 11));
  };
  EXPECT_EQ(of_sweep(kTopkProblem), "axes: found none, want an object with names and values");
  EXPECT_EQ(of_sweep(R"("axes": {"lanes": 512})"),
            "problems: found no list with problems, want one");
  EXPECT_EQ(of_sweep(problem + R"(, "axis": 1)").find("found key \"axis\""), 0u);
  EXPECT_EQ(of_sweep(std::string(kTopkProblem) + R"(, "axes": {"lanes": []})"),
            "axes: lanes: found an empty list, want at least one value");
  EXPECT_EQ(of_sweep(std::string(kTopkProblem) + R"(, "axes": {"lanes": [512, 512]})"),
            "axes: lanes: found a value twice in '[512,512]', want it once");
  for (const char* value : {"-1", "0", "1.5", "\"512\"", "1e30", "[[1]]", "null"})
    EXPECT_NE(of_sweep(std::string(kTopkProblem) + R"(, "axes": {"lanes": [)" + value + "]}")
                  .find("want whole numbers from 1 to 2^40"),
              std::string::npos)
        << value;
  EXPECT_EQ(of_sweep(std::string(kTopkProblem) + R"(, "axes": {"waves": 4})"),
            "problems[0]: axes: found waves, want one of lanes for topk");
  EXPECT_EQ(of_sweep(std::string(kTopkProblem) + R"(, "axes": {"lanes": 300})"),
            "problems[0]: axes: lanes: found 300, which no kernel of topk lists (dsakit doctor "
            "does)");
  EXPECT_NE(of_sweep(R"("problems": [{"operation": "tpok", "shape": {"k": 1}}])" + axes)
                .find("found tpok, which has nothing to tune, want one of"),
            std::string::npos);
  EXPECT_EQ(of_sweep(R"("problems": [{"operation": "topk"}])" + axes),
            "problems[0]: found both or none of shape and recording, want one of them");
  EXPECT_EQ(of_sweep(R"("problems": [{"operation": "topk", "shape": {"k": "a,b=1"}}])" + axes),
            "problems[0]: shape: k: found '\"a,b=1\"', want whole numbers from 1 to 2^40 or words");
  EXPECT_NE(
      of_sweep(R"("problems": [{"operation": "topk", "recording": "no.h5"}])" + axes).find("no.h5"),
      std::string::npos);
  EXPECT_NE(of_sweep(problem + R"(, "constraints": ["lanes <= heads"])")
                .find("constraints[0]: found 'heads', want a number or one of k, lanes, rows"),
            std::string::npos);
  EXPECT_EQ(of_sweep(problem + R"(, "constraints": "lanes < 3")"),
            "constraints: found no list, want one");
  EXPECT_EQ(of_sweep(R"("problems": [{"operation": "topk", "shape": {"lanes": 3}}])" + axes),
            "problems[0]: found lanes as an axis and in the shape, want it once");
  const std::string list = "[1,2,3,4,5,6,7,8,9,10,11,12]";
  std::string shape;
  for (const char* name : {"a", "b", "c", "d", "e", "f"})
    shape += (shape.empty() ? "\"" : ", \"") + std::string(name) + "\": " + list;
  EXPECT_EQ(of_sweep(R"("problems": [{"operation": "topk", "shape": {)" + shape + "}}]" + axes),
            "problems[0]: shape: found more than 1000000 combinations, want fewer");
  EXPECT_NE(refusal(read(R"({"schema": "dsakit.sweep-space/1", "sweeps": [{)" + problem + "}, {" +
                         problem + "}]}"))
                .find("sweeps[1]: found {"),
            std::string::npos);
}

TEST(SweepConstraint, ComparesProducts) {
  const std::map<std::string, std::int64_t, std::less<>> values = {{"a", 4}, {"b", 3}};
  for (const char* yes : {"a*3 == b*4", "a > b", "b<a", "a>=4", "a <= 2 * 2", "a!=b", "0 < a*b*7"})
    EXPECT_TRUE(*harness::holds(yes, values)) << yes;
  for (const char* no : {"a*3 != b*4", "a < b", "b>=a", "a<4", "a == b"})
    EXPECT_FALSE(*harness::holds(no, values)) << no;
  for (const char* bad : {"", "a", "a = b", "a ! b", "a*", "a < ", "c < 1", "a < -1", "a < b < 1",
                          "a*4611686018427387904 > 1"})
    EXPECT_EQ(harness::holds(bad, values).status().code(), Code::bad_input) << bad;
}

} // namespace
} // namespace dsakit::harness
