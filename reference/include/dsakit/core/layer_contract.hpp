// The contract of a whole layer: what the layers of both sides take.
#pragma once

#include <cstdint>
#include <variant>

#include "dsakit/core/contract.hpp"

namespace dsakit {

/// What the indexer of each format needs.
struct Fp8Indexer {
  IndexKeyQuant key;
  IndexQueryQuant query;
  WeightFold fold;
};
struct Mxfp4Indexer {
  Mxfp4Pages pages;
  Mxfp4Quant quant;
};

struct LayerContract {
  std::variant<Fp8Indexer, Mxfp4Indexer> indexer;
  MlaQuant mla;
  MlaScaleRead mla_scale_read;
  LseBase lse_base;
  std::int64_t page_size; ///< of both caches
  ActivationDtype activation_dtype;
  RmsNormRounding rmsnorm_rounding;
  GateRounding gate_rounding;
  TopkOrder topk_order;
};

} // namespace dsakit
