// The MXFP4 indexer: every boundary of the quantiser, both page layouts, with and without the
// rotation, 16, 32 and 64 heads.
#include <cmath>
#include <limits>

#include "generator.hpp"
#include "requests.hpp"

namespace dsakit::golden {
namespace {

struct Mxfp4Step {
  int page_size;
  int heads;
  int next_n;
  const char* layout;
  const char* hadamard;
};

constexpr Mxfp4Step kSteps[] = {
    {64, 32, 2, "flat", "none"},
    {64, 16, 1, "preshuffle64", "query_and_key"},
    {16, 64, 3, "flat", "query_and_key"},
};

RecordedTensor packed(Shape shape, Axes axes) {
  return empty(Dtype::float4_e2m1fn_x2, std::move(shape), std::move(axes));
}
RecordedTensor e8m0(Shape shape, Axes axes) {
  return empty(Dtype::float8_e8m0fnu, std::move(shape), std::move(axes));
}

void mxfp4_step(Golden& golden, std::int64_t number, const Mxfp4Step& s) {
  golden.step(number, {{"page_size", std::to_string(s.page_size)},
                       {"index_page_layout", s.layout},
                       {"hadamard", s.hadamard}});
  Random random(static_cast<std::uint64_t>(4000 + number));
  const std::vector<std::int32_t> lengths = {37, 3, 131}; // seams of every page size
  const auto requests = static_cast<std::int64_t>(lengths.size());
  const std::int64_t rows = requests * s.next_n;
  const std::int64_t tokens = 37 + 3 + 131;
  // Groups of very different sizes, so that none can take the scale of another.
  const auto grouped = [&](std::int64_t i) {
    return std::ldexp(random.normal(), static_cast<int>(i / 32 % 7) - 3);
  };

  const auto query =
      golden.add("index_query_quant",
                 {{"index_q", bf16({rows, s.heads, 128}, {"row", "head", "dim"}, grouped)}},
                 {{"index_q_packed", packed({rows, s.heads, 64}, {"row", "head", "byte"})},
                  {"index_q_scale", e8m0({rows, s.heads, 4}, {"row", "head", "group"})}});
  const RecordedTensor weights =
      bf16({rows, s.heads}, {"row", "head"}, [&](std::int64_t) { return random.normal(); });

  const RecordedTensor key = bf16({tokens, 128}, {"token", "dim"}, grouped);
  const PagedRequests paged = paged_requests(lengths, s.page_size, random);
  const Shape pool = {paged.pages, std::int64_t{s.page_size} * 68};
  const auto cache =
      golden.add("index_cache_write",
                 {{"index_k", key},
                  {"slot_mapping", tensor(Dtype::int64, {tokens}, {"token"}, paged.slots)},
                  {"index_cache", bytes(pool, {"page", "byte"}, random)}},
                 {{"index_cache", empty(Dtype::uint8, pool, {"page", "byte"})}});

  const ScoredRows scored = scored_rows(lengths, s.next_n);
  std::vector<std::int32_t> table = paged.table;
  table[static_cast<std::size_t>(paged.columns)] = -1; // all keys of request 1: zeros
  const auto gathered = golden.add(
      "index_cache_gather",
      {{"index_cache", cache.at("index_cache")},
       {"block_table",
        tensor(Dtype::int32, {requests, paged.columns}, {"request", "column"}, table)},
       {"cu_seq_lens", tensor(Dtype::int32, {requests + 1}, {"boundary"}, scored.cu_seq_lens)}},
      {{"k_packed", packed({tokens, 64}, {"row", "byte"})},
       {"k_scale", e8m0({tokens, 4}, {"row", "group"})}});

  RecordedTensor logits = empty(Dtype::float32, {rows, tokens}, {"row", "key"});
  logits.attributes["accumulation"] = "exact";
  golden.add("index_logits_prefill",
             {{"index_q_packed", query.at("index_q_packed")},
              {"index_q_scale", query.at("index_q_scale")},
              {"k_packed", gathered.at("k_packed")},
              {"k_scale", gathered.at("k_scale")},
              {"index_weights", weights},
              {"ks", tensor(Dtype::int32, {rows}, {"row"}, scored.ks)},
              {"ke", tensor(Dtype::int32, {rows}, {"row"}, scored.ke)}},
             {{"logits", logits}});
  logits = empty(Dtype::float32, {rows, 131}, {"row", "key"});
  logits.attributes["accumulation"] = "exact";
  golden.add("index_logits_decode",
             {{"index_q_packed", query.at("index_q_packed")},
              {"index_q_scale", query.at("index_q_scale")},
              {"index_cache", cache.at("index_cache")},
              {"index_weights", weights},
              {"block_table",
               tensor(Dtype::int32, {requests, paged.columns}, {"request", "column"}, paged.table)},
              {"row_lens", tensor(Dtype::int32, {rows}, {"row"}, scored.row_lens)},
              {"row_request", tensor(Dtype::int32, {rows}, {"row"}, scored.row_request)}},
             {{"logits", logits}});
}

/// Element d of group g: every tie between codes and the bf16 beside it, codes themselves, scales
/// at their threshold, and what is zero, tiny, huge or no number.
float boundary(std::int64_t g, std::int64_t d) {
  constexpr float kTies[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5};
  constexpr float kSides[] = {1, 1 + 0x1p-7F, 1 - 0x1p-8F};
  const float size = std::ldexp(1.0F, static_cast<int>(g) - 8);
  switch (g % 8) {
  case 0: // the largest is 6, the scale `size`
  case 1:
  case 2: {
    const float value = d < 21   ? kTies[d / 3] * kSides[d % 3]
                        : d < 29 ? 0.5F * static_cast<float>(d - 21)
                                 : 6;
    return (g % 8 == 0 || (g % 8 == 2 && d % 2 == 0) ? value : -value) * size;
  }
  case 3: // amax 1.5 * 2^n, the last that keeps its scale
    return d == 31 ? -1.5F * size : static_cast<float>(d) * 0.0625F * size;
  case 4: // and the first that does not
    return d == 0 ? 1.5078125F * size : static_cast<float>(d) * 0.046875F * size;
  case 5: // below the floor, and -0
    return d % 4 == 0 ? -0.0F : d % 4 == 1 ? 0x1p-133F : d % 4 == 2 ? -0x1p-127F : 0;
  case 6: // the largest number there is
    return d == 17 ? -0x1.FEp127F : 0x1p126F / static_cast<float>(d + 1);
  default: // NaN, which no scale sees, and in half of the groups infinity
    return d == 3             ? std::numeric_limits<float>::quiet_NaN()
           : d == 20 && g & 8 ? std::numeric_limits<float>::infinity()
                              : static_cast<float>(d) * size;
  }
}

/// Quantisers alone: what would drown every other term of a score.
void boundaries_step(Golden& golden, std::int64_t number) {
  golden.step(number, {});
  constexpr std::int64_t kRows = 6; // 24 groups: each kind three times, at other places of a row
  const auto at = [](std::int64_t i) {
    const std::int64_t row = i / 128;
    return boundary((i / 32 + row) % 24, i % 32);
  };
  golden.add("index_query_quant", {{"index_q", bf16({kRows, 1, 128}, {"row", "head", "dim"}, at)}},
             {{"index_q_packed", packed({kRows, 1, 64}, {"row", "head", "byte"})},
              {"index_q_scale", e8m0({kRows, 1, 4}, {"row", "head", "group"})}});
  Random random(4100);
  const std::vector<std::int64_t> slots = {70, 3, -1, 64, 0, 127};
  golden.add("index_cache_write",
             {{"index_k", bf16({kRows + 1, 128}, {"token", "dim"}, at)}, // one without a slot
              {"slot_mapping", tensor(Dtype::int64, {kRows}, {"token"}, slots)},
              {"index_cache", bytes({2, 64 * 68}, {"page", "byte"}, random)}},
             {{"index_cache", empty(Dtype::uint8, {2, 64 * 68}, {"page", "byte"})}});
}

/// Rows whose two large elements cancel in half of the groups: what the others leave there is the
/// rounding of the sums before, so that another order of the butterflies shows.
void rotation_step(Golden& golden, std::int64_t number) {
  golden.step(number, {{"hadamard", "query_and_key"}});
  Random random(4200);
  constexpr std::int64_t kRows = 6;
  const auto at = [&](std::int64_t i) {
    const std::int64_t apart = std::int64_t{2} << i / 128; // 2 to 64 elements
    return i % 128 == 0 || i % 128 == apart ? 0x1p30F : random.normal();
  };
  golden.add("index_query_quant", {{"index_q", bf16({kRows, 1, 128}, {"row", "head", "dim"}, at)}},
             {{"index_q_packed", packed({kRows, 1, 64}, {"row", "head", "byte"})},
              {"index_q_scale", e8m0({kRows, 1, 4}, {"row", "head", "group"})}});
}

} // namespace

void mxfp4_file(const std::string& folder) {
  Golden golden(folder, "generated_mxfp4",
                {{"activation_dtype", "bf16"},
                 {"hadamard", "none"},
                 {"index_page_layout", "flat"},
                 {"page_size", "64"}},
                {});
  std::int64_t number = 0;
  for (const Mxfp4Step& step : kSteps)
    mxfp4_step(golden, number++, step);
  boundaries_step(golden, number++);
  rotation_step(golden, number);
  golden.commit();
}

} // namespace dsakit::golden
