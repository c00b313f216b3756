// Context parallelism: local selections with their scores, their merge, the slots of each rank, and
// the merge of attention.
#include <cmath>
#include <limits>

#include "generator.hpp"

namespace dsakit::golden {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Short rows, ties, NaN and -0 among the scores that rank 1 of 2 offers.
void local_topk(Golden& golden) {
  Random random(31);
  constexpr std::int64_t kRows = 5, kColumns = 70, kK = 12;
  const std::vector<std::int32_t> lengths = {70, 11, 12, 0, 40};
  std::vector<float> logits;
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    const std::int64_t row = i / kColumns, column = i % kColumns;
    const float value = row == 4          ? -0.0F
                        : column % 9 == 2 ? kNan
                                          : static_cast<float>(random.below(6)) - 3;
    logits.push_back(column < lengths[static_cast<std::size_t>(row)]
                         ? value
                         : std::numeric_limits<float>::max());
  }
  RecordedTensor indices = empty(Dtype::int32, {kRows, kK}, {"row", "k"});
  indices.attributes["dcp_rank"] = "1";
  golden.add("topk",
             {{"logits", tensor(Dtype::float32, {kRows, kColumns}, {"row", "key"}, logits)},
              {"row_lens", tensor(Dtype::int32, {kRows}, {"row"}, lengths)}},
             {{"topk_indices", indices},
              {"dcp_scores", empty(Dtype::float32, {kRows, kK}, {"row", "k"})}});
}

/// Candidates at random, some padding: normal scores, ties across ranks, NaN, fewer than k, none;
/// positions from 2^24 on, where fp32 has no odd ones.
void merge_topk(Golden& golden, std::int64_t ranks, std::int64_t k) {
  Random random(static_cast<std::uint64_t>(41 + ranks));
  constexpr std::int64_t kRows = 6;
  const auto cells = static_cast<std::size_t>(ranks * kRows * k);
  std::vector<float> scores(cells);
  std::vector<std::int32_t> indices(cells);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const auto positions = random.permutation(ranks * k);
    const std::int64_t first = row == 1 ? 1 << 24 : 0;
    for (std::int64_t i = 0; i < ranks * k; ++i) {
      const auto at = static_cast<std::size_t>((i / k * kRows + row) * k + i % k);
      const bool padding =
          row == 5 || (row == 4 ? random.below(2 * ranks) != 0 : random.below(9) == 0);
      indices[at] =
          padding ? -1 : static_cast<std::int32_t>(first + positions[static_cast<std::size_t>(i)]);
      scores[at] = padding    ? kInf // must not count
                   : row == 1 ? 1.5F
                   : row == 2 ? (random.below(2) ? 0.0F : -0.0F)
                   : row == 3 ? (random.below(3)   ? kNan
                                 : random.below(2) ? -kInf
                                                   : random.normal())
                              : random.normal();
    }
  }
  golden.add(
      "dcp_topk_merge",
      {{"rank_scores", tensor(Dtype::float32, {ranks, kRows, k}, {"rank", "row", "k"}, scores)},
       {"rank_indices", tensor(Dtype::int32, {ranks, kRows, k}, {"rank", "row", "k"}, indices)}},
      {{"topk_indices", empty(Dtype::int32, {kRows, k}, {"row", "k"})}});
}

/// Rows of more than one run of a lane, with what has no slot in between.
void slots_of_rank(Golden& golden, std::int64_t world, const char* rank, std::int64_t k) {
  Random random(static_cast<std::uint64_t>(51 + world));
  constexpr std::int64_t kRows = 4, kColumns = 7, kPages = 19, kPageSize = 16;
  std::vector<std::int32_t> indices, table;
  for (std::int64_t i = 0; i < kRows * k; ++i)
    indices.push_back(random.below(8) == 0
                          ? -1
                          : static_cast<std::int32_t>(random.below(world * kColumns * kPageSize)));
  const auto order = random.permutation(kPages);
  for (std::int64_t i = 0; i < 2 * kColumns; ++i)
    table.push_back(i == 4 ? -1 : static_cast<std::int32_t>(order[static_cast<std::size_t>(i)]));
  RecordedTensor slots = empty(Dtype::int32, {kRows, k}, {"row", "k"});
  slots.attributes = {{"dcp_rank", rank}, {"block_stride", "20"}};
  golden.add("topk_slots",
             {{"topk_indices", tensor(Dtype::int32, {kRows, k}, {"row", "k"}, indices)},
              {"block_table", tensor(Dtype::int32, {2, kColumns}, {"request", "column"}, table)},
              {"row_request",
               tensor(Dtype::int32, {kRows}, {"row"}, std::vector<std::int32_t>{1, 0, 0, 1})}},
             {{"slots", slots},
              {"compact_slots", empty(Dtype::int32, {kRows, k}, {"row", "k"})},
              {"counts", empty(Dtype::int32, {kRows}, {"row"})}});
}

