#include "failure.hpp"

namespace dsakit::harness {
namespace {

/// Where what is right meets a recording, what is odd is the recording; else it is what was got.
bool odd_is_want(const Case& c) {
  return c.got.kind == Producer::Kind::reference || c.got.right;
}

} // namespace

std::string whose(const Case& c) {
  const Producer& odd = odd_is_want(c) ? c.want : c.got;
  return odd.kind == Producer::Kind::recorded ? "the recorded values" : "the kernel's values";
}

WrongElements::WrongElements(const Case& c, const Judged& judged)
    : odd_(odd_is_want(c) ? judged.want : judged.got),
      right_(odd_is_want(c) ? judged.got : judged.want), at_(judged.comparison.wrong) {}

std::uint64_t WrongElements::bits(const Tensor& tensor, std::int64_t i) {
  std::uint64_t value = 0;
  const std::size_t size = size_of(tensor.dtype);
  std::memcpy(&value, tensor.bytes.data() + static_cast<std::size_t>(i) * size, size);
  return value;
}

std::string Failure::whose_from() const {
  return whose(c) + " from " + to_string(coordinates(wrong.shape(), *judged.comparison.first)) +
         " on";
}

} // namespace dsakit::harness
