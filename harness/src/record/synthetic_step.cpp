#include "synthetic_step.hpp"

#include <algorithm>

#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"

namespace dsakit::harness {
namespace {

constexpr std::byte kUnowned{0xA5};
constexpr std::int64_t kTokensAtOnce = 4096; ///< earlier tokens quantised together

/// Streams of a step; a step's first is 16 times its number.
enum Stream : std::uint32_t { hidden = 1, pages, index_k, kv_c, k_pe };

Draws draws_of(std::uint64_t seed, std::uint32_t step, Stream stream) {
  return {seed, 16 * (step + 1) + stream};
}

std::int64_t index_key_bytes(const reference::LayerContract& contract) {
  return std::holds_alternative<reference::Fp8Indexer>(contract.indexer) ? 132 : 68;
}

Status write_index_keys(const reference::LayerContract& contract,
                        const std::vector<std::uint16_t>& keys, std::span<const std::int64_t> slots,
                        Tensor& cache) {
  const auto rows = static_cast<std::int64_t>(slots.size());
  const reference::IndexCache<std::uint8_t> pool{cache.as<std::uint8_t>(), cache.shape[0],
                                                 cache.shape[1]};
  if (const auto* fp8 = std::get_if<reference::Fp8Indexer>(&contract.indexer))
    return reference::index_cache_write(fp8->key, keys.data(), rows, slots, pool);
  const auto& mxfp4 = std::get<reference::Mxfp4Indexer>(contract.indexer);
  return reference::index_cache_write_mxfp4(mxfp4.pages, mxfp4.quant, keys.data(), rows, slots,
                                            pool);
}

} // namespace

reference::LayerStep SyntheticStep::view() {
  const auto int32s = [](const Tensor& tensor) {
    return std::span(tensor.as<std::int32_t>(), static_cast<std::size_t>(tensor.elements()));
  };
  const std::span slots(slot_mapping.as<std::int64_t>(),
                        static_cast<std::size_t>(slot_mapping.elements()));
  const reference::BlockTable table{block_table.as<std::int32_t>(), block_table.shape[0],
                                    block_table.shape[1]};
  const std::int64_t page_size = mla_cache.shape[1];
  return {hidden_states.as<std::uint16_t>(),
          slot_mapping.elements(),
          int32s(query_lens),
          int32s(seq_lens),
          slots,
          slots,
          table,
          table,
          {index_cache.as<std::uint8_t>(), index_cache.shape[0], index_cache.shape[1]},
          {mla_cache.as<std::uint8_t>(), mla_cache.shape[0], page_size,
           page_size * reference::kMlaRecord, reference::kMlaRecord}};
}

Result<SyntheticStep> make_step(const reference::LayerConfig& config,
                                const reference::LayerContract& contract, const RequestGroup& group,
                                std::uint64_t seed, std::uint32_t number, Distribution distribution,
                                const reference::DcpRank& dcp) {
  const std::int64_t page_size = contract.page_size, requests = group.count;
  const std::int64_t length = group.context + group.added, tokens = requests * group.added;
  const std::int64_t own_length = reference::dcp_local_length(dcp, length);
  const std::int64_t columns = (own_length + page_size - 1) / page_size;
  const std::int64_t pool = requests * columns + 1;
  const ActivationDtype dtype = contract.activation_dtype;

  SyntheticStep step;
  const auto rows = draw_rows(draws_of(seed, number, Stream::hidden), distribution, 0, tokens,
                              config.hidden_size, dtype);
  step.hidden_states = Tensor(dtype == ActivationDtype::bf16 ? Dtype::bfloat16 : Dtype::float16,
                              {tokens, config.hidden_size});
  std::copy(rows.begin(), rows.end(), step.hidden_states.as<std::uint16_t>());
  step.query_lens = step.seq_lens = Tensor(Dtype::int32, {requests});
  std::fill_n(step.query_lens.as<std::int32_t>(), requests, static_cast<std::int32_t>(group.added));
  std::fill_n(step.seq_lens.as<std::int32_t>(), requests, static_cast<std::int32_t>(length));
  step.own_seq_lens = step.seq_lens;
  std::fill_n(step.own_seq_lens.as<std::int32_t>(), requests,
              static_cast<std::int32_t>(own_length));
  step.block_table = Tensor(Dtype::int32, {requests, columns});
  const auto order = draws_of(seed, number, Stream::pages).permutation(pool);
  std::copy_n(order.begin(), requests * columns, step.block_table.as<std::int32_t>());
  step.index_cache = Tensor(Dtype::uint8, {pool, page_size * index_key_bytes(contract)});
  step.mla_cache = Tensor(Dtype::uint8, {pool, page_size, reference::kMlaRecord});
  for (Tensor* cache : {&step.index_cache, &step.mla_cache})
    std::fill(cache->bytes.begin(), cache->bytes.end(), kUnowned);

  const auto slot_of = [&](std::int64_t request, std::int64_t position) -> std::int64_t {
    if (reference::dcp_owner(dcp, position) != dcp.rank) return -1;
    const std::int64_t index = reference::dcp_local_index(dcp, position);
    const std::int64_t page =
        step.block_table.as<std::int32_t>()[request * columns + index / page_size];
    return page * page_size + index % page_size;
  };
  step.slot_mapping = Tensor(Dtype::int64, {tokens});
  step.row_lens = step.own_row_lens = step.row_request = Tensor(Dtype::int32, {tokens});
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t position = group.context + t % group.added;
    step.slot_mapping.as<std::int64_t>()[t] = slot_of(t / group.added, position);
    step.row_lens.as<std::int32_t>()[t] = static_cast<std::int32_t>(position + 1);
    step.own_row_lens.as<std::int32_t>()[t] =
        static_cast<std::int32_t>(reference::dcp_local_length(dcp, position + 1));
    step.row_request.as<std::int32_t>()[t] = static_cast<std::int32_t>(t / group.added);
  }

  const auto latents = [&](Stream stream, std::int64_t first, std::int64_t count,
                           std::int64_t width) {
    return draw_rows(draws_of(seed, number, stream), distribution,
                     static_cast<std::uint64_t>(first), count, width, dtype);
  };
  const std::int64_t earlier = requests * group.context;
  for (std::int64_t first = 0; first < earlier; first += kTokensAtOnce) {
    const std::int64_t count = std::min(kTokensAtOnce, earlier - first);
    std::vector<std::int64_t> slots;
    for (std::int64_t i = first; i < first + count; ++i)
      slots.push_back(slot_of(i / group.context, i % group.context));
    DSAKIT_TRY(write_index_keys(contract,
                                latents(Stream::index_k, first, count, reference::kIndexHeadDim),
                                slots, step.index_cache));
    DSAKIT_TRY(reference::mla_cache_write(
        contract.mla, latents(Stream::kv_c, first, count, reference::kMlaLatent).data(),
        latents(Stream::k_pe, first, count, reference::kMlaPe).data(), count, slots,
        step.view().mla_cache));
  }
  return step;
}

} // namespace dsakit::harness
