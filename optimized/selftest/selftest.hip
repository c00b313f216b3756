// Kernels that do nothing but use the device layer and write down what it gave, one 32-bit word a
// value. selftest.cpp says what that must be; sections lie one after the other in the same order.
#include <hip/hip_runtime.h>

#include "device/grid.hpp"
#include "device/matrix_mxfp4.hpp"
#include "device/quantise_mxfp4.hpp"
#include "dsakit/optimized/selftest_params.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;

DSAKIT_DEVICE std::uint32_t hash(std::uint32_t i) {
  return (i + 1) * 2654435761u;
}

/// Writes this lane's value of one section after the other.
struct Sections {
  std::uint32_t* next;
  std::size_t stride;

  DSAKIT_DEVICE void add(std::uint32_t value) {
    *next = value;
    next += stride;
  }
  DSAKIT_DEVICE void add(int value) { add(static_cast<std::uint32_t>(value)); }
  DSAKIT_DEVICE void add(float value) { add(bits(value)); }
};

DSAKIT_DEVICE int thread() {
  return static_cast<int>(threadIdx.x);
}

/// The index of this lane in the launch.
DSAKIT_DEVICE int global_lane() {
  return static_cast<int>(blockIdx.x) * kBlock + thread();
}

DSAKIT_DEVICE std::uint32_t mix(Bytes16 v) {
  return v.word[0] + 3 * v.word[1] + 5 * v.word[2] + 7 * v.word[3];
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_selftest_lanes(SelftestParams p) {
  Sections out{p.output + thread(), kBlock};
  const auto x = static_cast<float>(thread());
  out.add(lane_id());
  out.add(wave_id());
  out.add(any(thread() == kBlock - 1) ? 1 : 0);
  out.add(max_of_4(hash(static_cast<std::uint32_t>(thread()))));
  out.add(max_of_16(hash(static_cast<std::uint32_t>(thread()))));
  // One bit a lane of the row, so that a sum says which lanes are in it.
  out.add(sum_of_16(static_cast<float>(1 << thread() % 16)));
  out.add(from_lane((5 * lane_id() + 3) % kWaveSize, x));
  out.add(from_lane_xor<1>(x));
  out.add(from_lane_xor<2>(x));
  out.add(from_lane_xor<4>(x));
  out.add(from_lane_xor<8>(x));
  out.add(from_lane_xor<16>(x));
  out.add(operand_row(0));
  out.add(operand_row(kRowsPerLane - 1));
  out.add(operand_quarter());
  out.add(stores_columns() ? 1 : 0);
  out.add(sum_over_rows(x));
  out.add(sum_over_quarters(x));
  out.add(max_over_quarters(x));
  float row[8];
  for (int i = 0; i < 8; ++i)
    row[i] = static_cast<float>(thread() * 8 + i) * (i % 2 ? -1.0f : 1.0f);
  if (thread() % 16 == 15) row[7] = from_bits(0x7FC00000u); // takes no part
  out.add(amax_of_row(row));
  for (int i = 0; i < 8; ++i)
    row[i] = static_cast<float>((thread() * 8 + i) * 37 % 64);
  rotate_row(row);
  for (int i = 0; i < 8; ++i)
    out.add(row[i]);
}

struct MemoryLds {
  std::uint32_t word[kBlock];
  std::uint32_t drawn[kBlock];
  std::uint32_t counter;
};

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_selftest_memory(SelftestParams p) {
  Sections out{p.output + thread(), kBlock};
  const auto i = static_cast<std::uint32_t>(thread());
  out.add(mix(load16(p.input + 4 * i)));
  out.add(mix(load16_aligned4(p.input + i)));

  // Each lane writes, another one of another wave reads.
  std::uint32_t* wide = p.scratch;
  std::uint32_t* pairs = wide + 4 * kBlock;
  std::uint32_t* odd_pairs = pairs + 2 * kBlock;
  store16(wide + 4 * i, {{hash(4 * i), hash(4 * i + 1), hash(4 * i + 2), hash(4 * i + 3)}});
  store8(pairs + 2 * i, {{hash(2 * i), hash(2 * i + 1)}});
  store8_aligned4(odd_pairs + 3 * i, {{hash(2 * i), hash(2 * i + 1)}});
  DSAKIT_SHARED(MemoryLds, lds);
  lds.word[i] = hash(i);
  lds.drawn[i] = 0;
  if (i == 0) lds.counter = 0;
  __syncthreads();
  const std::uint32_t other = kBlock - 1 - i;
  out.add(wide[4 * other] + 3 * wide[4 * other + 1] + 5 * wide[4 * other + 2] +
          7 * wide[4 * other + 3]);
  out.add(pairs[2 * other] + 3 * pairs[2 * other + 1]);
  out.add(odd_pairs[3 * other] + 3 * odd_pairs[3 * other + 1]);
  out.add(lds.word[other]);

  // Whatever the order, the lanes draw the numbers from 0 on, each once.
  const std::uint32_t ticket = lds_fetch_add(&lds.counter, 1);
  if (ticket < kBlock) lds.drawn[ticket] = 1;
  __syncthreads();
  out.add(lds.drawn[i]);
  out.add(lds.counter);
}

namespace {

/// All 256 codes, each at every byte of a word whose other bytes are ordinary.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void read_codes(const SelftestParams& p) {
  Sections out{p.output + global_lane(), 4 * 256};
  const auto code = static_cast<std::uint32_t>(global_lane()) % 256;
  const int byte = global_lane() / 256;
  const std::uint32_t word = (0x38383838u & ~(0xFFu << 8 * byte)) | code << 8 * byte;
  out.add(fp8_to_float<kEncoding>(code));
  out.add(fp8_to_bf16<kEncoding>(code) << 16);
  out.add(readable_codes<kEncoding>(word));
  out.add(misread_codes<kEncoding>(word) != 0 ? 1 : 0);
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_selftest_codes_e4m3fn(SelftestParams p) {
  read_codes<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_selftest_codes_e4m3fnuz(SelftestParams p) {
  read_codes<Fp8Encoding::e4m3fnuz>(p);
}

/// All 65,536 bf16, one a lane.
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_selftest_floats(SelftestParams p) {
  Sections out{p.output + global_lane(), 1 << 16};
  const auto h = static_cast<std::uint32_t>(global_lane());
  out.add(bf16_to_float(h));
  out.add(float_to_bf16(from_bits(h << 16)));
  out.add(float_to_bf16(from_bits(h << 16 | 0x7FFFu)));
  out.add(float_to_bf16(from_bits(h << 16 | 0x8000u)));
  out.add(float_to_bf16(from_bits(h << 16 | 0x8001u)));
  // Every value comes once in each byte of a word.
  const float four[] = {bf16_to_float(h), bf16_to_float(h ^ 1), bf16_to_float(h ^ 2),
                        bf16_to_float(h ^ 3)};
  out.add(convert_fp8<Fp8Encoding::e4m3fn>(four));
  out.add(convert_fp8<Fp8Encoding::e4m3fnuz>(four));
  // scale_exponent takes an amax from 2^-117 on, and infinity.
  const std::uint32_t magnitude = h & 0x7FFFu;
  const float amax =
      bf16_to_float(magnitude < 0x0500u || magnitude > 0x7F80u ? 0x0500u : magnitude);
  out.add(scale_exponent(amax, 448.0f));
  out.add(scale_exponent(amax, 240.0f));
  out.add(scale_exponent(amax, 224.0f));
  out.add(scale_exponent(amax, 6.0f));
  out.add(power_of_two(static_cast<int>(h % 254) - 126));
  out.add(convert_e2m1(bf16_to_float(h)));
  const float quarters = static_cast<float>(static_cast<int>(h % 4096) - 2048) / 4;
  out.add(times_power_of_two(quarters, static_cast<int>(h / 7 % 601) - 300));
}

namespace {

constexpr int kTileValues = kTile * kTile;

/// One value for each accumulator register of each lane, in one section after the other.
struct TileSections {
  std::uint32_t* next;
  std::size_t stride;

  template <class Value>
  DSAKIT_DEVICE void add(Value value) {
    for (int i = 0; i < kAccPerLane; ++i)
      next[lane_id() * kAccPerLane + i] = value(i);
    next += stride;
  }
};

/// One wave a tile: what came out, and which elements the device layer says they are.
DSAKIT_DEVICE void store_tile(const SelftestParams& p, const Accumulator& acc) {
  TileSections out{p.output + static_cast<std::size_t>(blockIdx.x) * kTileValues,
                   static_cast<std::size_t>(p.workgroups) * kTileValues};
  out.add([&](int i) { return bits(acc.v[i]); });
  out.add([](int i) {
    return static_cast<std::uint32_t>(accumulator_row(i) * kTile +
                                      accumulator_column(accumulator_slot(i)));
  });
  float row[kRowsPerLane];
  for (int r = 0; r < kRowsPerLane; ++r)
    row[r] = static_cast<float>(operand_row(r));
  out.add([&](int i) { return bits(at_accumulator_row(row, i)); });
  out.add([&](int i) { return bits(at_accumulator_column(row, accumulator_slot(i))); });
}

/// input: for each tile 16 x 128 codes of A, then of B.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void multiply_codes(const SelftestParams& p) {
  const std::uint32_t* a = p.input + static_cast<std::size_t>(blockIdx.x) * 2 * kTile * 32;
  const std::uint32_t* b = a + kTile * 32;
  const Fp8Rows rows = load_fp8_rows<kEncoding>(
      [&](int row, int chunk) { return load16(a + 32 * row + 4 * chunk); });
  const Fp8Rows columns = load_fp8_rows<kEncoding>(
      [&](int row, int chunk) { return load16(b + 32 * row + 4 * chunk); });
  Accumulator acc = {};
  multiply<kEncoding>(acc, rows, columns,
                      any_misread<kEncoding>(rows) || any_misread<kEncoding>(columns));
  store_tile(p, acc);
}

DSAKIT_DEVICE Bf16Rows load_bf16_rows(const std::uint32_t* tile) {
  Bf16Rows rows;
  for (int r = 0; r < kRowsPerLane; ++r)
    for (int i = 0; i < 2; ++i)
      rows.word[r][i] = tile[8 * operand_row(r) + 2 * operand_quarter() + i];
  return rows;
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kWaveSize) dsakit_selftest_matrix_e4m3fn(SelftestParams p) {
  multiply_codes<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kWaveSize) dsakit_selftest_matrix_e4m3fnuz(SelftestParams p) {
  multiply_codes<Fp8Encoding::e4m3fnuz>(p);
}

/// input: for each tile 16 x 16 bf16 of A, then of B.
DSAKIT_KERNEL __launch_bounds__(kWaveSize) dsakit_selftest_matrix_bf16(SelftestParams p) {
  const std::uint32_t* a = p.input + static_cast<std::size_t>(blockIdx.x) * 2 * kTile * 8;
  Accumulator acc = {};
  multiply(acc, load_bf16_rows(a), load_bf16_rows(a + kTile * 8));
  store_tile(p, acc);
}

namespace {

struct StagedTile {
  Mxfp4StagedRow row[kTile];
  std::uint32_t scales[kTile];
};

/// A row of packed codes and the word of its scales.
struct Mxfp4Source {
  const std::uint32_t* codes;
  std::uint32_t scales;

  DSAKIT_DEVICE Mxfp4Piece piece(int offset) const {
    return load_piece(reinterpret_cast<const std::uint8_t*>(codes) + offset);
  }
  DSAKIT_DEVICE std::uint32_t scale(int group) const { return scales >> 8 * group & 0xFFu; }
};

} // namespace

/// input: for each tile 16 x 128 packed codes of A, then of B, and the scales of 16 rows of A, then
/// of B. A goes through LDS.
DSAKIT_KERNEL __launch_bounds__(kWaveSize) dsakit_selftest_matrix_mxfp4(SelftestParams p) {
  constexpr int kRowWords = kMxfp4Bytes / 4;
  const std::uint32_t* a =
      p.input + static_cast<std::size_t>(blockIdx.x) * 2 * kTile * (kRowWords + 1);
  const std::uint32_t* b = a + kTile * kRowWords;
  const std::uint32_t* scales = b + kTile * kRowWords;
  DSAKIT_SHARED(StagedTile, tile);
  for (int i = thread(); i < kTile * kMxfp4Groups; i += kWaveSize)
    stage_group(tile.row[i / kMxfp4Groups], i % kMxfp4Groups, load16(a + 4 * i));
  if (thread() < kTile) tile.scales[thread()] = scales[thread()];
  __syncthreads();
  Accumulator acc = {};
  multiply(acc, load_staged_rows(tile.row, tile.scales), load_mxfp4_rows([&](int row) {
             return Mxfp4Source{b + kRowWords * row, scales[kTile + row]};
           }));
  store_tile(p, acc);
}

/// Every workgroup reads the others' words, so that its caches hold them, then writes its own; the
/// last one to arrive must see what all have written. scratch: the counter, then the words.
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_selftest_workgroups(SelftestParams p) {
  struct Lds {
    std::uint32_t ticket;
  };
  DSAKIT_SHARED(Lds, lds);
  std::uint32_t* words = p.scratch + kBlock;
  std::uint32_t before = 0;
  for (int i = thread(); i < p.workgroups; i += kBlock)
    before |= words[static_cast<std::size_t>(i) * kBlock];
  const auto i = static_cast<std::uint32_t>(global_lane());
  // Written words have bit 0, so `before` is never 2; but it has to be loaded to know.
  words[i] = (hash(i) | 1u) + (before == 2u ? 1u : 0u);
  if (!arrives_last(p.scratch, static_cast<std::uint32_t>(p.workgroups), lds.ticket)) return;
  for (int workgroup = 0; workgroup < p.workgroups; ++workgroup)
    p.output[workgroup * kBlock + thread()] = words[workgroup * kBlock + thread()];
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

Status supports(const SelftestParams&) {
  return {};
}

std::int64_t workgroups(const SelftestParams& p) {
  return p.workgroups;
}

#define DSAKIT_SELFTEST_LAUNCHER(name, lanes)                                                      \
  Status launch_##name(const SelftestParams& p, void*, std::size_t, hipStream_t stream) {          \
    hipLaunchKernelGGL(dsakit_selftest_##name, dim3(static_cast<unsigned>(p.workgroups)),          \
                       dim3(lanes), 0, stream, p);                                                 \
    return launch_status("selftest " #name);                                                       \
  }
DSAKIT_SELFTEST_LAUNCHER(lanes, kBlock)
DSAKIT_SELFTEST_LAUNCHER(memory, kBlock)
DSAKIT_SELFTEST_LAUNCHER(codes_e4m3fn, kBlock)
DSAKIT_SELFTEST_LAUNCHER(codes_e4m3fnuz, kBlock)
DSAKIT_SELFTEST_LAUNCHER(floats, kBlock)
DSAKIT_SELFTEST_LAUNCHER(matrix_e4m3fn, kWaveSize)
DSAKIT_SELFTEST_LAUNCHER(matrix_e4m3fnuz, kWaveSize)
DSAKIT_SELFTEST_LAUNCHER(matrix_bf16, kWaveSize)
DSAKIT_SELFTEST_LAUNCHER(matrix_mxfp4, kWaveSize)
DSAKIT_SELFTEST_LAUNCHER(workgroups, kBlock)
#undef DSAKIT_SELFTEST_LAUNCHER

} // namespace

#define DSAKIT_SELFTEST_KERNEL(name)                                                               \
  {#name, supports, no_workspace<SelftestParams>, workgroups,                                      \
   erase_stream<SelftestParams, launch_##name>}
DSAKIT_REGISTER_KERNELS(SelftestParams, DSAKIT_SELFTEST_KERNEL(lanes),
                        DSAKIT_SELFTEST_KERNEL(memory), DSAKIT_SELFTEST_KERNEL(codes_e4m3fn),
                        DSAKIT_SELFTEST_KERNEL(codes_e4m3fnuz), DSAKIT_SELFTEST_KERNEL(floats),
                        DSAKIT_SELFTEST_KERNEL(matrix_e4m3fn),
                        DSAKIT_SELFTEST_KERNEL(matrix_e4m3fnuz),
                        DSAKIT_SELFTEST_KERNEL(matrix_bf16), DSAKIT_SELFTEST_KERNEL(matrix_mxfp4),
                        DSAKIT_SELFTEST_KERNEL(workgroups))
#undef DSAKIT_SELFTEST_KERNEL

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
