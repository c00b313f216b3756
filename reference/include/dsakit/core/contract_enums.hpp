// The choices that a contract makes, as types: all that device code needs of it.
#pragma once

#include <cstdint>

namespace dsakit {

/// Which e4m3 the bytes of a tensor are. A property of the tensor, never of the device.
enum class Fp8Encoding : std::uint8_t { e4m3fn, e4m3fnuz };

/// Where a token's bytes lie in an index cache page (spec 2.5, 3.2).
enum class IndexPageLayout : std::uint8_t {
  block_flat,      ///< FP8: page_size rows of 128 bytes, then page_size fp32 scales
  mfma_preshuffle, ///< FP8: 16 x 16 tiles, then the scales; page_size % 16 == 0
  flat,            ///< MXFP4: rows of 64 bytes, then 4 e8m0 bytes a token
  preshuffle64,    ///< MXFP4: tiles of a 64-token page
};

/// How a quantiser's scale is rounded before it is stored and used.
enum class ScaleKind : std::uint8_t { ue8m0, fp32 };

/// What MXFP4 quantises (spec 3.1): the activations, or each row of 128 of queries and of keys
/// times the normalised Hadamard matrix.
enum class Hadamard : std::uint8_t { none, query_and_key };

/// How the producer of an output accumulates, hence which gate its error is held to (spec 8).
enum class Accumulation : std::uint8_t { exact, fp32, sm90_wgmma_fp8 };

/// Where the indexer's weight fold rounds (spec 2.3).
enum class WeightFold : std::uint8_t {
  bf16_intermediate, ///< bf16(w * heads^-0.5), then fp32
  fp32,
};

/// Which norm the indexer's keys get (spec 1).
enum class IndexKNorm : std::uint8_t { layernorm, rmsnorm };

/// RMSNorm: x * r rounded to the activation dtype before the weight, or one rounding at the end.
enum class RmsNormRounding : std::uint8_t { one, two };

/// How a reader of 656-byte MLA records takes a tile's scale (spec 12): as stored, or as bf16.
enum class MlaScaleRead : std::uint8_t { fp32, bf16 };

/// Base of the logarithm in `lse`.
enum class LseBase : std::uint8_t { e, two };

/// Order of a top-k row: best first, or ascending positions.
enum class TopkOrder : std::uint8_t { rank, ascending };

/// The output gate: sigmoid(gate) rounded to the activation dtype before the product, or one
/// rounding at the end (spec 1.11).
enum class GateRounding : std::uint8_t { one, two };

/// How the weight of a projection is stored.
enum class WeightFormat : std::uint8_t {
  bf16,
  fp8_channel, ///< e4m3 codes, an fp32 scale for each output
  fp8_block,   ///< e4m3 codes, an fp32 scale for each 128 x 128 block
};

/// Dtype of the layer's activations.
enum class ActivationDtype : std::uint8_t { bf16, fp16 };

} // namespace dsakit
