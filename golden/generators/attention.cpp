// MLA cache, slots and attention: rounds and splits without a valid slot, k beyond one round, page
// seams.
#include <algorithm>
#include <array>
#include <cmath>

#include "generator.hpp"

namespace dsakit::golden {
namespace {

struct AttentionStep {
  int page_size;
  int heads;
  int k;
  int requests;
  const char* lse_base;
  const char* scale_read;
};

constexpr std::array<AttentionStep, 4> kAttentionSteps = {{
    {64, 16, 40, 3, "e", "fp32"}, // more than one round of 32, one of them empty
    {16, 8, 96, 2, "2", "bf16"},
    {64, 96, 128, 1, "e", "bf16"}, // the heads of Kimi K3.1
    {64, 1, 1100, 1, "e", "fp32"}, // two splits
}};

void attention_step(Golden& golden, std::int64_t number, const AttentionStep& s,
                    const Encoding& encoding) {
  golden.step(number, {{"page_size", std::to_string(s.page_size)}, {"lse_base", s.lse_base}});
  Random random(static_cast<std::uint64_t>(number) +
                1000 * static_cast<std::uint64_t>(encoding.largest));
  const std::int64_t length = std::min<std::int64_t>(s.k + 9, 620); // keys of each request
  const std::int64_t columns = (length + s.page_size - 1) / s.page_size;
  const std::int64_t pages = s.requests * columns + 1;
  const std::int64_t tokens = s.requests * length;
  const auto order = random.permutation(pages);
  std::vector<std::int32_t> table;
  std::vector<std::int64_t> slot_mapping;
  for (std::int64_t r = 0; r < s.requests; ++r) {
    for (std::int64_t c = 0; c < columns; ++c)
      table.push_back(static_cast<std::int32_t>(order[table.size()]));
    for (std::int64_t t = 0; t < length; ++t)
      slot_mapping.push_back(table[static_cast<std::size_t>(r * columns + t / s.page_size)] *
                                 std::int64_t{s.page_size} +
                             t % s.page_size);
  }
  // Tiles of 128 of very different sizes, one of them zero.
  const auto latent = bf16({tokens, 512}, {"token", "latent"}, [&](std::int64_t i) {
    const std::int64_t tile = i / 128;
    return tile % 11 == 3 ? 0.0F : std::ldexp(random.normal(), static_cast<int>(tile % 5) - 3);
  });
  const Shape cache_shape = {pages, s.page_size, 656};
  const Axes cache_axes = {"page", "token", "byte"};
  const auto cache = golden.add(
      "mla_cache_write",
      {{"kv_c", latent},
       {"k_pe", bf16({tokens, 64}, {"token", "pe"}, [&](std::int64_t) { return random.normal(); })},
       {"slot_mapping", tensor(Dtype::int64, {tokens}, {"token"}, slot_mapping)},
       {"mla_cache", bytes(cache_shape, cache_axes, random)}},
      {{"mla_cache", empty(Dtype::uint8, cache_shape, cache_axes)}});

  // A row of a request: shuffled positions; row 1 empty; every third row a round of 32 without one;
  // what a row does not have is -1, inside the row too.
  const std::int64_t rows = 3 * s.requests;
  std::vector<std::int32_t> indices, row_request, row_lens;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto positions = random.permutation(length);
    row_request.push_back(static_cast<std::int32_t>(row / 3));
    row_lens.push_back(static_cast<std::int32_t>(row == 1 ? 0 : length));
    for (std::int64_t i = 0; i < s.k; ++i) {
      const bool hole = row == 1 || i % 17 == 5 || (row % 3 == 2 && i / 32 == s.k / 64);
      indices.push_back(hole || i >= length
                            ? -1
                            : static_cast<std::int32_t>(positions[static_cast<std::size_t>(i)]));
    }
  }
  const auto slots = golden.add(
      "topk_slots",
      {{"topk_indices", tensor(Dtype::int32, {rows, s.k}, {"row", "k"}, indices)},
       {"block_table", tensor(Dtype::int32, {s.requests, columns}, {"request", "column"}, table)},
       {"row_request", tensor(Dtype::int32, {rows}, {"row"}, row_request)},
       {"row_lens", tensor(Dtype::int32, {rows}, {"row"}, row_lens)}},
      {{"slots", empty(Dtype::int32, {rows, s.k}, {"row", "k"})}});

  RecordedTensor out = empty(Dtype::bfloat16, {rows, s.heads, 512}, {"row", "head", "latent"});
  RecordedTensor lse = empty(Dtype::float32, {rows, s.heads}, {"row", "head"});
  out.attributes = lse.attributes = {{"accumulation", "exact"}, {"mla_scale_read", s.scale_read}};
  golden.add("sparse_attention",
             {{"mla_query", bf16({rows, s.heads, 576}, {"row", "head", "dim"},
                                 [&](std::int64_t) { return random.normal(); })},
              {"mla_cache", cache.at("mla_cache")},
              {"slots", slots.at("slots")}},
             {{"latent", out}, {"lse", lse}});
}

} // namespace

void attention_file(const std::string& folder, const Encoding& encoding) {
  Golden golden(folder, std::string("generated_attention_") + encoding.name,
                {{"mla_fp8_encoding", encoding.name},
                 {"mla_record", "fp8_ds_mla"},
                 {"qmax", encoding.qmax},
                 {"activation_dtype", "bf16"},
                 {"page_size", "64"},
                 {"lse_base", "e"}},
                {{"softmax_scale", "0.0625"}});
  for (std::size_t i = 0; i < kAttentionSteps.size(); ++i)
    attention_step(golden, static_cast<std::int64_t>(i), kAttentionSteps[i], encoding);
  golden.commit();
}

} // namespace dsakit::golden
