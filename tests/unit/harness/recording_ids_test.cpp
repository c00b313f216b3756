// Ids are judged when an operation is read (spec 11, "invalid ids"): what a kernel would follow
// must lie in the pool, what it never looks at may be anything.
#include "dsakit/harness/recording.hpp"

#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "support/temp_folder.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

class RecordingIds : public ::testing::Test {
protected:
  TempFolder folder_;
  const std::string path_ = folder_ / "x.h5";

  /// What reading `operation` says, without path and operation; "" if it reads.
  std::string read(const std::string& operation, const std::function<void(TinyRecording&)>& change,
                   const ContractValues& overridden = {}) {
    TinyRecording recording = tiny_recording();
    change(recording);
    recording.write(path_);
    auto reader = RecordingReader::open(path_);
    EXPECT_TRUE(reader) << reader.status().what();
    if (!reader) return "does not open";
    ContractValues contract = reader->contract();
    for (const auto& [key, value] : overridden)
      contract[key] = value;
    auto tensors = reader->read({0, operation}, contract);
    if (tensors) return "";
    EXPECT_EQ(tensors.status().code(), Code::bad_input);
    const std::string what = tensors.status().what();
    const std::string where = path_ + ": /steps/0/" + operation + "/";
    EXPECT_EQ(what.find(where), 0u) << what;
    return what.substr(where.size());
  }
};

TEST_F(RecordingIds, GoodRecordingReads) {
  for (const auto& [operation, tensors] : tiny_recording().operations)
    EXPECT_EQ(read(operation, [](TinyRecording&) {}), "");
}

TEST_F(RecordingIds, MissingOperationIsNamed) {
  tiny_recording().write(path_);
  auto reader = RecordingReader::open(path_);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->read({7, "topk"}, {}).status().what(), path_ + ": /steps/7/topk: is missing");
}

// 4 pages of 2 tokens: slots 0 to 7.
TEST_F(RecordingIds, SlotOutsideThePool) {
  const auto slot = [&](std::int64_t value) {
    return read("index_cache_write", [&](TinyRecording& r) {
      r.input("index_cache_write", "slot_mapping").as<std::int64_t>()[3] = value;
    });
  };
  EXPECT_EQ(slot(-1), "");
  EXPECT_EQ(slot(7), "");
  EXPECT_EQ(slot(8), "inputs/slot_mapping: [3]: found slot 8, want -1 to 7");
  EXPECT_EQ(slot(-2), "inputs/slot_mapping: [3]: found slot -2, want -1 to 7");
  EXPECT_EQ(slot(std::numeric_limits<std::int64_t>::min()),
            "inputs/slot_mapping: [3]: found slot -9223372036854775808, want -1 to 7");
}

TEST_F(RecordingIds, FewerKeysThanSlots) {
  const auto keys = [&](std::int64_t rows) {
    return read("index_cache_write", [&](TinyRecording& r) {
      r.input("index_cache_write", "index_k") = Tensor(Dtype::bfloat16, {rows, 128});
    });
  };
  EXPECT_EQ(keys(9), "");
  EXPECT_EQ(keys(5), "");
  EXPECT_EQ(keys(4), "inputs/index_k: axis 0: found 4 rows, want at least the 5 of slot_mapping");
}

/// row_lens 3, 4, 1 of requests 0, 1, 1: entries [0, 0], [0, 1], [1, 0], [1, 1] are used.
TEST_F(RecordingIds, UsedTableEntryOfLogits) {
  const auto entry = [&](std::int32_t value) {
    return read("index_logits_decode", [&](TinyRecording& r) {
      r.input("index_logits_decode", "block_table").as<std::int32_t>()[1] = value;
    });
  };
  EXPECT_EQ(entry(3), "");
  EXPECT_EQ(entry(-1), "");
  EXPECT_EQ(entry(4), "inputs/block_table: [0, 1]: found page 4, want -1 to 3");
  EXPECT_EQ(entry(-2), "inputs/block_table: [0, 1]: found page -2, want -1 to 3");
}

TEST_F(RecordingIds, UnusedTableEntryMayBeAnything) {
  for (std::int32_t value : {4, -2, std::numeric_limits<std::int32_t>::max()})
    EXPECT_EQ(read("index_logits_decode",
                   [&](TinyRecording& r) {
                     r.input("index_logits_decode", "row_lens").as<std::int32_t>()[0] = 2;
                     r.input("index_logits_decode", "block_table").as<std::int32_t>()[1] = value;
                   }),
              "");
}

TEST_F(RecordingIds, RowLengthBeyondLogitsOrTable) {
  const auto length = [&](std::int32_t value, std::int64_t keys) {
    return read("index_logits_decode", [&](TinyRecording& r) {
      r.input("index_logits_decode", "row_lens").as<std::int32_t>()[2] = value;
      r.output("index_logits_decode", "logits") = Tensor(Dtype::float32, {3, keys});
    });
  };
  EXPECT_EQ(length(4, 5), "");
  EXPECT_EQ(length(0, 5), "");
  EXPECT_EQ(length(-3, 5), ""); // counts as 0
  EXPECT_EQ(length(5, 5),
            "inputs/row_lens: [2]: found 5, want at most the 4 tokens of a row of block_table");
  EXPECT_EQ(length(6, 5), "inputs/row_lens: [2]: found 6, want at most the 5 columns of logits");
}

