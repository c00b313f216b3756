// The tensors that a layer's sink hands over in pieces, and those that ranks offer to a merge.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "dsakit/core/tensor.hpp"

namespace dsakit::harness {

/// Takes what the layer's sink hands over in pieces of rows.
class Pieces {
public:
  explicit Pieces(std::int64_t rows) : rows_(rows) {}

  /// All rows of the tensor once its last ones are there, before that nullptr.
  const Tensor* add(const std::string& name, std::int64_t first, const Tensor& piece) {
    if (piece.shape[0] == rows_) return &piece;
    Tensor& whole = tensors_[name];
    if (first == 0) {
      Shape shape = piece.shape;
      shape[0] = rows_;
      whole = Tensor(piece.dtype, shape);
    }
    std::copy(piece.bytes.begin(), piece.bytes.end(),
              whole.bytes.begin() + first * (std::ssize(whole.bytes) / rows_));
    return first + piece.shape[0] < rows_ ? nullptr : &whole;
  }

private:
  std::int64_t rows_;
  std::map<std::string, Tensor> tensors_;
};

/// What the ranks of context parallelism offer to the merges, one after the other.
class Offers {
public:
  /// "ranks.<r>.<name>", ranks ascending.
  void take(const std::string& tensor, const Tensor& of_rank) {
    for (const auto& [name, stack_name] : {std::pair{"topk_indices", "rank_indices"},
                                           {"dcp_scores", "rank_scores"},
                                           {"attn_latent", "rank_latent"},
                                           {"attn_lse", "rank_lse"}}) {
      if (!tensor.ends_with("." + std::string(name))) continue;
      Tensor& stack = stacks_[stack_name];
      if (stack.shape.empty()) {
        stack = Tensor(of_rank.dtype, {0});
        stack.shape.insert(stack.shape.end(), of_rank.shape.begin(), of_rank.shape.end());
      }
      ++stack.shape[0];
      stack.bytes.insert(stack.bytes.end(), of_rank.bytes.begin(), of_rank.bytes.end());
    }
  }

  const std::map<std::string, Tensor>& stacks() const { return stacks_; }

private:
  std::map<std::string, Tensor> stacks_;
};

} // namespace dsakit::harness
