// The indexer from query and key to logits: the page sizes, numbers of heads and rows of a request
// that no recorded kernel has.
#include <algorithm>
#include <array>
#include <cmath>

#include "generator.hpp"
#include "requests.hpp"

namespace dsakit::golden {
namespace {

struct IndexStep {
  int page_size;
  int heads;
  int next_n;
  const char* layout;
  const char* norm;
  const char* rounding;
  const char* fold;
};

/// Every number of heads, rows of a request and page size that a recorded kernel lacks.
constexpr std::array<IndexStep, 4> kIndexSteps = {{
    {1, 8, 1, "block_flat", "layernorm", "two", "bf16_intermediate"},
    {16, 12, 2, "mfma_preshuffle", "rmsnorm", "two", "fp32"},
    {64, 24, 3, "block_flat", "rmsnorm", "one", "bf16_intermediate"},
    {128, 48, 4, "mfma_preshuffle", "layernorm", "two", "fp32"},
}};

void index_step(Golden& golden, std::int64_t number, const IndexStep& s, const Encoding& encoding) {
  golden.step(number, {{"page_size", std::to_string(s.page_size)},
                       {"index_page_layout", s.layout},
                       {"index_k_norm", s.norm},
                       {"rmsnorm_rounding", s.rounding},
                       {"weight_fold", s.fold}});
  Random random(static_cast<std::uint64_t>(number) +
                100 * static_cast<std::uint64_t>(encoding.largest));
  const std::vector<std::int32_t> lengths = {37, 3, 131}; // seams of every page size
  const auto requests = static_cast<std::int64_t>(lengths.size());
  const std::int64_t rows = requests * s.next_n;
  const std::int64_t tokens = 37 + 3 + 131;

  // Queries: the codes' own values in row 0 (so that every code is written and scored), an amax
  // with the mantissa of qmax and one just above it, one below the floor, ordinary ones.
  const auto query = golden.add(
      "index_query_quant",
      {{"index_q", bf16({rows, s.heads, 128}, {"row", "head", "dim"},
                        [&](std::int64_t i) -> float {
                          const std::int64_t head = i / 128 % s.heads, dim = i % 128;
                          if (i < 128 * s.heads && head < 2) { // positive codes, negative codes
                            const auto code = static_cast<std::uint8_t>(dim + 128 * head);
                            const auto value = reference::decode_fp8(
                                encoding.dtype == Dtype::float8_e4m3fn ? Fp8Encoding::e4m3fn
                                                                       : Fp8Encoding::e4m3fnuz,
                                code);
                            return std::abs(value) <= encoding.largest ? value : encoding.largest;
                          }
                          if (head == 2 && dim == 5) return encoding.largest * 0.25F;
                          if (head == 3 && dim == 6) return encoding.largest * 0.25F * 1.0078125F;
                          if (head == 4) return 1e-12F * random.normal();
                          return random.normal();
                        })}},
      {{"index_q_fp8", empty(encoding.dtype, {rows, s.heads, 128}, {"row", "head", "dim"})},
       {"index_q_scale", empty(Dtype::float32, {rows, s.heads}, {"row", "head"})}});
  const auto weights = golden.add(
      "index_weights_fold",
      {{"index_weights",
        bf16({rows, s.heads}, {"row", "head"}, [&](std::int64_t) { return random.normal(); })},
       {"index_q_scale", query.at("index_q_scale")}},
      {{"index_weights_folded", empty(Dtype::float32, {rows, s.heads}, {"row", "head"})}});

  std::map<std::string, RecordedTensor> norm = {
      {"index_k_raw", bf16({tokens, 128}, {"token", "dim"},
                           [&](std::int64_t i) { // rows of very different sizes, with a mean
                             return std::ldexp(random.normal() + 0.5F,
                                               static_cast<int>(i / 128 % 7) - 3);
                           })},
      {"norm_weight",
       bf16({128}, {"dim"}, [&](std::int64_t) { return 1 + 0.1F * random.normal(); })}};
  if (std::string(s.norm) == "layernorm")
    norm["norm_bias"] = bf16({128}, {"dim"}, [&](std::int64_t) { return 0.1F * random.normal(); });
  const auto key =
      golden.add("index_key_norm", std::move(norm),
                 {{"index_k", empty(Dtype::bfloat16, {tokens, 128}, {"token", "dim"})}});

  const PagedRequests paged = paged_requests(lengths, s.page_size, random);
  const std::int64_t pages = paged.pages;
  const auto cache = golden.add(
      "index_cache_write",
      {{"index_k", key.at("index_k")},
       {"slot_mapping", tensor(Dtype::int64, {tokens}, {"token"}, paged.slots)},
       {"index_cache", bytes({pages, std::int64_t{s.page_size} * 132}, {"page", "byte"}, random)}},
      {{"index_cache",
        empty(Dtype::uint8, {pages, std::int64_t{s.page_size} * 132}, {"page", "byte"})}});
  const RecordedTensor block_table =
      tensor(Dtype::int32, {requests, paged.columns}, {"request", "column"}, paged.table);

  const ScoredRows scored = scored_rows(lengths, s.next_n);
  const auto gathered = golden.add(
      "index_cache_gather",
      {{"index_cache", cache.at("index_cache")},
       {"block_table", block_table},
       {"cu_seq_lens", tensor(Dtype::int32, {requests + 1}, {"boundary"}, scored.cu_seq_lens)}},
      {{"k_fp8", empty(encoding.dtype, {tokens, 128}, {"row", "dim"})},
       {"k_scale", empty(Dtype::float32, {tokens}, {"row"})}});

  RecordedTensor logits = empty(Dtype::float32, {rows, tokens}, {"row", "key"});
  logits.attributes["accumulation"] = "exact";
  golden.add("index_logits_prefill",
             {{"index_q_fp8", query.at("index_q_fp8")},
              {"k_fp8", gathered.at("k_fp8")},
              {"k_scale", gathered.at("k_scale")},
              {"index_weights_folded", weights.at("index_weights_folded")},
              {"ks", tensor(Dtype::int32, {rows}, {"row"}, scored.ks)},
              {"ke", tensor(Dtype::int32, {rows}, {"row"}, scored.ke)}},
             {{"logits", logits}});
  logits = empty(Dtype::float32, {rows, 131}, {"row", "key"});
  logits.attributes["accumulation"] = "exact";
  golden.add("index_logits_decode",
             {{"index_q_fp8", query.at("index_q_fp8")},
              {"index_cache", cache.at("index_cache")},
              {"index_weights_folded", weights.at("index_weights_folded")},
              {"block_table", block_table},
              {"row_lens", tensor(Dtype::int32, {rows}, {"row"}, scored.row_lens)},
              {"row_request", tensor(Dtype::int32, {rows}, {"row"}, scored.row_request)}},
             {{"logits", logits}});
}

} // namespace

void index_file(const std::string& folder, const Encoding& encoding) {
  Golden golden(folder, std::string("generated_index_") + encoding.name,
                {{"index_fp8_encoding", encoding.name},
                 {"qmax", encoding.qmax},
                 {"scale_kind", "ue8m0"},
                 {"activation_dtype", "bf16"},
                 {"index_k_floor", "1e-4"},
                 {"index_q_floor", "1e-10"},
                 {"weight_fold", "fp32"},
                 {"index_k_norm", "layernorm"},
                 {"rmsnorm_rounding", "two"},
                 {"page_size", "64"},
                 {"index_page_layout", "block_flat"}},
                {{"rms_norm_eps", "1e-6"}});
  for (std::size_t i = 0; i < kIndexSteps.size(); ++i)
    index_step(golden, static_cast<std::int64_t>(i), kIndexSteps[i], encoding);
  golden.commit();
}

} // namespace dsakit::golden
