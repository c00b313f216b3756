// Shapes of the dense operations: columns of a wider tensor, heads side by side.
#include <algorithm>
#include <string>

#include "hdf5.hpp"
#include "structure.hpp"

namespace dsakit::harness {
namespace {

constexpr std::int64_t kPe = 64; // the last columns of qkv_a: k_pe, which no norm takes

/// The tensor of that canonical name.
const TensorInfo* find(const OperationTensors& op, std::string_view name) {
  for (const TensorInfo& tensor : op.inputs)
    if (tensor.name() == name) return &tensor;
  for (const TensorInfo& tensor : op.outputs)
    if (tensor.output() == name) return &tensor;
  return nullptr;
}

Status fail(const OperationTensors& op, const TensorInfo& tensor, const std::string& want) {
  return hdf5::fail(op.path, tensor.object,
                    "found shape " + to_string(tensor.shape) + ", want " + want);
}

/// qkv_a has the columns that the norm takes, and `beside` others.
Status check_columns(const OperationTensors& op, std::int64_t beside) {
  const TensorInfo* qkv_a = find(op, "qkv_a");
  if (!qkv_a) return {};
  const std::int64_t wanted = find(op, "norm_weight")->shape[0] + beside;
  if (qkv_a->shape[1] >= wanted) return {};
  return fail(op, *qkv_a, "at least " + std::to_string(wanted) + " columns");
}

/// The weight has a row for every element of every head.
Status check_heads(const OperationTensors& op, std::string_view output) {
  const TensorInfo& weight = *find(op, "weight");
  const TensorInfo& heads = *find(op, output);
  const std::int64_t wanted = heads.shape[1] * heads.shape[2];
  if (weight.shape[0] == wanted) return {};
  return fail(op, weight,
              std::to_string(wanted) + " rows for " + std::to_string(heads.shape[1]) +
                  " heads of " + std::to_string(heads.shape[2]));
}

/// A head has rows of W_UK and rows of W_UV, and q's columns are those of W_UK beside pe.
Status check_absorption(const OperationTensors& op) {
  const bool of_q = op.id.operation == "absorb_q";
  const TensorInfo& x = *find(op, of_q ? "q" : "latent");
  const TensorInfo& weight = *find(op, "weight");
  const TensorInfo& y = *find(op, of_q ? "mla_query" : "attn_value");
  const std::int64_t heads = x.shape[1];
  if (heads == 0) return fail(op, x, "at least one head");
  if (weight.shape[0] % heads != 0)
    return fail(op, weight, "as many rows for each of " + std::to_string(heads) + " heads");
  std::int64_t absorbed = y.shape[1] / heads; // rows of a head that this operation takes
  if (of_q) {
    const std::int64_t pe = y.shape[2] - weight.shape[1];
    absorbed = x.shape[2] - pe;
    if (pe < 0 || absorbed < 1)
      return fail(op, y,
                  std::to_string(weight.shape[1]) + " latent columns and fewer of pe than " +
                      std::to_string(x.shape[2]));
  } else if (y.shape[1] % heads != 0) {
    return fail(op, y, "as many columns for each of " + std::to_string(heads) + " heads");
  }
  if (weight.shape[0] / heads > absorbed) return {};
  return fail(op, weight,
              "more than " + std::to_string(absorbed) + " rows for each of " +
                  std::to_string(heads) + " heads: W_UK, then W_UV");
}

} // namespace

Status check_dense(const OperationTensors& op) {
  const std::string& name = op.id.operation;
  if (name == "q_norm") return check_columns(op, 0);
  if (name == "kv_norm") return check_columns(op, kPe);
  if (name == "q_b_proj") return check_heads(op, "q");
  if (name == "index_q_proj") return check_heads(op, "index_q");
  if (name == "absorb_q" || name == "absorb_v") return check_absorption(op);
  return {};
}

} // namespace dsakit::harness
