// MLA over selected 656-byte records, read where they lie. One workgroup takes 16 heads of a token
// and one part of its slots; parts are merged by a second launch, which is left out for one part.
//
// 32 keys at a time: records become bf16 rows in LDS; waves split the 576 dims of the scores
// between them; every wave then has the softmax of all 32 keys, already in the lanes that the
// product with the values wants them in, and works on its own share of the 512 latents.
#include <hip/hip_runtime.h>

#include "device/matrix.hpp"
#include "device/mla_record.hpp"
#include "dsakit/optimized/sparse_attention.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kWaves = kBlock / kWaveSize;
constexpr int kKeys = 32; // a round
constexpr int kKeyTiles = kKeys / kTile;
constexpr int kLanesPerKey = kBlock / kKeys;           // 64 latents and 8 of k_pe each
constexpr int kDepths = kWaves / kKeyTiles;            // shares of the 576 dims of a score
constexpr int kDepthSteps = kMlaDim / kTile / kDepths; // steps of 16 dims in a share
constexpr int kLatentTiles = kMlaLatent / kTile / kWaves;

struct AttentionLds {
  // Eight more than a row holds, so that the rows of a tile start in different banks.
  alignas(16) std::uint16_t key[kKeys][kMlaDim + 8];
  float score[kDepths][kTile][kKeys + 1];
  std::int32_t valid[kKeys];
};

/// A row's softmax so far: the largest score, and the sum of exp(score - largest).
struct Softmax {
  float largest[kRowsPerLane];
  float sum[kRowsPerLane];
};

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void load_keys(AttentionLds& lds, const SparseAttentionParams& p,
                             const std::int32_t* slots, int keys) {
  const int key = static_cast<int>(threadIdx.x) / kLanesPerKey;
  const int part = static_cast<int>(threadIdx.x) % kLanesPerKey;
  const std::int64_t slot = key < keys ? slots[key] : -1;
  const std::int64_t page = slot / p.page_size;
  const bool valid = slot >= 0 && page < p.pages;
  if (part == 0) lds.valid[key] = valid;
  // An invalid slot's row is zeros: its probability is 0, and 0 times garbage need not be.
  const std::uint8_t* record =
      p.cache + (valid ? page * p.page_stride + slot % p.page_size * p.record_stride : 0);
  float scale = 0;
  if (valid) {
    scale = *reinterpret_cast<const float*>(record + kMlaScaleOffset + 4 * (part / 2));
    if (p.scale_read == MlaScaleRead::bf16) scale = bf16_to_float(float_to_bf16(scale));
  }
  for (int chunk = 0; chunk < 4; ++chunk) {
    const int dim = 64 * part + 16 * chunk;
    const Bytes16 codes = valid ? load16(record + dim) : Bytes16{};
    for (int half = 0; half < 2; ++half) {
      Bytes16 values = {};
      for (int i = 0; i < 8; ++i) {
        const std::uint32_t code = codes.word[2 * half + i / 4] >> 8 * (i % 4) & 0xFFu;
        const std::uint32_t value = float_to_bf16(fp8_to_float<kEncoding>(code) * scale);
        values.word[i / 2] |= value << 16 * (i % 2);
      }
      store16(&lds.key[key][dim + 8 * half], values);
    }
  }
  store16(&lds.key[key][kMlaLatent + 8 * part],
          valid ? load16(record + kMlaPeOffset + 16 * part) : Bytes16{});
}

/// Scores of 16 heads and 32 keys: each wave adds up its share of the dims for one tile of keys.
DSAKIT_DEVICE void score_keys(AttentionLds& lds, const Bf16Rows (&query)[kDepthSteps], int wave) {
  const int tile = wave % kKeyTiles;
  const int depth = wave / kKeyTiles;
  Accumulator dot = {};
  for (int step = 0; step < kDepthSteps; ++step) {
    const int dim = (depth * kDepthSteps + step) * kTile + 4 * operand_quarter();
    Bf16Rows keys;
    for (int r = 0; r < kRowsPerLane; ++r)
      __builtin_memcpy(keys.word[r], &lds.key[tile * kTile + operand_row(r)][dim], 8);
    multiply(dot, query[step], keys);
  }
  for (int i = 0; i < kAccPerLane; ++i)
    lds.score[depth][accumulator_row(i)][tile * kTile + accumulator_column(accumulator_slot(i))] =
        dot.v[i];
}

