#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_logits.hpp"
#include "support/guarded.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace index_logits_prefill_test {

using testing::Guarded;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kDim = kIndexHeadDim;

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// Inputs of index_logits_prefill that own their memory.
struct Problem {
  Fp8Encoding encoding;
  std::int64_t heads;
  std::int64_t columns; ///< of logits
  std::vector<std::int32_t> ks;
  std::vector<std::int32_t> ke;
  std::vector<std::int32_t> column_origin; ///< empty: column = key
  std::vector<std::uint8_t> q;
  std::vector<float> weights;
  std::vector<std::uint8_t> k;
  std::vector<float> k_scale;

  std::int64_t rows() const { return std::ssize(ks); }
  std::int64_t keys() const { return std::ssize(k_scale); }
  IndexLogitsPrefill view() const {
    return {q.data(),
            weights.data(),
            k.data(),
            k_scale.data(),
            ks.data(),
            ke.data(),
            column_origin.empty() ? nullptr : column_origin.data(),
            rows(),
            heads,
            keys(),
            columns,
            encoding};
  }
  std::int64_t begin(std::int64_t row) const { return std::max<std::int64_t>(ks[index(row)], 0); }
  std::int64_t end(std::int64_t row) const {
    return std::min<std::int64_t>(ke[index(row)], keys());
  }
  /// Where the logit of a key lies.
  std::size_t at(std::int64_t row, std::int64_t key) const {
    return index(row * columns + key - (column_origin.empty() ? 0 : column_origin[index(row)]));
  }
};

Problem random_problem(Fp8Encoding encoding, std::int64_t heads, std::int64_t keys,
                       std::vector<std::int32_t> ks, std::vector<std::int32_t> ke, unsigned seed) {
  Problem p{encoding, heads, keys, std::move(ks), std::move(ke), {}, {}, {}, {}, {}};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-9, 3);
  const auto fp8 = [&] { return encode_fp8_saturating(encoding, 60 * normal(random)); };
  for (std::int64_t i = 0; i < p.rows() * heads * kDim; ++i)
    p.q.push_back(fp8());
  for (std::int64_t i = 0; i < p.rows() * heads; ++i)
    p.weights.push_back(normal(random));
  for (std::int64_t i = 0; i < keys * kDim; ++i)
    p.k.push_back(fp8());
  for (std::int64_t i = 0; i < keys; ++i)
    p.k_scale.push_back(std::ldexp(1.0f, exponent(random)));
  return p;
}

