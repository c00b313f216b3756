// What the logits adapters of both formats share. In: the inputs as the reference takes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsakit/harness/operations.hpp"
#include "dsakit/reference/index_logits.hpp"

namespace dsakit::harness {

template <class In>
std::size_t logit_count(const In& in) {
  return static_cast<std::size_t>(in.rows * in.columns);
}

/// True for an element of logits that a decode row has a key for.
template <class In>
bool in_row(const In& in, std::int64_t element) {
  return element % in.columns < in.row_lens[element / in.columns];
}

/// True for an element of logits inside its prefill row's window.
template <class In>
bool in_window(const In& in, std::int64_t element) {
  const std::int64_t row = element / in.columns;
  const std::int64_t key = element % in.columns + (in.column_origin ? in.column_origin[row] : 0);
  return key >= std::max(in.ks[row], 0) && key < std::min<std::int64_t>(in.ke[row], in.keys);
}

/// Logits of these exact values; `defined(element)` says which of them the operation writes.
template <class In, class Defined>
Expected expected_logits(const In& in, std::vector<double> unrounded, Defined defined) {
  Expected logits;
  logits.output = "logits";
  logits.value.tensor = Tensor(Dtype::float32, {in.rows, in.columns});
  logits.mask.resize(unrounded.size());
  for (std::size_t i = 0; i < unrounded.size(); ++i) {
    logits.value.tensor.as<float>()[i] = static_cast<float>(unrounded[i]);
    logits.mask[i] = defined(static_cast<std::int64_t>(i));
  }
  logits.value.unrounded = std::move(unrounded);
  return logits;
}

/// The points of LogitsRounding, in this order.
inline std::vector<std::string> logits_rounding_points() {
  return {"head weight rounded to bf16", "dot rounded to bf16", "weighted dot rounded to bf16",
          "logit rounded to bf16"};
}

inline reference::LogitsRounding logits_rounding(std::optional<std::size_t> switched) {
  return {switched == 0u, switched == 1u, switched == 2u, switched == 3u};
}

} // namespace dsakit::harness
