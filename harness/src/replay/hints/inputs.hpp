// Assumptions about inputs, as they are collected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "assumption.hpp"

namespace dsakit::harness {

/// Collects assumptions about the inputs of one operation.
class Inputs {
public:
  explicit Inputs(const OperationData& data) : data_(data) {}

  bool has(const std::string& input) const { return data_.optional_input(input) != nullptr; }
  const Tensor& at(const std::string& input) const { return data_.input(input); }

  /// change(tensor), where the recording has that input.
  template <class Change>
  void assume(const std::string& input, const std::string& hint, Change change) {
    if (!has(input)) return;
    made.push_back({"what comes out where " + hint,
                    [=](RecordedOperation& tensors, ContractValues&, Attributes&) {
                      change(tensors.inputs.at(input).tensor);
                    }});
  }

  /// Each element of type T replaced by value(element, its flat index).
  template <class T, class Value>
  void assume_each(const std::string& input, const std::string& hint, Value value) {
    assume(input, hint, [=](Tensor& tensor) {
      T* elements = tensor.as<T>();
      for (std::int64_t i = 0; i < tensor.elements(); ++i)
        elements[i] = value(elements[i], i);
    });
  }

  /// Each row of `width` bytes in another order: byte i is that of from(i).
  template <class From>
  void assume_order(const std::string& input, const std::string& hint, std::int64_t width,
                    From from) {
    assume(input, hint, [=](Tensor& tensor) {
      const std::vector<std::byte> before = tensor.bytes;
      for (std::size_t row = 0; row < before.size(); row += static_cast<std::size_t>(width))
        for (std::int64_t i = 0; i < width; ++i)
          tensor.bytes[row + static_cast<std::size_t>(i)] =
              before[row + static_cast<std::size_t>(from(i))];
    });
  }

  std::vector<Assumption> made;

private:
  const OperationData& data_;
};

/// hint_logits.cpp: of index_logits_decode and index_logits_prefill.
void fp8_logits(Inputs& inputs);
void mxfp4_logits(Inputs& inputs, const OperationData& data);

} // namespace dsakit::harness
