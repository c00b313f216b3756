#include <algorithm>

#include "dsakit/core/operations.hpp"
#include "names.hpp"
#include "reader_state.hpp"
#include "structure.hpp"
#include "superblock.hpp"

namespace dsakit::harness {

namespace {

using hdf5::fail;
using hdf5::Handle;
using hdf5::last_error;

} // namespace

ContractValues RecordingReader::State::contract_of(std::int64_t step) const {
  ContractValues values = contract;
  if (const auto found = step_contracts.find(step); found != step_contracts.end())
    for (const auto& [key, value] : found->second)
      values[key] = value;
  return values;
}

const RecordingReader::State::OperationEntry*
RecordingReader::State::find(const OperationId& id) const {
  for (const OperationEntry& entry : entries)
    if (entry.id.step == id.step && entry.id.operation == id.operation) return &entry;
  return nullptr;
}

Status RecordingReader::State::stream(const TensorInfo& info, const BlockSink& sink) const {
  if (level != "full") return fail(path, info.object, "found level " + level + ", want full");
  Handle dataset(H5Dopen2(file, info.object.c_str(), H5P_DEFAULT), H5Dclose);
  Handle type(dataset ? H5Dget_type(dataset) : H5I_INVALID_HID, H5Tclose);
  Handle space(dataset ? H5Dget_space(dataset) : H5I_INVALID_HID, H5Sclose);
  if (!type || !space) return fail(path, info.object, "cannot be read: " + last_error());
  std::vector<std::byte> buffer;
  for (hdf5::Blocks block(info.shape, size_of(info.dtype)); !block.done(); block.next()) {
    buffer.resize(block.bytes());
    // The file's own type: no conversion, so no byte is lost or changed.
    if (block.select(space) < 0 ||
        H5Dread(dataset, type, block.memory_space(), space, H5P_DEFAULT, buffer.data()) < 0)
      return fail(path, info.object, "cannot be read: " + last_error());
    DSAKIT_TRY(sink(buffer));
  }
  return {};
}

Result<RecordedTensor> RecordingReader::State::read(const TensorInfo& info) const {
  RecordedTensor out{Tensor(info.dtype, info.shape), info.axes, info.attributes};
  std::byte* next = out.tensor.bytes.data();
  DSAKIT_TRY(stream(info, [&](std::span<const std::byte> block) -> Status {
    next = std::copy(block.begin(), block.end(), next);
    return {};
  }));
  return out;
}

RecordingReader::RecordingReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
RecordingReader::RecordingReader(RecordingReader&&) noexcept = default;
RecordingReader& RecordingReader::operator=(RecordingReader&&) noexcept = default;
RecordingReader::~RecordingReader() = default;

Result<RecordingReader> RecordingReader::open(const std::string& path, Levels levels) {
  DSAKIT_TRY(check_superblock(path));
  auto state = std::make_unique<State>();
  state->path = path;
  DSAKIT_TRY(state->load(levels));
  return RecordingReader(std::move(state));
}

const std::string& RecordingReader::path() const {
  return state_->path;
}
const std::string& RecordingReader::level() const {
  return state_->level;
}
const ContractValues& RecordingReader::contract() const {
  return state_->contract;
}
ContractValues RecordingReader::contract(std::int64_t step) const {
  return state_->contract_of(step);
}
const Attributes& RecordingReader::config() const {
  return state_->config;
}
const Attributes& RecordingReader::provenance() const {
  return state_->provenance;
}
const std::vector<OperationId>& RecordingReader::operations() const {
  return state_->operations;
}
const std::vector<TensorInfo>& RecordingReader::weights() const {
  return state_->weights;
}

const std::vector<TensorInfo>& RecordingReader::tensors(const OperationId& id, Side side) const {
  static const std::vector<TensorInfo> kNone;
  const State::OperationEntry* entry = state_->find(id);
  if (!entry) return kNone;
  return side == Side::inputs ? entry->inputs : entry->outputs;
}

Result<RecordedTensor> RecordingReader::read(const TensorInfo& info) const {
  return state_->read(info);
}

Status RecordingReader::stream(const TensorInfo& info, const BlockSink& sink) const {
  return state_->stream(info, sink);
}

Result<RecordedOperation> RecordingReader::read(const OperationId& id,
                                                const ContractValues& contract) const {
  const State::OperationEntry* entry = state_->find(id);
  if (!entry)
    return fail(state_->path, "/steps/" + std::to_string(id.step) + "/" + id.operation,
                "is missing");
  const OperationTensors tensors{state_->path, entry->id, entry->inputs, entry->outputs,
                                 state_->config};
  DSAKIT_TRY(check_replayable(tensors, contract));
  DSAKIT_TRY(check_structure(tensors, contract));
  RecordedOperation out;
  for (const TensorInfo& info : entry->inputs) {
    auto tensor = state_->read(info);
    if (!tensor) return tensor.status();
    out.inputs.emplace(info.name(), std::move(*tensor));
  }
  for (const TensorInfo& info : entry->outputs) {
    auto tensor = state_->read(info);
    if (!tensor) return tensor.status();
    out.outputs.emplace(info.name(), std::move(*tensor));
  }
  if (!find_operation(id.operation)) return out;
  DSAKIT_TRY(check_ids(tensors, contract, [&](const TensorInfo& info) -> Result<Tensor> {
    const bool is_output = info.object == object_path(entry->id, Side::outputs, info.name());
    return (is_output ? out.outputs : out.inputs).at(info.name()).tensor;
  }));
  return out;
}

Status RecordingReader::verify() const {
  if (state_->level != "full") return {}; // there is none
  const auto ignore = [](std::span<const std::byte>) -> Status { return {}; };
  const auto verify_all = [&](const std::vector<TensorInfo>& tensors) -> Status {
    for (const TensorInfo& info : tensors)
      if (info.stored_as == info.object) DSAKIT_TRY(state_->stream(info, ignore));
    return {};
  };
  DSAKIT_TRY(verify_all(state_->weights));
  for (const State::OperationEntry& entry : state_->entries) {
    DSAKIT_TRY(verify_all(entry.inputs));
    DSAKIT_TRY(verify_all(entry.outputs));
  }
  return {};
}

} // namespace dsakit::harness
