// A recording being put together from the tensors of a .safetensors file.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/safetensors.hpp"

namespace dsakit::harness {

/// A tensor of the recording: one of the file, streamed when it is written, or a computed one.
struct DraftTensor {
  TensorInfo info;
  std::variant<std::string, Tensor> payload;
};

class Draft {
public:
  explicit Draft(const SafetensorsReader& file) : file_(file) {}

  ContractValues contract;
  std::map<std::int64_t, ContractValues> step_contracts;
  Attributes config, provenance;

  const SafetensorsReader& file() const { return file_; }
  bool has(std::string_view tensor) const { return file_.tensors().count(std::string(tensor)); }
  /// "" where the file's metadata has no such key.
  std::string metadata(std::string_view key) const;
  ContractValues contract_of(std::int64_t step) const;

  /// Puts tensor `tensor` of the file at the operation, named `name`. A second place is a link,
  /// which shares the attributes of all places; one that wants another value for an attribute is
  /// stored of its own. The shape becomes the canonical one: leading axes
  /// merge
  /// ([B, next_n, ...] is rows), a cache's trailing ones become bytes. Nothing happens if the file
  /// has no such tensor.
  void place(const OperationId& id, Side side, std::string_view name, std::string_view tensor,
             const Attributes& attributes = {});
  void input(const OperationId& id, std::string_view name, std::string_view tensor,
             const Attributes& attributes = {}) {
    place(id, Side::inputs, name, tensor, attributes);
  }
  void output(const OperationId& id, std::string_view name, std::string_view tensor,
              const Attributes& attributes = {}) {
    place(id, Side::outputs, name, tensor, attributes);
  }
  void weight(std::string_view name, std::string_view tensor);
  /// The bytes of `tensor` are elements of `dtype`, of the same size. Before it is placed.
  void retype(std::string_view tensor, Dtype dtype);
  /// Tensors without a place go to the operation's outputs under their own names.
  void rest(const OperationId& id);
  std::vector<std::string> unplaced() const;
  /// bad_input for the first of the calls above that could not be followed: a second tensor for one
  /// object, a dtype of another size.
  const Status& placed() const { return problem_; }

  /// A computed tensor.
  void add(const OperationId& id, Side side, std::string_view name, Tensor tensor,
           const Attributes& attributes = {});
  /// As described, without canonical shapes; `same_as` names the object it is stored with, if any,
  /// which must be added too.
  void add_exact(TensorInfo info, const std::string& tensor, const std::string& same_as);

  const DraftTensor* find(const std::string& object) const;
  DraftTensor* find(const std::string& object);
  Result<Tensor> read(const DraftTensor& tensor) const;
  /// Steps and operations that have tensors.
  std::vector<OperationId> operations() const;
  std::vector<TensorInfo> tensors(const OperationId& id, Side side) const;

  /// Structure and ids as the reader checks them; messages name the .safetensors file.
  Status check() const;
  Status write(const std::string& path, bool deflate) const;

private:
  /// All of them in the order that a recording is written in.
  std::vector<std::string> objects() const;

  const SafetensorsReader& file_;
  std::map<std::string, DraftTensor> tensors_; ///< by object
  std::map<std::string, std::string> links_;   ///< object -> object that it is stored with
  std::map<std::string, std::string> placed_;  ///< tensor of the file -> its first object
  std::map<std::string, Dtype> dtypes_;
  Status problem_;
};

/// Adds what a file does not hold but its tensors imply: row_request of decode logits, and the
/// content of written outputs before the operation (docs/recordings.md, "Reconstructed inputs").
Status complete(Draft& draft);

} // namespace dsakit::harness
