// Single elements: their values, bits, distances and coordinates.
#include <cstdio>
#include <cstring>

#include "block.hpp"
#include "dsakit/harness/compare.hpp"

namespace dsakit::harness {
namespace {

const std::byte* at(const Tensor& tensor, std::int64_t i) {
  return tensor.bytes.data() + static_cast<std::size_t>(i) * size_of(tensor.dtype);
}

} // namespace

double Values::at(std::int64_t i) const {
  return unrounded.empty() ? element(tensor, i) : unrounded[static_cast<std::size_t>(i)];
}

namespace {

std::shared_ptr<const Tensor> not_owned(const Tensor& tensor) {
  return {std::shared_ptr<const Tensor>(), &tensor};
}

std::shared_ptr<const Tensor> as_dtype(const Tensor& tensor, Dtype dtype) {
  if (tensor.dtype == dtype) return not_owned(tensor);
  auto seen = std::make_shared<Tensor>(tensor);
  seen->dtype = dtype;
  return seen;
}

} // namespace

Elements::Elements(const Values& values)
    : tensor(not_owned(values.tensor)),
      unrounded(values.unrounded.empty() ? nullptr : &values.unrounded) {}

Elements::Elements(const Tensor& stored) : tensor(not_owned(stored)) {}

Elements Elements::as(const Tensor& stored, Dtype dtype) {
  Elements elements(stored);
  elements.tensor = as_dtype(stored, dtype);
  return elements;
}

double Elements::at(std::int64_t i) const {
  return unrounded ? (*unrounded)[static_cast<std::size_t>(i)] : element(*tensor, i);
}

double element(const Tensor& tensor, std::int64_t i) {
  double value = 0;
  decode(tensor.dtype, at(tensor, i), 1, &value);
  return value;
}

std::string hex(const Tensor& tensor, std::int64_t i) {
  std::uint64_t bits = 0; // little endian, as every host that this is built for
  std::memcpy(&bits, at(tensor, i), size_of(tensor.dtype));
  char text[24];
  std::snprintf(text, sizeof text, "0x%0*llx", static_cast<int>(2 * size_of(tensor.dtype)),
                static_cast<unsigned long long>(bits));
  return text;
}

std::optional<std::int64_t> ulps_between(const Tensor& a, const Tensor& b, std::int64_t i) {
  std::int64_t steps = -1;
  if (a.dtype != b.dtype || !steps_between(a.dtype, at(a, i), at(b, i), 1, &steps) || steps < 0)
    return std::nullopt;
  return steps;
}

std::vector<std::int64_t> coordinates(const Shape& shape, std::int64_t flat) {
  std::vector<std::int64_t> place(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    place[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return place;
}

} // namespace dsakit::harness