/// p = exp(score - largest) of the round's keys as the operand of the product with the values;
/// `shrink` is what the sums so far are to be multiplied with.
DSAKIT_DEVICE void update_softmax(const AttentionLds& lds, float softmax_scale, Softmax& softmax,
                                  Bf16Rows (&probability)[kKeyTiles],
                                  float (&shrink)[kRowsPerLane]) {
  for (int r = 0; r < kRowsPerLane; ++r) {
    float score[kKeyTiles][4];
    float largest = softmax.largest[r];
    for (int tile = 0; tile < kKeyTiles; ++tile)
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kTile + 4 * operand_quarter() + i;
        float dot = 0;
        for (int depth = 0; depth < kDepths; ++depth)
          dot += lds.score[depth][operand_row(r)][key];
        score[tile][i] = lds.valid[key] ? dot * softmax_scale : kMinusInfinity;
        largest = larger_or_nan(largest, score[tile][i]);
      }
    largest = max_over_quarters(largest);
    const bool empty = largest == kMinusInfinity; // and -inf - -inf is NaN
    shrink[r] = empty ? 1.0f : exponential(softmax.largest[r] - largest);
    float sum = 0;
    for (int tile = 0; tile < kKeyTiles; ++tile)
      for (int pair = 0; pair < 2; ++pair) {
        std::uint32_t packed = 0;
        for (int i = 0; i < 2; ++i) {
          const float p = empty ? 0.0f : exponential(score[tile][2 * pair + i] - largest);
          sum += p;
          packed |= float_to_bf16(p) << 16 * i;
        }
        probability[tile].word[r][pair] = packed;
      }
    softmax.sum[r] = softmax.sum[r] * shrink[r] + sum_over_quarters(sum);
    softmax.largest[r] = largest;
  }
}

/// latent += p V for the wave's share of the latents.
DSAKIT_DEVICE void add_values(const AttentionLds& lds, const Bf16Rows (&probability)[kKeyTiles],
                              const float (&shrink)[kRowsPerLane], int wave,
                              Accumulator (&latent)[kLatentTiles]) {
  float factor[kAccPerLane];
  for (int i = 0; i < kAccPerLane; ++i)
    factor[i] = at_accumulator_row(shrink, i);
  for (int t = 0; t < kLatentTiles; ++t) {
    for (int i = 0; i < kAccPerLane; ++i)
      latent[t].v[i] *= factor[i];
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      // A value operand's rows are latents, its k the keys: four rows of LDS, one column.
      Bf16Rows values;
      for (int r = 0; r < kRowsPerLane; ++r) {
        const int dim = (wave * kLatentTiles + t) * kTile + operand_row(r);
        const int key = tile * kTile + 4 * operand_quarter();
        for (int pair = 0; pair < 2; ++pair)
          values.word[r][pair] = lds.key[key + 2 * pair][dim] |
                                 static_cast<std::uint32_t>(lds.key[key + 2 * pair + 1][dim]) << 16;
      }
      multiply(latent[t], probability[tile], values);
    }
  }
}

/// lse of a softmax, natural; -inf for an empty one.
DSAKIT_DEVICE float log_sum_exp(float largest, float sum) {
  return sum > 0 || sum != sum ? largest + logarithm(sum) : kMinusInfinity;
}

constexpr float kLog2E = 1.44269504088896341f;

DSAKIT_DEVICE float in_base(float natural, LseBase base) {
  return base == LseBase::e ? natural : natural * kLog2E;
}

