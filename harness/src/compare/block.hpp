// Consecutive stored elements, decoded at once: a comparison looks at hundreds of millions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsakit/core/dtype.hpp"

namespace dsakit::harness {

/// The values of n elements; an fp4 pair and an integer count as the number that they store.
void decode(Dtype dtype, const std::byte* bytes, std::int64_t n, double* values);

/// Steps of the dtype between n elements of both sides, -1 where one is NaN; of an fp4 pair the
/// larger of its two codes'. False, and nothing done, where the dtype has no such order.
bool steps_between(Dtype dtype, const std::byte* a, const std::byte* b, std::int64_t n,
                   std::int64_t* steps);

/// 1 where the bytes of an element differ.
void differ(Dtype dtype, const std::byte* a, const std::byte* b, std::int64_t n,
            std::uint8_t* differs);

} // namespace dsakit::harness
