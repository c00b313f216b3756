// A golden folder: its bytes are fixed, and change only by a proposal and an acceptance.
#include "dsakit/harness/golden.hpp"

#include <filesystem>

#include <gtest/gtest.h>

#include "support/temp_folder.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

class Golden : public ::testing::Test {
protected:
  void SetUp() override {
    std::filesystem::create_directories(root_ + "/data");
    write_file(manifest_, R"({"schema": "dsakit-golden/1", "entries": []})");
    tiny_recording().write(folder_ / "candidate.h5");
    ASSERT_TRUE(propose_golden(root_, "tiny", folder_ / "candidate.h5"));
    ASSERT_TRUE(accept_golden(root_, first_));
  }

  Status check() const { return check_golden(root_); }

  TempFolder folder_;
  const std::string root_ = folder_ / "golden";
  const std::string manifest_ = root_ + "/manifest.json";
  const GoldenAcceptance first_ = {"tiny", "first", "someone", "a tiny recording",
                                   "tiny_recording"};
};

TEST_F(Golden, AnAcceptedRecordingIsListedAndInPlace) {
  EXPECT_TRUE(check()) << check().what();
  EXPECT_EQ(read_file(root_ + "/data/tiny.h5"), read_file(folder_ / "candidate.h5"));
  const std::string text = read_file(manifest_);
  for (const char* said : {"\"reason\": \"first\"", "\"reviewer\": \"someone\"", "tiny_recording"})
    EXPECT_NE(text.find(said), std::string::npos) << text;
  EXPECT_FALSE(std::filesystem::exists(root_ + "/proposed/tiny.h5"));
}

TEST_F(Golden, OneChangedByteIsNamed) {
  std::string bytes = read_file(root_ + "/data/tiny.h5");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(root_ + "/data/tiny.h5", bytes);
  EXPECT_NE(check().what().find("data/tiny.h5: found sha256 "), std::string::npos)
      << check().what();
}

TEST_F(Golden, AFileThatIsMissingOrNotListedIsNamed) {
  write_file(root_ + "/data/more.h5", "x");
  EXPECT_NE(check().what().find("more.h5: found a file that"), std::string::npos) << check().what();
  std::filesystem::remove(root_ + "/data/more.h5");
  std::filesystem::remove(root_ + "/data/tiny.h5");
  EXPECT_NE(check().what().find("tiny.h5: cannot be opened: No such file"), std::string::npos)
      << check().what();
}

TEST_F(Golden, AProposalSaysWhatChangesAndChangesNothingElse) {
  TinyRecording changed = tiny_recording();
  changed.contract["index_k_floor"] = "2e-4";
  changed.output("index_cache_gather", "k_scale").as<float>()[3] *= 2;
  changed.write(folder_ / "candidate.h5");
  const std::string manifest = read_file(manifest_);
  const auto text = propose_golden(root_, "tiny", folder_ / "candidate.h5");
  ASSERT_TRUE(text) << text.status().what();
  EXPECT_NE(text->find("contract index_k_floor: 1e-4 -> 2e-4\n"), std::string::npos) << *text;
  EXPECT_NE(text->find("/outputs/k_scale: 1 of 5 elements change"), std::string::npos) << *text;
  EXPECT_NE(text->find("first [3] 0x"), std::string::npos) << *text;
  EXPECT_EQ(read_file(root_ + "/proposed/tiny.txt"), *text);
  EXPECT_EQ(read_file(manifest_), manifest);
  EXPECT_TRUE(check());

  GoldenAcceptance second = first_;
  second.reason = "the floor moved";
  ASSERT_TRUE(accept_golden(root_, second));
  EXPECT_TRUE(check());
  EXPECT_NE(read_file(manifest_).find("the floor moved"), std::string::npos);
}

TEST_F(Golden, OnlyTheNamedProposalIsTaken) {
  ASSERT_TRUE(propose_golden(root_, "other", folder_ / "candidate.h5"));
  GoldenAcceptance unknown = first_;
  unknown.id = "none";
  EXPECT_EQ(accept_golden(root_, unknown).code(), Code::bad_input);
  EXPECT_TRUE(std::filesystem::exists(root_ + "/proposed/other.h5"));
  EXPECT_TRUE(check());
}

/// Of an entry that is there, too: its old texts are of the old recording.
TEST_F(Golden, EveryTextOfAnAcceptanceIsNew) {
  ASSERT_TRUE(propose_golden(root_, "tiny", folder_ / "candidate.h5"));
  const auto refusal = [&](std::string GoldenAcceptance::* text) {
    GoldenAcceptance bare = first_;
    (bare.*text).clear();
    return accept_golden(root_, bare).what();
  };
  const std::string start = "golden accept: tiny: found no ";
  EXPECT_EQ(refusal(&GoldenAcceptance::reason), start + "--reason, want one");
  EXPECT_EQ(refusal(&GoldenAcceptance::reviewer), start + "--reviewer, want one");
  EXPECT_EQ(refusal(&GoldenAcceptance::what), start + "--what, want one");
  EXPECT_EQ(refusal(&GoldenAcceptance::made_by), start + "--made-by, want one");
  EXPECT_TRUE(std::filesystem::exists(root_ + "/proposed/tiny.h5"));

  GoldenAcceptance second = first_;
  second.what = "another tiny recording";
  ASSERT_TRUE(accept_golden(root_, second));
  const std::string text = read_file(manifest_);
  EXPECT_NE(text.find("\"another tiny recording\""), std::string::npos) << text;
  EXPECT_EQ(text.find("\"a tiny recording\""), std::string::npos) << text;
}

TEST_F(Golden, BadManifestsAndIdsAreRefused) {
  for (const char* id : {"", "../x", ".x", "a/b", "a b"})
    EXPECT_EQ(propose_golden(root_, id, folder_ / "candidate.h5").status().code(), Code::bad_input)
        << id;
  for (
      const char* text :
      {"", "[]", "{}", R"({"schema": "x", "entries": []})", R"({"schema": "dsakit-golden/1"})",
       R"({"schema": "dsakit-golden/1", "entries": [{"id": "a"}]})",
       R"({"schema": "dsakit-golden/1", "entries": [{"id": "a", "file": "../a.h5", "sha256": ""}]})"}) {
    write_file(manifest_, text);
    EXPECT_EQ(check().what().find(manifest_), 0U) << text << ": " << check().what();
  }
}

} // namespace
} // namespace dsakit::testing