DSAKIT_DEVICE int head_tiles(const SparseAttentionParams& p) {
  return (p.heads + kTile - 1) / kTile;
}

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void attend(const SparseAttentionParams& p) {
  const int split = static_cast<int>(blockIdx.x) % p.splits;
  const int first_head = static_cast<int>(blockIdx.x) / p.splits % head_tiles(p) * kTile;
  const std::int64_t token = static_cast<int>(blockIdx.x) / p.splits / head_tiles(p);
  const int keys_per_split = (p.k + p.splits * kKeys - 1) / (p.splits * kKeys) * kKeys;
  const int begin = split * keys_per_split;
  const int end = begin + keys_per_split < p.k ? begin + keys_per_split : p.k;
  const std::int32_t* slots = p.slots + token * p.slots_stride;

  // This wave's share of the query: zeros for heads past the last.
  const int wave = wave_id();
  const int depth = wave / kKeyTiles;
  Bf16Rows query[kDepthSteps];
  for (int step = 0; step < kDepthSteps; ++step)
    for (int r = 0; r < kRowsPerLane; ++r) {
      const int head = first_head + operand_row(r);
      const int dim = (depth * kDepthSteps + step) * kTile + 4 * operand_quarter();
      query[step].word[r][0] = 0;
      query[step].word[r][1] = 0;
      if (head < p.heads)
        __builtin_memcpy(
            query[step].word[r],
            __builtin_assume_aligned(p.q + token * p.q_token_stride + head * kMlaDim + dim, 8), 8);
    }

  DSAKIT_SHARED(AttentionLds, lds);
  Softmax softmax;
  for (int r = 0; r < kRowsPerLane; ++r) {
    softmax.largest[r] = kMinusInfinity;
    softmax.sum[r] = 0;
  }
  Accumulator latent[kLatentTiles] = {};
  for (int first = begin; first < end; first += kKeys) {
    load_keys<kEncoding>(lds, p, slots + first, end - first);
    __syncthreads(); // all waves read all keys
    score_keys(lds, query, wave);
    __syncthreads(); // and all scores
    Bf16Rows probability[kKeyTiles];
    float shrink[kRowsPerLane];
    update_softmax(lds, p.softmax_scale, softmax, probability, shrink);
    add_values(lds, probability, shrink, wave, latent);
    __syncthreads(); // before the next round's keys replace these
  }

  for (int i = 0; i < kAccPerLane; ++i) {
    const int head = first_head + accumulator_row(i);
    const float sum = at_accumulator_row(softmax.sum, i);
    if (head >= p.heads) continue;
    for (int t = 0; t < kLatentTiles; ++t) {
      const int dim = (wave * kLatentTiles + t) * kTile + accumulator_column(accumulator_slot(i));
      const float value = sum == 0 ? 0.0f : latent[t].v[i] / sum;
      if (p.splits == 1)
        p.latent[(token * p.heads + head) * kMlaLatent + dim] =
            static_cast<std::uint16_t>(float_to_bf16(value));
      else
        p.part_latent[((token * p.splits + split) * p.heads + head) * kMlaLatent + dim] = value;
    }
  }
  if (wave != 0 || operand_quarter() != 0) return;
  for (int r = 0; r < kRowsPerLane; ++r) {
    const int head = first_head + operand_row(r);
    if (head >= p.heads) continue;
    const float lse = log_sum_exp(softmax.largest[r], softmax.sum[r]);
    if (p.splits == 1)
      p.lse[token * p.heads + head] = in_base(lse, p.lse_base);
    else
      p.part_lse[(token * p.splits + split) * p.heads + head] = lse;
  }
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_sparse_attention_e4m3fn(SparseAttentionParams p) {
  attend<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_sparse_attention_e4m3fnuz(SparseAttentionParams p) {
  attend<Fp8Encoding::e4m3fnuz>(p);
}

/// One workgroup a token and head: LSE-weighted sum of the parts, in fp32, in ascending order.
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_sparse_attention_merge(SparseAttentionParams p) {
  const std::int64_t token = static_cast<int>(blockIdx.x) / p.heads;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const auto part = [&](int split) { return (token * p.splits + split) * p.heads + head; };
  float largest = kMinusInfinity;
  for (int split = 0; split < p.splits; ++split)
    largest = larger_or_nan(largest, p.part_lse[part(split)]);
  float sum = 0;
  for (int split = 0; split < p.splits; ++split)
    if (largest != kMinusInfinity) sum += exponential(p.part_lse[part(split)] - largest);
  for (int dim = static_cast<int>(threadIdx.x); dim < kMlaLatent; dim += kBlock) {
    float value = 0;
    for (int split = 0; split < p.splits; ++split) {
      const float lse = p.part_lse[part(split)];
      if (lse != kMinusInfinity)
        value += exponential(lse - largest) * p.part_latent[part(split) * kMlaLatent + dim];
    }
    p.latent[(token * p.heads + head) * kMlaLatent + dim] =
        static_cast<std::uint16_t>(float_to_bf16(sum == 0 ? 0.0f : value / sum));
  }
  if (threadIdx.x == 0)
    p.lse[token * p.heads + head] = in_base(log_sum_exp(largest, sum), p.lse_base);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kMaxHeads = 128;
constexpr int kMaxSplits = 64;
constexpr int kSlotsPerSplit = 512; // where nothing was tuned

std::int64_t workgroups(const SparseAttentionParams& p) {
  return p.tokens * workgroups_for(p.heads, kTile) * p.splits;
}

std::int64_t part_rows(const SparseAttentionParams& p) {
  return p.splits == 1 ? 0 : p.tokens * p.splits * p.heads;
}

std::size_t workspace_bytes(const SparseAttentionParams& p) {
  return static_cast<std::size_t>(part_rows(p)) * (kMlaLatent + 1) * sizeof(float);
}

std::int32_t standard_splits(const SparseAttentionParams& p) {
  const std::int32_t splits = p.k / kSlotsPerSplit;
  return splits < 1 ? 1 : splits > kMaxSplits ? kMaxSplits : splits;
}

std::string problem_class(const SparseAttentionParams& p) {
  return class_of({{"tokens", p.tokens}, {"heads", p.heads}, {"k", p.k}});
}

const Tuning<SparseAttentionParams>& tuning() {
  static const Tuning<SparseAttentionParams> list = [] {
    std::vector<std::int32_t> splits;
    for (std::int32_t n = 1; n <= kMaxSplits; ++n)
      splits.push_back(n);
    return Tuning<SparseAttentionParams>{
        "sparse_attention",
        {{"splits", "parts of a token's slots that are worked on apart; the bits depend on it",
          splits, &SparseAttentionParams::splits, standard_splits}},
        problem_class};
  }();
  return list;
}

Status supports(const SparseAttentionParams& p) {
  if (p.heads < 1 || p.heads > kMaxHeads)
    return unsupported("heads is " + std::to_string(p.heads) + ", want 1 to " +
                       std::to_string(kMaxHeads));
  if (p.splits < 1 || p.splits > kMaxSplits)
    return unsupported("splits is " + std::to_string(p.splits) + ", want 1 to " +
                       std::to_string(kMaxSplits));
  if (p.k < 0) return unsupported("k is " + std::to_string(p.k) + ", want at least 0");
  DSAKIT_TRY(check_mla_cache(p.page_size, p.page_stride, p.record_stride, p.cache));
  DSAKIT_TRY(check_multiple("q_token_stride", p.q_token_stride, 8, "elements"));
  DSAKIT_TRY(check_aligned("q", p.q, 16));
  DSAKIT_TRY(check_workgroups(workgroups(p)));
  return check_workgroups(p.tokens * p.heads);
}

} // namespace

Status sparse_attention(const SparseAttentionParams& params, void* workspace, std::size_t bytes,
                        hipStream_t stream) {
  DSAKIT_TRY(supports(params));
  if (bytes < workspace_bytes(params))
    return unsupported("the workspace has " + std::to_string(bytes) + " bytes, want " +
                       std::to_string(workspace_bytes(params)));
  if (params.tokens == 0) return {};
  SparseAttentionParams p = params;
  p.part_latent = static_cast<float*>(workspace);
  p.part_lse = p.part_latent + part_rows(p) * kMlaLatent;
  const dim3 grid(static_cast<unsigned>(workgroups(p)));
  if (p.encoding == Fp8Encoding::e4m3fn)
    hipLaunchKernelGGL(dsakit_sparse_attention_e4m3fn, grid, dim3(kBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_sparse_attention_e4m3fnuz, grid, dim3(kBlock), 0, stream, p);
  DSAKIT_TRY(launch_status("sparse_attention"));
  if (p.splits == 1) return {};
  hipLaunchKernelGGL(dsakit_sparse_attention_merge, dim3(static_cast<unsigned>(p.tokens * p.heads)),
                     dim3(kBlock), 0, stream, p);
  return launch_status("sparse_attention");
}

DSAKIT_REGISTER_KERNELS(SparseAttentionParams,
                        {"mfma16", supports, workspace_bytes, workgroups,
                         erase_stream<SparseAttentionParams, sparse_attention>, &tuning()})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