/// Ranks without a key, whose latents are garbage; huge lses of one size; one rank far ahead.
void merge_attention(Golden& golden, std::int64_t ranks, std::int64_t dim, Dtype dtype) {
  Random random(static_cast<std::uint64_t>(61 + ranks));
  constexpr std::int64_t kRows = 5, kHeads = 3;
  std::vector<float> lses, values;
  for (std::int64_t i = 0; i < ranks * kRows * kHeads; ++i) {
    const std::int64_t rank = i / (kRows * kHeads), row = i / kHeads % kRows;
    const float empty_marks[] = {-kInf, kInf, kNan};
    const bool no_key = row == 4 || (row == 1 && rank % 2 == 0);
    lses.push_back(no_key     ? empty_marks[random.below(3)]
                   : row == 2 ? -1e30F
                   : row == 3 ? 50.0F * static_cast<float>(rank)
                              : 2 * random.normal());
    for (std::int64_t d = 0; d < dim; ++d)
      values.push_back(no_key ? kNan : random.normal());
  }
  const Shape shape = {ranks, kRows, kHeads, dim};
  const Axes axes = {"rank", "row", "head", "latent"};
  RecordedTensor latent =
      dtype == Dtype::float32
          ? tensor(dtype, shape, axes, values)
          : bf16(shape, axes, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  RecordedTensor out = empty(Dtype::bfloat16, {kRows, kHeads, dim}, {"row", "head", "latent"});
  RecordedTensor lse = empty(Dtype::float32, {kRows, kHeads}, {"row", "head"});
  RecordedTensor corrected = empty(dtype, shape, axes);
  out.attributes = lse.attributes = corrected.attributes = {{"accumulation", "exact"}};
  std::map<std::string, RecordedTensor> outputs = {{"latent", out}, {"lse", lse}};
  if (dtype == Dtype::bfloat16) outputs["corrected"] = corrected;
  golden.add(
      "dcp_attention_merge",
      {{"rank_latent", latent},
       {"rank_lse", tensor(Dtype::float32, {ranks, kRows, kHeads}, {"rank", "row", "head"}, lses)}},
      std::move(outputs));
}

} // namespace

void context_parallel_file(const std::string& folder) {
  Golden golden(folder, "generated_context_parallel",
                {{"tie_rule", "smaller_index"},
                 {"topk_order", "rank"},
                 {"page_size", "16"},
                 {"dcp_world", "2"},
                 {"dcp_interleave", "1"},
                 {"lse_base", "e"}},
                {});
  golden.step(0, {});
  local_topk(golden);
  merge_topk(golden, 2, 12);
  slots_of_rank(golden, 2, "1", 300);
  merge_attention(golden, 2, 512, Dtype::bfloat16);
  golden.step(1, {{"topk_order", "ascending"},
                  {"dcp_world", "3"},
                  {"dcp_interleave", "5"},
                  {"lse_base", "2"}});
  merge_topk(golden, 3, 300);
  slots_of_rank(golden, 3, "2", 40);
  merge_attention(golden, 3, 300, Dtype::float32);
  golden.step(2, {{"dcp_world", "8"}, {"dcp_interleave", "64"}});
  merge_topk(golden, 8, 65);
  slots_of_rank(golden, 8, "0", 33);
  merge_attention(golden, 8, 33, Dtype::float32);
  golden.commit();
}

} // namespace dsakit::golden
