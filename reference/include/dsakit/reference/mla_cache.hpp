// The MLA cache: 656-byte fp8_ds_mla records (spec 4); dense bf16 rows are only read.
#pragma once

#include <cstdint>
#include <span>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"

namespace dsakit::reference {

inline constexpr std::int64_t kMlaLatent = 512;
inline constexpr std::int64_t kMlaPe = 64;
inline constexpr std::int64_t kMlaTile = 128;      ///< latents a scale
inline constexpr std::int64_t kMlaRecord = 656;    ///< bytes of fp8_ds_mla
inline constexpr std::int64_t kMlaDenseRow = 1152; ///< bytes of bf16_576

/// A token's record: codes, scales and k_pe (spec 4), or a dense row of 576 bf16 values (spec 5.5).
enum class MlaRecord : std::uint8_t { fp8_ds_mla, bf16_576 };

/// Records in memory: slot = page * page_size + token.
template <class Byte>
struct MlaCache {
  Byte* data;
  std::int64_t pages;
  std::int64_t page_size;     ///< tokens
  std::int64_t page_stride;   ///< BYTES
  std::int64_t record_stride; ///< BYTES, at least a record's
};

/// Per tile: s = max(amax / qmax, FLT_MIN), code = e4m3(x / s), fp32 IEEE divisions, saturating;
/// k_pe bit for bit. kv_c: [rows, 512], k_pe: [rows, 64] bits of a 16-bit dtype; rows past
/// slot_mapping are ignored, fewer are bad_input. Slot -1 is skipped; below -1 or past the pool:
/// bad_input. NaN: ignored by amax, stored as the format's NaN; infinity: as the largest finite
/// input.
Status mla_cache_write(const MlaQuant& contract, const std::uint16_t* kv_c,
                       const std::uint16_t* k_pe, std::int64_t rows,
                       std::span<const std::int64_t> slot_mapping, MlaCache<std::uint8_t> cache);

/// record [576]: bf16(code * scale) for 512 latents, then k_pe, as exact floats. scale_read bf16
/// rounds the scale to bf16 first. With fp16 activations the product rounds to fp16, and k_pe is.
void read_mla_record(Fp8Encoding encoding, MlaScaleRead scale_read, const std::uint8_t* record,
                     float* values, ActivationDtype activation_dtype = ActivationDtype::bf16);

} // namespace dsakit::reference
