// What random problems are drawn from: the same numbers on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "generators/generator.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {

/// What the numbers of a problem are like.
enum class Kind : std::uint8_t { normal, outliers, ties, narrow, zeros, extreme };
inline constexpr std::uint64_t kKinds = 6;

class Draw {
public:
  Draw(std::uint64_t seed, Kind kind) : random_(seed), kind_(kind) {}

  bool extreme() const { return kind_ == Kind::extreme; }

  std::int64_t below(std::int64_t n) { return random_.below(n); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <class T>
  T any(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }
  /// 0, 1, or at most `most`.
  std::int64_t count(std::int64_t most) {
    return one_in(10) ? 0 : one_in(5) ? 1 : between(1, most);
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(random_.bits()); }
  std::vector<std::int64_t> permutation(std::int64_t n) { return random_.permutation(n); }

  /// A finite number.
  float value() {
    const float normal = random_.normal();
    switch (kind_) {
    case Kind::normal:
      return normal;
    case Kind::outliers:
      return one_in(50) ? 4096 * normal : normal;
    case Kind::ties:
      return static_cast<float>(between(-2, 2));
    case Kind::narrow: // neighbours in bf16
      return 1 + 0x1p-7F * static_cast<float>(below(4));
    case Kind::zeros:
      return one_in(9) ? normal : one_in(2) ? 0.0F : -0.0F;
    case Kind::extreme:
      return std::ldexp(normal, static_cast<int>(between(-30, 30)));
    }
    return normal;
  }
  /// Among extreme numbers also what is not finite, the largest and the smallest.
  float any_value() {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    if (!extreme() || !one_in(30)) return value();
    return any({std::numeric_limits<float>::quiet_NaN(), kInf, -kInf, 0x1.FEp127F, -0x1.FEp127F,
                0x1p-133F, -0x1p-133F});
  }
  float power_of_two() {
    return std::ldexp(1.0F, static_cast<int>(extreme() ? between(-30, 30) : between(-8, 0)));
  }
  /// An e4m3 code; among extreme numbers any of them, NaN rarely.
  std::uint8_t code(Fp8Encoding encoding) {
    if (!extreme()) return reference::encode_fp8_saturating(encoding, 8 * value());
    std::uint8_t code = byte();
    if (std::isnan(reference::decode_fp8(encoding, code)) && !one_in(50)) code ^= 0x41;
    return code;
  }

private:
  golden::Random random_;
  Kind kind_;
};

template <class Value>
harness::RecordedTensor bf16_tensor(Shape shape, Value value) {
  return tiny::tensor(Dtype::bfloat16, shape, tiny::draw<std::uint16_t>(element_count(shape), [&] {
                        return reference::float_to_bf16(value());
                      }));
}

inline harness::RecordedTensor bytes_tensor(Shape shape, Draw& draw) {
  return tiny::tensor(Dtype::uint8, shape,
                      tiny::draw<std::uint8_t>(element_count(shape), [&] { return draw.byte(); }));
}

/// An output: its form; the reference fills it.
inline harness::RecordedTensor to_fill(Dtype dtype, Shape shape) {
  return tiny::tensor<std::uint8_t>(dtype, std::move(shape), {});
}

/// `tokens` slots, each at most once, some -1.
inline harness::RecordedTensor slot_mapping(std::int64_t tokens, std::int64_t pool, Draw& draw) {
  auto slots = draw.permutation(pool);
  slots.resize(static_cast<std::size_t>(tokens));
  for (std::int64_t& slot : slots)
    if (draw.one_in(8)) slot = -1;
  return tiny::tensor(Dtype::int64, {tokens}, slots);
}

/// [requests, columns] pages in a shuffled order. One in `bad` is -1; 0: none.
inline std::vector<std::int32_t> page_table(std::int64_t cells, std::int64_t pages,
                                            std::int64_t bad, Draw& draw) {
  const auto order = draw.permutation(pages);
  std::vector<std::int32_t> table;
  for (std::int64_t i = 0; i < cells; ++i)
    table.push_back(bad && draw.one_in(bad)
                        ? -1
                        : static_cast<std::int32_t>(order[static_cast<std::size_t>(i % pages)]));
  return table;
}

} // namespace dsakit::testing