template <class Tier>
std::vector<typename Tier::Value> logits_of(const Problem& p) {
  Guarded<typename Tier::Value> logits(index(p.rows() * p.columns), 777, -555);
  const Status status = index_logits_prefill<Tier>(p.view(), logits.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(logits.intact());
  return {logits.data(), logits.data() + logits.size()};
}

std::vector<double> bound_of(const Problem& p, Accumulation accumulation) {
  Guarded<double> bound(index(p.rows() * p.columns), 777, -555);
  const Status status = index_logits_prefill_bound(p.view(), accumulation, bound.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(bound.intact());
  return {bound.data(), bound.data() + bound.size()};
}

/// Largest |got - exact| / bound in the windows.
template <class Value>
double used(const Problem& p, const std::vector<Value>& got, const std::vector<double>& exact,
            const std::vector<double>& bound) {
  double worst = 0;
  for (std::int64_t row = 0; row < p.rows(); ++row)
    for (std::int64_t key = p.begin(row); key < p.end(row); ++key) {
      const std::size_t i = p.at(row, key);
      const double fraction = std::fabs(static_cast<double>(got[i]) - exact[i]) / bound[i];
      if (!(fraction <= worst)) worst = fraction; // NaN too
    }
  return worst;
}

// ---- The window ---------------------------------------------------------------------------------

TEST(IndexLogitsPrefill, ARefusalNamesTheColumnsAndWritesNothing) {
  Problem p = random_problem(Fp8Encoding::e4m3fn, 3, 20, {0, 4, 9}, {5, 20, 9}, 1);
  std::vector<double> logits(60, 777);
  const auto untouched = logits;
  const auto refused = [&] {
    const Status status = index_logits_prefill<Exact>(p.view(), logits.data());
    EXPECT_EQ(status.code(), Code::bad_input);
    EXPECT_EQ(index_logits_prefill_bound(p.view(), Accumulation::fp32, logits.data()).what(),
              status.what());
    EXPECT_EQ(logits, untouched);
    return status.what();
  };
  p.columns = 19;
  EXPECT_EQ(refused(), "columns of row 1: found [4, 20), want within [0, 19)");
  p.columns = 20;
  p.column_origin = {1, 4, 9};
  EXPECT_EQ(refused(), "columns of row 0: found [-1, 4), want within [0, 20)");
}

TEST(IndexLogitsPrefill, S14_OnlyTheWindowIsWrittenAndItIsClampedToTheKeys) {
  constexpr std::int64_t kKeys = 150;
  const Problem p =
      random_problem(Fp8Encoding::e4m3fn, 3, kKeys, {0, 63, 64, 65, -7, 149, 80, 90, 0},
                     {1, 65, 128, 129, 5, 999, 80, 20, 150}, 2);
  const auto exact = logits_of<Exact>(p);
  const auto simulated = logits_of<Simulated>(p);
  const auto bound = bound_of(p, Accumulation::fp32);
  for (std::int64_t row = 0; row < p.rows(); ++row)
    for (std::int64_t key = 0; key < kKeys; ++key) {
      const bool inside = key >= p.ks[index(row)] && key < p.ke[index(row)];
      EXPECT_EQ(exact[p.at(row, key)] != 777, inside) << row << " " << key;
      EXPECT_EQ(simulated[p.at(row, key)] != 777, inside) << row << " " << key;
      EXPECT_EQ(bound[p.at(row, key)] > 0, inside) << row << " " << key;
    }
}

TEST(IndexLogitsPrefill, ColumnOriginMovesARowAndNothingElse) {
  const Problem absolute =
      random_problem(Fp8Encoding::e4m3fn, 5, 140, {0, 70, 75, 139}, {40, 139, 80, 140}, 3);
  Problem local = absolute;
  local.column_origin = {0, 70, 70, 139};
  local.columns = 69;
  const auto compare = [&](const auto& from, const auto& to) {
    std::size_t written = 0;
    for (std::int64_t row = 0; row < 4; ++row)
      for (std::int64_t key = absolute.begin(row); key < absolute.end(row); ++key, ++written)
        ASSERT_EQ(from[absolute.at(row, key)], to[local.at(row, key)]) << row << " " << key;
    EXPECT_EQ(written, 40u + 69 + 5 + 1);
    EXPECT_EQ(std::count(to.begin(), to.end(), to[68]), 4 * 69 - 115); // beyond row 0's window
  };
  compare(logits_of<Exact>(absolute), logits_of<Exact>(local));
  compare(logits_of<Simulated>(absolute), logits_of<Simulated>(local));
  compare(bound_of(absolute, Accumulation::fp32), bound_of(local, Accumulation::fp32));
}

// ---- The formula --------------------------------------------------------------------------------

TEST(IndexLogitsPrefill, S27_S30_EqualsTheFormulaOfTheDecodeLogitsBitForBit) {
  // The same keys in pages: both forms of spec 2.8 round alike.
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (std::int64_t heads : {1, 3, 16, 64}) {
      const Problem p = random_problem(encoding, heads, 150, {0, 0, 0}, {150, 1, 65}, 4);
      std::vector<std::uint8_t> page(150 * 132);
      std::copy(p.k.begin(), p.k.end(), page.begin());
      std::memcpy(page.data() + 150 * 128, p.k_scale.data(), 150 * 4);
      const std::vector<std::int32_t> table = {0}, row_request(3, 0);
      const IndexLogitsDecode decode{p.q.data(),
                                     p.weights.data(),
                                     {page.data(), 1, 150 * 132},
                                     {table.data(), 1, 1},
                                     p.ke.data(),
                                     row_request.data(),
                                     3,
                                     heads,
                                     150};
      const IndexPages pages{encoding, IndexPageLayout::block_flat, 150};
      std::vector<double> exact(450, 777);
      ASSERT_TRUE(index_logits_decode<Exact>(pages, decode, exact.data()));
      EXPECT_EQ(logits_of<Exact>(p), exact);
      std::vector<float> simulated(450, 777);
      ASSERT_TRUE(index_logits_decode<Simulated>(pages, decode, simulated.data()));
      EXPECT_EQ(logits_of<Simulated>(p), simulated);
      for (Accumulation accumulation :
           {Accumulation::exact, Accumulation::fp32, Accumulation::sm90_wgmma_fp8}) {
        std::vector<double> bound(450, 777);
        ASSERT_TRUE(index_logits_decode_bound(pages, decode, accumulation, bound.data()));
        EXPECT_EQ(bound_of(p, accumulation), bound);
      }
    }
}

TEST(IndexLogitsPrefill, NaNInAKeyStaysInItsColumn) {
  Problem p = random_problem(Fp8Encoding::e4m3fn, 3, 9, {0, 5, 0}, {9, 9, 6}, 5);
  p.k[6 * 128 + 127] = 0x7F;
  const auto exact = logits_of<Exact>(p);
  for (std::int64_t row = 0; row < 3; ++row)
    for (std::int64_t key = p.begin(row); key < p.end(row); ++key)
      EXPECT_EQ(std::isnan(exact[p.at(row, key)]), key == 6);
}

// ---- Chunks and threads -------------------------------------------------------------------------

TEST(IndexLogitsPrefill, S36_ChunksOfRowsGiveTheBitsOfTheWhole) {
  // Two requests of 8 and 13 new tokens over 30 and 40 keys: causal windows (spec 2.7).
  std::vector<std::int32_t> ks, ke;
  for (int i = 0; i < 8; ++i)
    ks.push_back(0), ke.push_back(30 - 8 + i + 1);
  for (int i = 0; i < 13; ++i)
    ks.push_back(30), ke.push_back(30 + 40 - 13 + i + 1);
  const Problem whole = random_problem(Fp8Encoding::e4m3fn, 6, 70, ks, ke, 6);
  const auto exact = logits_of<Exact>(whole);
  const auto simulated = logits_of<Simulated>(whole);
  for (std::int64_t chunk : {1, 4, 20}) {
    for (std::int64_t first = 0; first < whole.rows(); first += chunk) {
      const std::int64_t rows = std::min(chunk, whole.rows() - first);
      IndexLogitsPrefill part = whole.view();
      part.rows = rows;
      part.index_q_fp8 += first * 6 * kDim;
      part.index_weights_folded += first * 6;
      part.ks += first;
      part.ke += first;
      std::vector<double> got(index(rows * 70), 777);
      ASSERT_TRUE(index_logits_prefill<Exact>(part, got.data()));
      EXPECT_TRUE(std::equal(got.begin(), got.end(), exact.begin() + first * 70));
      std::vector<float> rounded(index(rows * 70), 777);
      ASSERT_TRUE(index_logits_prefill<Simulated>(part, rounded.data()));
      EXPECT_TRUE(std::equal(rounded.begin(), rounded.end(), simulated.begin() + first * 70));
    }
  }
}

TEST(IndexLogitsPrefill, BitsDoNotDependOnTheNumberOfThreads) {
  const Problem p =
      random_problem(Fp8Encoding::e4m3fn, 16, 400, {0, 100, 0, 399}, {400, 333, 65, 400}, 7);
  const auto exact = logits_of<Exact>(p);
  const auto simulated = logits_of<Simulated>(p);
  const auto bound = bound_of(p, Accumulation::sm90_wgmma_fp8);
  for (std::size_t threads : {1u, 2u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    EXPECT_EQ(logits_of<Exact>(p), exact);
    EXPECT_EQ(logits_of<Simulated>(p), simulated);
    EXPECT_EQ(bound_of(p, Accumulation::sm90_wgmma_fp8), bound);
  }
}

// ---- Recordings ---------------------------------------------------------------------------------

struct Recorded {
  const char* file;
  const char* tensor;
  Accumulation accumulation; ///< spec 12
};

void PrintTo(const Recorded& recorded, std::ostream* out) {
  *out << recorded.file << " " << recorded.tensor;
}

Problem recorded_kernel_problem(testing::Safetensors& file) {
  return {Fp8Encoding::e4m3fn,
          file.extent("q_fp8", 1),
          file.extent("k_fp8", 0),
          file.values<std::int32_t>("cu_seqlen_ks"),
          file.values<std::int32_t>("cu_seqlen_ke"),
          {},
          file.values<std::uint8_t>("q_fp8"),
          file.values<float>("weights"),
          file.values<std::uint8_t>("k_fp8"),
          file.values<float>("k_scale")};
}

/// A step whose keys are gathered from the cache first; columns are local to the request.
Problem recorded_layer_problem(testing::Safetensors& file, const std::string& step) {
  const auto query_lens = file.values<std::int32_t>(step + "query_lens");
  const auto seq_lens = file.values<std::int32_t>(step + "seq_lens");
  std::vector<std::int32_t> cu_seq_lens(seq_lens.size() + 1, 0);
  std::partial_sum(seq_lens.begin(), seq_lens.end(), cu_seq_lens.begin() + 1);
  const std::int64_t keys = cu_seq_lens.back();
  Problem p{Fp8Encoding::e4m3fn,
            file.extent(step + "index_q_fp8", 1),
            file.extent(step + "index_logits", 1),
            {},
            {},
            {},
            file.values<std::uint8_t>(step + "index_q_fp8"),
            file.values<float>(step + "index_weights_folded"),
            std::vector<std::uint8_t>(index(keys * kDim)),
            std::vector<float>(index(keys))};
  const auto cache = file.values<std::uint8_t>(step + "index_cache_after");
  const auto table = file.values<std::int32_t>(step + "block_table");
  const Status status = index_cache_gather(
      {Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 64},
      {cache.data(), file.extent(step + "index_cache_after", 0), 64 * 132},
      {table.data(), file.extent(step + "block_table", 0), file.extent(step + "block_table", 1)},
      cu_seq_lens, {}, keys, p.k.data(), p.k_scale.data());
  EXPECT_TRUE(status) << status.what();
  for (std::size_t b = 0; b < query_lens.size(); ++b)
    for (std::int32_t i = 0; i < query_lens[b]; ++i) {
      p.ks.push_back(cu_seq_lens[b]);
      p.ke.push_back(cu_seq_lens[b] + seq_lens[b] - query_lens[b] + i + 1);
      p.column_origin.push_back(cu_seq_lens[b]);
    }
  return p;
}

class IndexLogitsPrefillRecorded : public ::testing::TestWithParam<Recorded> {
protected:
  void SetUp() override {
    DSAKIT_NEED_RECORDING(GetParam().file);
    testing::Safetensors file(testing::recording_path(GetParam().file));
    problem_.emplace(file.has("q_fp8") ? recorded_kernel_problem(file)
                                       : recorded_layer_problem(file, "steps.0."));
    recorded_ = file.values<float>(GetParam().tensor);
    ASSERT_EQ(recorded_.size(), index(problem_->rows() * problem_->columns));
    exact_ = logits_of<Exact>(*problem_);
    bound_ = bound_of(*problem_, GetParam().accumulation);
  }

  /// Share of the bound that our own kernel with a fault would use.
  double used_by_faulty(const Problem& faulty) const {
    return used(*problem_, logits_of<Simulated>(faulty), exact_, bound_);
  }
  void expect_above_the_bound(double share) {
    RecordProperty("used", std::to_string(share));
    EXPECT_GT(share, 1);
  }

  std::optional<Problem> problem_; // Problem has no default constructor
  std::vector<float> recorded_;
  std::vector<double> exact_;
  std::vector<double> bound_;
};

/// Producers whose accumulation loses more than fp32 does.
class IndexLogitsPrefillRecordedWgmma : public IndexLogitsPrefillRecorded {};

TEST_P(IndexLogitsPrefillRecorded, TheProducerStaysWithinTheBoundOfItsAccumulation) {
  const double share = used(*problem_, recorded_, exact_, bound_);
  RecordProperty("used", std::to_string(share));
  EXPECT_LE(share, 1);
  std::vector<bool> seen(recorded_.size());
  for (std::int64_t row = 0; row < problem_->rows(); ++row)
    for (std::int64_t key = problem_->begin(row); key < problem_->end(row); ++key)
      seen[problem_->at(row, key)] = true;
  for (std::size_t i = 0; i < recorded_.size(); ++i) {
    if (seen[i]) continue;
    ASSERT_EQ(static_cast<double>(recorded_[i]), -kInf)
        << "the recording is not what its note says";
  }
}

TEST_P(IndexLogitsPrefillRecorded, SimulatedStaysFarInsideTheFp32Bound) {
  const double share = used(*problem_, logits_of<Simulated>(*problem_), exact_,
                            bound_of(*problem_, Accumulation::fp32));
  RecordProperty("used", std::to_string(share));
  EXPECT_LE(share, 0.1);
}

TEST_P(IndexLogitsPrefillRecordedWgmma, TheProducerBreaksTheFp32Bound) {
  expect_above_the_bound(
      used(*problem_, recorded_, exact_, bound_of(*problem_, Accumulation::fp32)));
}

TEST_P(IndexLogitsPrefillRecorded, ADroppedHeadBreaksTheBound) {
  double least = kInf;
  for (std::int64_t head = 0; head < problem_->heads; head += problem_->heads / 8) {
    Problem faulty = *problem_;
    for (std::int64_t row = 0; row < faulty.rows(); ++row)
      faulty.weights[index(row * faulty.heads + head)] = 0;
    least = std::min(least, used_by_faulty(faulty));
  }
  expect_above_the_bound(least);
}

TEST_P(IndexLogitsPrefillRecorded, ADroppedStepOf32BreaksTheBound) {
  double least = kInf;
  for (std::int64_t step = 0; step < kDim; step += 32) {
    Problem faulty = *problem_;
    for (std::size_t i = 0; i < faulty.q.size(); ++i)
      if (static_cast<std::int64_t>(i) % kDim / 32 == step / 32) faulty.q[i] = 0;
    least = std::min(least, used_by_faulty(faulty));
  }
  expect_above_the_bound(least);
}

TEST_P(IndexLogitsPrefillRecorded, ADroppedKeyBreaksTheBound) {
  double least = kInf;
  for (std::int64_t key : {problem_->begin(0), problem_->end(problem_->rows() - 1) - 1}) {
    Problem faulty = *problem_;
    std::fill_n(faulty.k.begin() + key * kDim, kDim, std::uint8_t{0});
    least = std::min(least, used_by_faulty(faulty));
  }
  expect_above_the_bound(least);
}

TEST_P(IndexLogitsPrefillRecorded, TwoSwappedKeyScalesBreakTheBound) {
  Problem faulty = *problem_;
  auto& scales = faulty.k_scale;
  const auto differs =
      std::adjacent_find(scales.begin() + problem_->begin(0), scales.end(), std::not_equal_to<>());
  ASSERT_NE(differs, scales.end()) << "all scales are equal";
  std::iter_swap(differs, differs + 1);
  expect_above_the_bound(used_by_faulty(faulty));
}

TEST_P(IndexLogitsPrefillRecorded, S36_ALostRowOffsetBreaksTheBound) {
  Problem faulty = *problem_; // every row takes the queries of the row before it
  std::rotate(faulty.q.begin(), faulty.q.end() - faulty.heads * kDim, faulty.q.end());
  expect_above_the_bound(used_by_faulty(faulty));
}

constexpr Recorded kRecorded[] = {
    {"kernel_logits_prefill_h32", "logits_deepgemm", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_prefill_h32", "logits_triton", Accumulation::fp32},
    {"kernel_logits_prefill_h64", "logits_deepgemm", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_prefill_h64", "logits_triton", Accumulation::sm90_wgmma_fp8},
    {"prefill_no_q_lora_rmsnorm_yarn", "steps.0.index_logits", Accumulation::exact},
    {"prefill_q_lora_layernorm_gate", "steps.0.index_logits", Accumulation::exact},
};

std::string case_name(const ::testing::TestParamInfo<Recorded>& info) {
  std::string name = std::string(info.param.file) + "_" + info.param.tensor;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, IndexLogitsPrefillRecorded, ::testing::ValuesIn(kRecorded),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Files, IndexLogitsPrefillRecordedWgmma,
                         ::testing::Values(kRecorded[0], kRecorded[2], kRecorded[3]), case_name);

} // namespace index_logits_prefill_test
} // namespace dsakit::reference
