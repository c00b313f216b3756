// index_cache_gather of MXFP4 pages: kernel against reference, byte for byte, on every device.
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/index_cache_gather.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/mxfp4_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_cache_gather_mxfp4_test {

using testing::Mxfp4Case;
using testing::OnDevice;

struct Gather {
  std::int64_t pages;
  std::int64_t table_columns;
  std::vector<std::int32_t> block_table;
  std::vector<std::int32_t> cu_seq_lens;
  std::vector<std::int32_t> row_request; // empty: from cu_seq_lens
  std::int64_t rows;
};

class IndexCacheGatherMxfp4 : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  void expect_same_bytes(const Mxfp4Case& c, const Gather& g) {
    std::mt19937 random(11);
    const std::vector<std::uint8_t> cache = testing::random_mxfp4_cache(c, g.pages, random);
    const auto requests = static_cast<std::int64_t>(g.cu_seq_lens.size()) - 1;
    const std::vector<std::uint8_t> k_before(static_cast<std::size_t>(g.rows) * 64, 0x5A);
    const std::vector<std::uint8_t> scale_before(static_cast<std::size_t>(g.rows) * 4, 0x5B);

    std::vector<std::uint8_t> k_want = k_before;
    std::vector<std::uint8_t> scale_want = scale_before;
    ASSERT_TRUE(reference::index_cache_gather_mxfp4(
        c.pages(), {cache.data(), g.pages, c.page_stride()},
        {g.block_table.data(), requests, g.table_columns}, g.cu_seq_lens, g.row_request, g.rows,
        k_want.data(), scale_want.data()));

    OnDevice<std::uint8_t> cache_on(*device_, cache);
    OnDevice<std::int32_t> table_on(*device_, g.block_table);
    OnDevice<std::int32_t> cu_on(*device_, g.cu_seq_lens);
    OnDevice<std::int32_t> request_on(*device_, g.row_request);
    OnDevice<std::uint8_t> k_on(*device_, k_before);
    OnDevice<std::uint8_t> scale_on(*device_, scale_before);
    optimized::IndexCacheGatherMxfp4Params params{};
    params.cache = cache_on.data();
    params.block_table = table_on.data();
    params.cu_seq_lens = cu_on.data();
    params.row_request = g.row_request.empty() ? nullptr : request_on.data();
    params.k_packed = k_on.data();
    params.k_scale = scale_on.data();
    params.page_stride = c.page_stride();
    params.table_stride = g.table_columns;
    params.rows = g.rows;
    params.pages = g.pages;
    params.requests = static_cast<std::int32_t>(requests);
    params.table_columns = static_cast<std::int32_t>(g.table_columns);
    params.page_size = static_cast<std::int32_t>(c.page_size);
    params.layout = c.layout;
    const Status status = testing::run_kernel(*device_, params);
    ASSERT_TRUE(status) << status.what();
    testing::expect_same("k_packed", k_on.values(), k_want, 64);
    testing::expect_same("k_scale", scale_on.values(), scale_want, 4);
  }
};

TEST_P(IndexCacheGatherMxfp4, RaggedRequestsInEveryLayout) {
  for (const Mxfp4Case& c : testing::mxfp4_cases()) {
    SCOPED_TRACE(c.name());
    std::mt19937 random(5);
    const auto page = static_cast<std::int32_t>(c.page_size);
    // Empty first, middle and last requests; lengths at the seams of a page; rows past the end.
    const std::int32_t lengths[] = {0, 1, page - 1, page, 0, page + 1, 2 * page + 3, 0};
    Gather g{};
    g.table_columns = 4;
    g.cu_seq_lens = {0};
    for (std::int32_t length : lengths)
      g.cu_seq_lens.push_back(g.cu_seq_lens.back() + length);
    g.block_table = testing::random_block_table(8, g.table_columns, random);
    g.pages = 32;
    g.rows = g.cu_seq_lens.back() + 3;
    expect_same_bytes(c, g);

    // The same with the request of each row named, a few of them wrong.
    for (std::int64_t row = 0; row < g.rows; ++row) {
      std::int32_t request = 0;
      while (request < 7 && g.cu_seq_lens[static_cast<std::size_t>(request) + 1] <= row)
        ++request;
      g.row_request.push_back(row % 5 == 2 ? request - 1 : row % 7 == 3 ? 8 : request);
    }
    expect_same_bytes(c, g);
  }
}

// S21, S22: an entry outside the pool, and a column outside the table, give zeros and scale 0.
TEST_P(IndexCacheGatherMxfp4, S22_BadPagesGiveZeros) {
  Gather g{};
  g.table_columns = 3;
  g.block_table = {1, 9, 0, -1, 2, 1 << 30};
  g.cu_seq_lens = {0, 60, 110};
  g.pages = 9;
  g.rows = 110;
  expect_same_bytes({IndexPageLayout::flat, 16, 0}, g);
}

TEST_P(IndexCacheGatherMxfp4, NoRowsAndNoRequests) {
  const Mxfp4Case c{IndexPageLayout::preshuffle64, 64, 0};
  Gather g{};
  g.table_columns = 1;
  g.cu_seq_lens = {0};
  g.pages = 1;
  expect_same_bytes(c, g);
  g.rows = 3;
  expect_same_bytes(c, g);
}

TEST_P(IndexCacheGatherMxfp4, RefusesWhatItCannotGather) {
  optimized::IndexCacheGatherMxfp4Params params{};
  params.page_stride = 64 * 68;
  params.page_size = 64;
  params.layout = IndexPageLayout::mfma_preshuffle;
  const Status status = testing::run_kernel(*device_, params);
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.what().find("mfma_preshuffle does not hold MXFP4 keys"), std::string::npos)
      << status.what();
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexCacheGatherMxfp4,
                         ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace index_cache_gather_mxfp4_test
} // namespace dsakit