TEST_F(RecordingIds, RequestOfARow) {
  const auto request = [&](std::int32_t value) {
    return read("index_logits_decode", [&](TinyRecording& r) {
      r.input("index_logits_decode", "row_request").as<std::int32_t>()[1] = value;
    });
  };
  EXPECT_EQ(request(0), "");
  EXPECT_EQ(request(2), "inputs/row_request: [1]: found 2, want 0 to 1");
  EXPECT_EQ(request(-1), "inputs/row_request: [1]: found -1, want 0 to 1");
}

TEST_F(RecordingIds, RowsWithoutRequestsMustDivideEvenly) {
  EXPECT_EQ(read("index_logits_decode",
                 [](TinyRecording& r) {
                   r.operations.at("index_logits_decode").inputs.erase("row_request");
                 }),
            "inputs/row_request: is missing: found 3 rows, want a multiple of the 2 rows of "
            "block_table");
}

/// cu_seq_lens 0, 2, 5 over pages of 2: used entries [0, 0], [1, 0] (rows 2, 3), [1, 1] (row 4).
TEST_F(RecordingIds, BadPageOfAGatherNeedsScaleZero) {
  const auto entry = [&](std::int32_t value, float scale) {
    return read("index_cache_gather", [&](TinyRecording& r) {
      r.input("index_cache_gather", "block_table").as<std::int32_t>()[3] = value;
      r.output("index_cache_gather", "k_scale").as<float>()[4] = scale;
    });
  };
  EXPECT_EQ(entry(3, 1), "");
  EXPECT_EQ(entry(4, 0), "");
  EXPECT_EQ(entry(-1, 0), "");
  EXPECT_EQ(entry(4, 1),
            "inputs/block_table: [1, 1]: found page 4, want 0 to 3 (its rows' k_scale is not 0)");
  EXPECT_EQ(entry(-1, 1),
            "inputs/block_table: [1, 1]: found page -1, want 0 to 3 (its rows' k_scale is not 0)");
  EXPECT_EQ(entry(-2, 0), "inputs/block_table: [1, 1]: found page -2, want 0 to 3");
}

TEST_F(RecordingIds, BoundsOfAGather) {
  const auto bounds = [&](std::int32_t first, std::int32_t middle, std::int32_t last) {
    return read("index_cache_gather", [&](TinyRecording& r) {
      auto* cu = r.input("index_cache_gather", "cu_seq_lens").as<std::int32_t>();
      cu[0] = first, cu[1] = middle, cu[2] = last;
    });
  };
  EXPECT_EQ(bounds(1, 2, 4), "");
  EXPECT_EQ(bounds(0, 2, 1000),
            "inputs/cu_seq_lens: [2]: found 1000, want at most the 5 gathered rows");
  EXPECT_EQ(bounds(-1, 2, 5), "inputs/cu_seq_lens: [0]: found -1, want at least 0");
  EXPECT_EQ(bounds(0, 3, 2), "inputs/cu_seq_lens: [2]: found 2, want at least 3");
  EXPECT_EQ(bounds(0, 0, 5),
            "inputs/cu_seq_lens: [2]: found 5 tokens, want at most the 4 of block_table");
}

TEST_F(RecordingIds, RowOfNoRequestIsNotLookedUp) {
  const auto requests = [&](std::vector<std::int32_t> of_row) {
    return read("index_cache_gather", [&](TinyRecording& r) {
      r.operations.at("index_cache_gather").inputs["row_request"] =
          tiny::tensor(Dtype::int32, {5}, of_row);
      r.input("index_cache_gather", "block_table").as<std::int32_t>()[3] = 99; // row 4's page
    });
  };
  EXPECT_NE(requests({0, 0, 1, 1, 1}), "");
  EXPECT_EQ(requests({0, 0, 1, 1, -1}), "");
  EXPECT_EQ(requests({0, 0, 1, 1, 2}), "");
  EXPECT_EQ(requests({0, 0, 1, 1, 0}), "");
}

TEST_F(RecordingIds, OverriddenContractIsCheckedToo) {
  EXPECT_EQ(read("index_cache_write", [](TinyRecording&) {}, {{"page_size", "1"}}),
            "inputs/slot_mapping: [0]: found slot 6, want -1 to 3");
  EXPECT_EQ(read("index_logits_decode", [](TinyRecording&) {}, {{"page_size", "1000"}}),
            "inputs/index_cache: found rows of 264 bytes, want at least 132000 from byte 0 "
            "(page_size 1000)");
}

} // namespace
} // namespace dsakit::testing
