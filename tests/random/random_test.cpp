// Seeded random correct problems of every operation: recorded outputs are the reference's, so that
// a replay has nothing to find. One that fails is a fault of a kernel, a bound or an adapter.
//   DSAKIT_RANDOM_PROBLEMS=N  how many over all operations and kinds of numbers (300)
//   DSAKIT_RANDOM_FIRST=SEED  of the first (0): runs at once take ranges of their own
//   DSAKIT_RANDOM_ONLY=SEED   that one alone
#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "dsakit/harness/operations.hpp"
#include "problems.hpp"
#include "unit/harness/replay_fixture.hpp"

namespace dsakit::testing {
namespace {

using DrawProblem = void (*)(TinyRecording&, Draw&);

struct Drawn {
  std::string_view operation;
  DrawProblem draw;
  std::string_view format{}; ///< as in kOperations
};

constexpr Drawn kDrawn[] = {
    {"qkv_a_proj", draw_qkv_a_proj},
    {"q_norm", draw_q_norm},
    {"q_b_proj", draw_q_b_proj},
    {"kv_norm", draw_kv_norm},
    {"index_q_proj", draw_index_q_proj},
    {"index_k_proj", draw_index_k_proj},
    {"index_w_proj", draw_index_w_proj},
    {"index_query_quant", draw_index_query_quant, "fp8"},
    {"index_query_quant", draw_index_query_quant_mxfp4, "mxfp4"},
    {"index_weights_fold", draw_index_weights_fold},
    {"index_key_norm", draw_index_key_norm},
    {"index_cache_write", draw_index_cache_write, "fp8"},
    {"index_cache_write", draw_index_cache_write_mxfp4, "mxfp4"},
    {"index_cache_gather", draw_index_cache_gather, "fp8"},
    {"index_cache_gather", draw_index_cache_gather_mxfp4, "mxfp4"},
    {"index_logits_prefill", draw_index_logits_prefill, "fp8"},
    {"index_logits_prefill", draw_index_logits_prefill_mxfp4, "mxfp4"},
    {"index_logits_decode", draw_index_logits_decode, "fp8"},
    {"index_logits_decode", draw_index_logits_decode_mxfp4, "mxfp4"},
    {"topk", draw_topk},
    {"dcp_topk_merge", draw_dcp_topk_merge},
    {"mla_cache_write", draw_mla_cache_write},
    {"topk_slots", draw_topk_slots},
    {"absorb_q", draw_absorb_q},
    {"sparse_attention", draw_sparse_attention, "fp8_ds_mla"},
    {"sparse_attention", draw_sparse_attention_dense, "bf16_576"},
    {"dcp_attention_merge", draw_dcp_attention_merge},
    {"absorb_v", draw_absorb_v},
    {"gate_proj", draw_gate_proj},
    {"output_gate", draw_output_gate},
    {"o_proj", draw_o_proj},
};
static_assert(std::ranges::all_of(kOperations, [](const Operation& operation) {
  return std::ranges::count_if(kDrawn, [&](const Drawn& drawn) {
           return drawn.operation == operation.name && drawn.format == operation.format;
         }) == 1;
}));

/// What such a producer may also have written: the set in another order.
void reverse_rows(Tensor& indices) {
  auto* row = indices.as<std::int32_t>();
  for (std::int64_t r = 0; r < indices.shape[0]; ++r, row += indices.shape[1])
    std::reverse(row, row + indices.shape[1]);
}

/// Fills the outputs with the reference's.
void fill_outputs(TinyRecording& r) {
  auto& [name, recorded] = *r.operations.begin();
  harness::OperationData data{{0, name}, r.contract, recorded, r.config};
  const auto& attributes = recorded.outputs.begin()->second.attributes;
  if (const auto read = attributes.find("mla_scale_read"); read != attributes.end())
    data.contract.insert(*read);
  const auto expected = harness::find_adapter(name)->reference(data);
  ASSERT_TRUE(expected) << expected.status().what();
  for (const harness::Expected& output : *expected)
    for (auto& [tensor, out] : recorded.outputs)
      if (tensor == output.output || tensor == output.output + ".other")
        out.tensor = output.value.tensor;
  if (const auto other = recorded.outputs.find("topk_indices.other");
      other != recorded.outputs.end())
    reverse_rows(other->second.tensor);
}

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

class RandomProblems : public ReplayTest, public ::testing::WithParamInterface<std::size_t> {
protected:
  /// Returns how many elements were compared.
  std::int64_t check(std::uint64_t seed) const {
    SCOPED_TRACE("repeat: DSAKIT_RANDOM_ONLY=" + std::to_string(seed) + " random_tests");
    const TinyRecording problem = random_problem(seed);
    harness::ReplayOptions options;
    // Another in each round, and another for each kind of numbers in the next.
    const std::uint64_t round = seed / std::size(kDrawn);
    const bool second = (round + round / kKinds) % 2;
    options.host.arch = second ? optimized::Arch::gfx950 : optimized::Arch::gfx942;
    options.host.schedule_seed = seed;
    const harness::Report report = replay(problem, options);
    EXPECT_EQ(report.verdict(), harness::Verdict::pass) << harness::to_text(report, {});
    std::int64_t compared = 0;
    for (const harness::ReportLine& line : report.lines)
      compared += line.elements;
    return compared;
  }
};

TEST_P(RandomProblems, Agree) {
  if (std::getenv("DSAKIT_RANDOM_ONLY")) {
    const std::uint64_t only = from_environment("DSAKIT_RANDOM_ONLY", 0);
    if (only % std::size(kDrawn) != GetParam()) GTEST_SKIP() << "a problem of another operation";
    check(only);
    return;
  }
  const std::uint64_t problems = from_environment("DSAKIT_RANDOM_PROBLEMS", 300);
  const std::uint64_t first = from_environment("DSAKIT_RANDOM_FIRST", 0);
  std::int64_t drawn = 0, compared = 0;
  for (std::uint64_t seed = first; seed < first + problems; ++seed)
    if (seed % std::size(kDrawn) == GetParam()) {
      ++drawn;
      compared += check(seed);
    }
  std::cout << drawn << " problems, " << compared << " elements compared\n";
  if (drawn >= 10) { // one may have no rows
    EXPECT_GT(compared, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, RandomProblems,
                         ::testing::Range(std::size_t{0}, std::size(kDrawn)), [](const auto& info) {
                           const Drawn& drawn = kDrawn[info.param];
                           const bool first =
                               drawn.format == find_operation(drawn.operation)->format;
                           return std::string(drawn.operation) +
                                  (first ? "" : "_" + std::string(drawn.format));
                         });

} // namespace

TinyRecording random_problem(std::uint64_t seed) {
  TinyRecording r;
  r.contract.clear();
  const std::uint64_t round = seed / std::size(kDrawn);
  Draw draw(seed, static_cast<Kind>(round % kKinds));
  kDrawn[seed % std::size(kDrawn)].draw(r, draw);
  fill_outputs(r);
  return r;
}

} // namespace dsakit::testing
