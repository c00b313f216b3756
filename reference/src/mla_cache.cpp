#include "dsakit/reference/mla_cache.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "activation.hpp"
#include "dsakit/reference/formats.hpp"
#include "fp8_table.hpp"
#include "mla_record.hpp"
#include "slots.hpp"

namespace dsakit::reference {
namespace {

constexpr std::int64_t kTiles = kMlaLatent / kMlaTile;

using Record = std::array<std::uint8_t, kMlaRecord>;

Record make_record(const MlaQuant& contract, const std::uint16_t* kv_c, const std::uint16_t* k_pe) {
  Record record;
  for (std::int64_t tile = 0; tile < kTiles; ++tile) {
    std::array<float, kMlaTile> x;
    load_activations(contract.activation_dtype, kv_c + tile * kMlaTile, x);
    const float amax = amax_of(x, contract.activation_dtype, 0);
    const float scale = std::max(amax / contract.qmax, std::numeric_limits<float>::min());
    std::uint8_t* codes = record.data() + tile * kMlaTile;
    for (float value : x)
      *codes++ = encode_fp8_saturating(contract.mla_fp8_encoding, value / scale);
    std::memcpy(record.data() + kMlaScaleOffset + tile * 4, &scale, sizeof scale);
  }
  std::memcpy(record.data() + kMlaPeOffset, k_pe, kMlaPe * sizeof *k_pe);
  return record;
}

} // namespace

Status check_mla_cache(std::int64_t page_size, std::int64_t page_stride, std::int64_t record_stride,
                       MlaRecord record) {
  const std::int64_t bytes = record == MlaRecord::fp8_ds_mla ? kMlaRecord : kMlaDenseRow;
  if (page_size < 1)
    return bad_input("page_size: found " + std::to_string(page_size) + ", want at least 1");
  if (record_stride < bytes)
    return bad_input("mla_cache record stride: found " + std::to_string(record_stride) +
                     " bytes, want at least " + std::to_string(bytes));
  const std::int64_t page_bytes = (page_size - 1) * record_stride + bytes;
  if (page_stride < page_bytes)
    return bad_input("mla_cache page stride: found " + std::to_string(page_stride) +
                     " bytes, want at least " + std::to_string(page_bytes));
  return {};
}

Status mla_cache_write(const MlaQuant& contract, const std::uint16_t* kv_c,
                       const std::uint16_t* k_pe, std::int64_t rows,
                       std::span<const std::int64_t> slot_mapping, MlaCache<std::uint8_t> cache) {
  DSAKIT_TRY(check_mla_cache(cache.page_size, cache.page_stride, cache.record_stride));
  DSAKIT_TRY(
      check_slot_mapping(slot_mapping, cache.pages * cache.page_size, "kv_c and k_pe", rows));

  std::vector<Record> records(slot_mapping.size());
  tbb::parallel_for(std::size_t{0}, records.size(), [&](std::size_t t) {
    if (slot_mapping[t] >= 0)
      records[t] = make_record(contract, kv_c + t * kMlaLatent, k_pe + t * kMlaPe);
  });
  // In order of tokens, so that of two tokens with one slot the later one stays.
  for (std::size_t t = 0; t < records.size(); ++t)
    if (slot_mapping[t] >= 0)
      std::copy(records[t].begin(), records[t].end(), record_of(cache, slot_mapping[t]));
  return {};
}

void read_mla_record(Fp8Encoding encoding, MlaScaleRead scale_read, const std::uint8_t* record,
                     float* values, ActivationDtype activation_dtype) {
  const std::array<float, 256>& value_of = fp8_table(encoding);
  for (std::int64_t i = 0; i < kMlaLatent; ++i) {
    float scale = 0;
    std::memcpy(&scale, record + kMlaScaleOffset + i / kMlaTile * 4, sizeof scale);
    if (scale_read == MlaScaleRead::bf16) scale = bf16_to_float(float_to_bf16(scale));
    values[i] = round_to_activation(activation_dtype, value_of[record[i]] * scale);
  }
  for (std::int64_t i = 0; i < kMlaPe; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, record + kMlaPeOffset + 2 * i, sizeof bits);
    values[kMlaLatent + i] = activation_to_float(activation_dtype, bits);
  }
}

} // namespace dsakit::reference
