// Logits and a choice of another producer, whose own logits were a little different.
#pragma once

#include <algorithm>
#include <cmath>

#include "support/tiny_recording.hpp"

namespace dsakit::testing {

/// Row 0 chose a logit that another beats by one step of float32: less than what fp32 rounds.
inline TinyRecording tiny_topk(std::int32_t chosen) {
  TinyRecording r = tiny_recording();
  r.contract["tie_rule"] = "unspecified";
  r.contract["topk_order"] = "unspecified";
  Tensor& logits = r.output("index_logits_decode", "logits");
  logits.as<float>()[0] = 1;
  logits.as<float>()[1] = std::nextafter(1.0f, 2.0f);
  logits.as<float>()[2] = -1000;
  harness::RecordedOperation& topk = r.operations["topk"];
  topk.inputs["logits"] = {logits, {"rows", "keys"}, {}};
  topk.inputs["row_lens"] = r.operations["index_logits_decode"].inputs["row_lens"];
  auto indices = tiny::tensor<std::int32_t>(Dtype::int32, {3, 1}, {chosen, 0, 0});
  for (int row = 1; row < 3; ++row) { // those of the other rows are right
    const float* of = logits.as<float>() + 5 * row;
    const int length = row == 1 ? 4 : 1;
    indices.tensor.as<std::int32_t>()[row] =
        static_cast<std::int32_t>(std::max_element(of, of + length) - of);
  }
  indices.attributes["output"] = "topk_indices";
  topk.outputs["topk_indices.fused"] = indices;
  return r;
}

} // namespace dsakit::testing
