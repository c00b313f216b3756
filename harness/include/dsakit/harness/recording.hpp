// Recordings: HDF5 files that hold the tensors of operations (design 4, docs/recordings.md).
// HDF5 is not thread-safe: use readers and writers from one thread at a time.
// Every failure is bad_input with one line: "FILE: OBJECT: found X, want Y".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/core/tensor.hpp"

namespace dsakit::harness {

/// Which recordings a reader takes: those with all payloads, or also those that hold statistics
/// (stats) or shapes (meta) in their place.
enum class Levels : std::uint8_t { full, any };

inline constexpr std::string_view kRecordingFormat = "dsakit-recording/1";

using Attributes = std::map<std::string, std::string>;

/// One operation of one step.
struct OperationId {
  std::int64_t step = 0;
  std::string operation;
};

enum class Side : std::uint8_t { inputs, outputs };

/// "/steps/0/index_cache_write/inputs/index_k"
std::string object_path(const OperationId& id, Side side, std::string_view name);
/// "/weights/o_proj"
std::string weight_path(std::string_view name);

/// A tensor as the file describes it, without its payload.
struct TensorInfo {
  std::string object; ///< object_path or weight_path
  /// Set by the reader: `object`, or the earlier object of operations() that it is stored with.
  std::string stored_as;
  Dtype dtype = Dtype::uint8;
  Shape shape;
  std::vector<std::string> axes; ///< a name per axis
  Attributes attributes;         ///< the others: output, producer, accumulation, page_offset, ...

  /// Last part of `object`: "logits.deepgemm".
  std::string name() const;
  /// Which output of the operation this is; several producers' tensors can be the same one:
  /// "logits" for "logits.deepgemm" with the attribute output = logits, else name().
  std::string output() const;
};

/// A tensor with its payload.
struct RecordedTensor {
  Tensor tensor;
  std::vector<std::string> axes;
  Attributes attributes;
};

/// Everything recorded of one operation, by tensor name.
struct RecordedOperation {
  std::map<std::string, RecordedTensor> inputs;
  std::map<std::string, RecordedTensor> outputs;
};

/// Receives a payload front to back, in blocks of at most 64 MiB.
using BlockSink = std::function<Status(std::span<const std::byte>)>;
/// Fills the next block of a payload, front to back.
using BlockSource = std::function<Status(std::span<std::byte>)>;

class RecordingReader {
public:
  /// Checks everything but payloads: the file, every object, the contract keys, required tensors,
  /// dtypes and shapes of the operations in kOperations.
  static Result<RecordingReader> open(const std::string& path, Levels levels = Levels::full);

  RecordingReader(RecordingReader&&) noexcept;
  RecordingReader& operator=(RecordingReader&&) noexcept;
  ~RecordingReader();

  const std::string& path() const;
  /// "full", "stats" or "meta"; tensors of full ones alone can be read.
  const std::string& level() const;
  const ContractValues& contract() const;
  /// contract() overlaid with what differs in that step.
  ContractValues contract(std::int64_t step) const;
  const Attributes& config() const;
  const Attributes& provenance() const;

  /// By step, then in causal order.
  const std::vector<OperationId>& operations() const;
  const std::vector<TensorInfo>& tensors(const OperationId& id, Side side) const;
  const std::vector<TensorInfo>& weights() const;

  /// One tensor; a checksum failure names it.
  Result<RecordedTensor> read(const TensorInfo& info) const;
  /// The same in blocks, for tensors that do not fit.
  Status stream(const TensorInfo& info, const BlockSink& sink) const;
  /// All tensors of an operation, checked under `contract` (normally contract(id.step)): shapes as
  /// in open(), and ids (spec 11): slots, lengths and used table entries must lie in the pool.
  /// unsupported for MLA rows of bf16, which this version records and does not replay.
  Result<RecordedOperation> read(const OperationId& id, const ContractValues& contract) const;
  /// Reads every payload once, so that damage shows where nothing else would read it.
  Status verify() const;

private:
  struct State;
  explicit RecordingReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct WriterOptions {
  bool deflate = false; ///< shuffle + deflate before the checksum
};

/// Writes to a temporary name beside `path`; only commit() makes `path` appear. The same calls give
/// the same bytes. A failure, a full disk included, leaves nothing behind.
class RecordingWriter {
public:
  static Result<RecordingWriter> create(const std::string& path, WriterOptions options = {});

  RecordingWriter(RecordingWriter&&) noexcept;
  RecordingWriter& operator=(RecordingWriter&&) noexcept;
  ~RecordingWriter(); ///< unlinks the temporary file unless committed

  Status contract(const ContractValues& values);
  Status config(const Attributes& values);
  Status provenance(const Attributes& values);
  /// Contract keys whose value differs in that step.
  Status step_contract(std::int64_t step, const ContractValues& values);

  /// The payload comes from `source` in blocks of at most 64 MiB.
  Status add(const TensorInfo& info, const BlockSource& source);
  Status add(const std::string& object, const RecordedTensor& tensor);
  /// The tensor at `existing` appears at `object` too, stored once.
  Status link(const std::string& existing, const std::string& object);

  Status commit();

private:
  struct State;
  explicit RecordingWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

} // namespace dsakit::harness
