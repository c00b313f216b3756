#include <algorithm>
#include <fstream>
#include <limits>
#include <set>

#include "dsakit/core/operations.hpp"
#include "hdf5.hpp"
#include "names.hpp"
#include "ordinary_file.hpp"
#include "structure.hpp"
#include "text.hpp"

namespace dsakit::harness {
namespace {

using hdf5::fail;
using hdf5::Handle;
using hdf5::last_error;

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";

std::uint64_t little_endian(const char* bytes, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// Judges the superblock before libhdf5 sees the file: byte-mutated files of the old format crash
/// it.
Status check_superblock(const std::string& path) {
  const auto bytes = size_of_ordinary_file(path);
  DSAKIT_TRY(bytes);
  const std::uint64_t size = *bytes;
  std::ifstream file(path, std::ios::binary);
  char head[48] = {};
  file.read(head, sizeof head);
  if (std::string_view(head, kSignature.size()) != kSignature) {
    for (std::uint64_t offset = 512; offset < size; offset *= 2) {
      char block[kSignature.size()] = {};
      file.clear();
      file.seekg(static_cast<std::streamoff>(offset));
      file.read(block, sizeof block);
      if (std::string_view(block, sizeof block) == kSignature)
        return bad_input(path + ": found a user block of " + std::to_string(offset) +
                         " bytes, want none");
    }
    return bad_input(
        path + ": found no HDF5 signature, want a recording (HDF5)" +
        (size > 8 && head[8] == '{' ? "; a safetensors file needs dsakit import" : ""));
  }
  const int version = static_cast<unsigned char>(head[8]);
  if (version < 2)
    return bad_input(path + ": found HDF5 superblock version " + std::to_string(version) +
                     ", want 2 or 3: rewrite it with h5repack --low=2 --high=2");
  if (version > 3)
    return bad_input(path + ": found HDF5 superblock version " + std::to_string(version) +
                     ", want 2 or 3");
  // version 2 and 3: sizes at 9 and 10, flags at 11, then base, extension, end-of-file addresses
  if (head[9] != 8 || head[10] != 8)
    return bad_input(path + ": found a damaged superblock, want addresses of 8 bytes");
  const std::uint64_t end = little_endian(head + 28, 8);
  if (end > size)
    return bad_input(path + ": found " + std::to_string(size) + " bytes, want " +
                     std::to_string(end) + ": the file is truncated");
  return {};
}

struct Link {
  std::string name;
  H5L_type_t type;
};

/// Links of a group in the order of their names.
Result<std::vector<Link>> list(hid_t group, const std::string& path, const std::string& name) {
  std::vector<Link> links;
  const herr_t status = H5Literate(
      group, H5_INDEX_NAME, H5_ITER_INC, nullptr,
      [](hid_t, const char* link, const H5L_info_t* info, void* out) -> herr_t {
        static_cast<std::vector<Link>*>(out)->push_back({link, info->type});
        return 0;
      },
      &links);
  if (status < 0) return fail(path, name, "cannot be read: " + last_error());
  for (const Link& link : links)
    if (link.type != H5L_TYPE_HARD)
      return fail(path, (name == "/" ? "" : name) + "/" + link.name,
                  std::string("found ") +
                      (link.type == H5L_TYPE_SOFT       ? "a soft"
                       : link.type == H5L_TYPE_EXTERNAL ? "an external"
                                                        : "a user-defined") +
                      " link, want an object of this file");
  return links;
}

std::vector<std::string> split_axes(const std::string& text) {
  std::vector<std::string> axes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    axes.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return axes;
}

/// Filters and layout of a dataset whose payload would take `bytes`.
Status check_storage(hid_t dataset, std::uint64_t bytes, const Shape& shape,
                     const std::string& path, const std::string& object) {
  Handle create(H5Dget_create_plist(dataset), H5Pclose);
  if (!create) return fail(path, object, "cannot be read: " + last_error());
  if (H5Pget_external_count(create) != 0)
    return fail(path, object, "found external storage, want the payload in this file");
  const H5D_layout_t layout = H5Pget_layout(create);
  if (layout != H5D_CHUNKED && layout != H5D_CONTIGUOUS && layout != H5D_COMPACT)
    return fail(path, object, "found a virtual dataset, want the payload in this file");

  bool deflated = false;
  const int filters = H5Pget_nfilters(create);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0;
    std::size_t values = 0;
    char filter_name[64] = {};
    const H5Z_filter_t filter =
        H5Pget_filter2(create, static_cast<unsigned>(i), &flags, &values, nullptr,
                       sizeof filter_name - 1, filter_name, nullptr);
    if (filter != H5Z_FILTER_FLETCHER32 && filter != H5Z_FILTER_SHUFFLE &&
        filter != H5Z_FILTER_DEFLATE)
      return fail(path, object,
                  "found filter " + std::to_string(filter) + " " + in_quotes(filter_name) +
                      ", want fletcher32, shuffle or deflate");
    deflated = deflated || filter == H5Z_FILTER_DEFLATE;
  }
  if (bytes == 0) return {};

  // What was never written, or cannot be there, must not be allocated and read as zeros.
  constexpr std::uint64_t kDeflateRatio = 1032; // at most
  const std::uint64_t stored = H5Dget_storage_size(dataset);
  if (bytes / (deflated ? kDeflateRatio : 1) > stored)
    return fail(path, object,
                "found " + std::to_string(stored) + " bytes of storage, want " +
                    std::to_string(bytes) + " for shape " + to_string(shape));
  if (layout == H5D_CHUNKED) {
    Handle space(H5Dget_space(dataset), H5Sclose);
    std::vector<hsize_t> chunk(shape.size());
    hsize_t found = 0;
    if (H5Pget_chunk(create, static_cast<int>(chunk.size()), chunk.data()) < 0 ||
        H5Dget_num_chunks(dataset, space, &found) < 0)
      return fail(path, object, "cannot be read: " + last_error());
    hsize_t want = 1;
    for (std::size_t i = 0; i < chunk.size(); ++i)
      want *= (static_cast<hsize_t>(shape[i]) + chunk[i] - 1) / chunk[i];
    if (found != want)
      return fail(path, object,
                  "found " + std::to_string(found) + " chunks, want " + std::to_string(want));
  }
  return {};
}

Result<Shape> read_shape(hid_t dataset, std::size_t element_bytes, std::uint64_t& bytes,
                         const std::string& path, const std::string& object) {
  Handle space(H5Dget_space(dataset), H5Sclose);
  const int rank = space ? H5Sget_simple_extent_ndims(space) : -1;
  if (rank < 0) return fail(path, object, "cannot be read: " + last_error());
  if (rank == 0) return fail(path, object, "found a scalar, want at least one axis");
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  // Extents that a zero hides must be sane too, so the product skips zeros.
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t product = element_bytes;
  for (hsize_t extent : extents) {
    if (extent > 0 && product > kMost / extent)
      return fail(path, object, "found a shape of more than 2^63 bytes, want one that fits");
    product *= std::max<hsize_t>(extent, 1);
  }
  bytes = std::count(extents.begin(), extents.end(), 0) ? 0 : product;
  return Shape(extents.begin(), extents.end());
}

/// Everything about a dataset but its payload.
Result<TensorInfo> describe(hid_t dataset, const std::string& path, const std::string& object) {
  auto attributes = hdf5::read_attributes(dataset, path, object);
  if (!attributes) return attributes.status();
  for (const char* wanted : {"dtype", "axes"})
    if (!attributes->count(wanted))
      return fail(path, object, std::string("found no attribute ") + wanted + ", want one");

  TensorInfo info;
  info.object = object;
  const std::string dtype_text = attributes->at("dtype");
  const auto dtype = parse_dtype(dtype_text);
  if (!dtype)
    return fail(path, object,
                "found dtype " + in_quotes(dtype_text) + ", want a name that is known");
  info.dtype = *dtype;
  Handle type(H5Dget_type(dataset), H5Tclose);
  if (!type || !hdf5::holds(type, *dtype))
    return fail(path, object,
                "found elements of " + hdf5::describe_type(type) + ", want " +
                    hdf5::describe_type(hdf5::element_type(*dtype)) + " for dtype " + dtype_text);

  std::uint64_t bytes = 0;
  auto shape = read_shape(dataset, size_of(*dtype), bytes, path, object);
  if (!shape) return shape.status();
  info.shape = *shape;
  info.axes = split_axes(attributes->at("axes"));
  if (info.axes.size() != info.shape.size())
    return fail(path, object,
                "found axes " + in_quotes(attributes->at("axes")) + ", want one for each axis of " +
                    to_string(info.shape));
  DSAKIT_TRY(check_storage(dataset, bytes, info.shape, path, object));
  attributes->erase("dtype");
  attributes->erase("axes");
  info.attributes = std::move(*attributes);
  return info;
}

} // namespace

struct RecordingReader::State {
  struct OperationEntry {
    OperationId id;
    std::vector<TensorInfo> inputs, outputs;
  };

  std::string path;
  Handle file;
  ContractValues contract;
  std::map<std::int64_t, ContractValues> step_contracts;
  Attributes config, provenance;
  std::vector<OperationId> operations;
  std::vector<OperationEntry> entries; ///< as operations
  std::vector<TensorInfo> weights;
  std::set<haddr_t> groups;
  std::map<std::string, haddr_t> datasets; ///< address of each object

  Status load();
  Result<Handle> open_group(const std::string& name);
  Result<std::vector<std::string>> children(const std::string& group);
  Status only(const std::string& group, std::initializer_list<std::string_view> names);
  Status load_attributes(const std::string& group, Attributes& values);
  Status load_tensors(const std::string& group, std::vector<TensorInfo>& tensors);
  Status load_step(const std::string& step);
  void name_stored_objects();
  Status check_operations();
  ContractValues contract_of(std::int64_t step) const;
  const OperationEntry* find(const OperationId& id) const;
  Status stream(const TensorInfo& info, const BlockSink& sink) const;
  Result<RecordedTensor> read(const TensorInfo& info) const;
};

Status RecordingReader::State::load() {
  hdf5::initialise();
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access, false, true); // recordings are replaced, never changed in place
  file = Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  if (!file) return bad_input(path + ": cannot be read as HDF5: " + last_error());

  Attributes root;
  DSAKIT_TRY(load_attributes("/", root));
  if (!root.count("format"))
    return fail(path, "/", "found no attribute format, want " + std::string(kRecordingFormat));
  if (root.at("format") != kRecordingFormat)
    return fail(path, "/",
                "found format " + in_quotes(root.at("format")) + ", want " +
                    std::string(kRecordingFormat));
  if (!root.count("level") || root.at("level") != "full")
    return fail(path, "/",
                "found level " + (root.count("level") ? in_quotes(root.at("level")) : "none") +
                    ", want full");
  DSAKIT_TRY(only("/", {"contract", "config", "provenance", "steps", "weights"}));
  DSAKIT_TRY(load_attributes("/contract", contract));
  DSAKIT_TRY(load_attributes("/config", config));
  DSAKIT_TRY(load_attributes("/provenance", provenance));
  for (const char* leaf : {"/contract", "/config", "/provenance"})
    DSAKIT_TRY(only(leaf, {}));
  DSAKIT_TRY(load_tensors("/weights", weights));

  auto steps = children("/steps");
  if (!steps) return steps.status();
  if (steps->empty()) return fail(path, "/steps", "found no step, want at least one");
  for (const std::string& step : *steps)
    DSAKIT_TRY(load_step(step));
  std::sort(entries.begin(), entries.end(), [](const OperationEntry& a, const OperationEntry& b) {
    return std::pair(a.id.step, causal_position(a.id.operation)) <
           std::pair(b.id.step, causal_position(b.id.operation));
  });
  for (const OperationEntry& entry : entries)
    operations.push_back(entry.id);
  name_stored_objects();
  return check_operations();
}

void RecordingReader::State::name_stored_objects() {
  std::map<haddr_t, std::string> first;
  const auto name = [&](std::vector<TensorInfo>& tensors) {
    for (TensorInfo& info : tensors)
      info.stored_as = first.try_emplace(datasets.at(info.object), info.object).first->second;
  };
  name(weights);
  for (OperationEntry& entry : entries) {
    name(entry.inputs);
    name(entry.outputs);
  }
}

/// A group is entered once: a second way into it is a cycle, or data that would count twice.
Result<Handle> RecordingReader::State::open_group(const std::string& name) {
  Handle object(H5Oopen(file, name.c_str(), H5P_DEFAULT), H5Oclose);
  H5O_info_t info;
  if (!object || H5Oget_info(object, &info) < 0)
    return fail(path, name, "cannot be read: " + last_error());
  if (info.type != H5O_TYPE_GROUP) return fail(path, name, "found no group, want one");
  return object;
}

Result<std::vector<std::string>> RecordingReader::State::children(const std::string& name) {
  auto group = open_group(name);
  if (!group) return group.status();
  H5O_info_t info;
  H5Oget_info(*group, &info);
  if (!groups.insert(info.addr).second)
    return fail(path, name, "found a group that appears twice, want a tree");
  auto links = list(*group, path, name);
  if (!links) return links.status();
  std::vector<std::string> names;
  for (Link& link : *links)
    names.push_back(std::move(link.name));
  return names;
}

Status RecordingReader::State::only(const std::string& group,
                                    std::initializer_list<std::string_view> names) {
  auto found = children(group);
  if (!found) return found.status();
  const std::string prefix = group == "/" ? group : group + "/";
  for (const std::string& name : *found)
    if (std::find(names.begin(), names.end(), name) == names.end())
      return fail(path, prefix + name, "found an object that does not belong there");
  for (std::string_view name : names)
    if (std::find(found->begin(), found->end(), name) == found->end())
      return fail(path, prefix + std::string(name), "is missing");
  return {};
}

Status RecordingReader::State::load_attributes(const std::string& group, Attributes& values) {
  auto handle = open_group(group);
  if (!handle) return handle.status();
  auto loaded = hdf5::read_attributes(*handle, path, group);
  if (!loaded) return loaded.status();
  values = std::move(*loaded);
  return {};
}

Status RecordingReader::State::load_tensors(const std::string& group,
                                            std::vector<TensorInfo>& tensors) {
  auto names = children(group);
  if (!names) return names.status();
  for (const std::string& name : *names) {
    const std::string object = group + "/" + name;
    if (!valid_tensor_name(name))
      return fail(path, group,
                  "found tensor name " + in_quotes(name) + ", want " + kTensorNameRule);
    Handle dataset(H5Oopen(file, object.c_str(), H5P_DEFAULT), H5Oclose);
    H5O_info_t info;
    if (!dataset || H5Oget_info(dataset, &info) < 0)
      return fail(path, object, "cannot be read: " + last_error());
    if (info.type != H5O_TYPE_DATASET) return fail(path, object, "found no dataset, want one");
    auto tensor = describe(dataset, path, object);
    if (!tensor) return tensor.status();
    datasets[object] = info.addr;
    tensors.push_back(std::move(*tensor));
  }
  return {};
}

Status RecordingReader::State::load_step(const std::string& name) {
  const std::string group = "/steps/" + name;
  const auto step = parse_step(name);
  if (!step) return fail(path, group, "found step " + in_quotes(name) + ", want a number");
  if (Attributes differs; true) {
    DSAKIT_TRY(load_attributes(group, differs));
    step_contracts.emplace(*step, std::move(differs));
  }
  auto names = children(group);
  if (!names) return names.status();
  for (const std::string& operation : *names) {
    if (!causal_position(operation))
      return fail(path, group + "/" + operation,
                  "found operation " + in_quotes(operation) + ", want one that is known");
    OperationEntry entry;
    entry.id = {*step, operation};
    const std::string where = group + "/" + operation;
    DSAKIT_TRY(only(where, {"inputs", "outputs"}));
    DSAKIT_TRY(load_tensors(where + "/inputs", entry.inputs));
    DSAKIT_TRY(load_tensors(where + "/outputs", entry.outputs));
    entries.push_back(std::move(entry));
  }
  return {};
}

Status RecordingReader::State::check_operations() {
  for (const OperationEntry& entry : entries)
    DSAKIT_TRY(check_structure({path, entry.id, entry.inputs, entry.outputs, config},
                               contract_of(entry.id.step)));
  return {};
}

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

Result<RecordingReader> RecordingReader::open(const std::string& path) {
  DSAKIT_TRY(check_superblock(path));
  auto state = std::make_unique<State>();
  state->path = path;
  DSAKIT_TRY(state->load());
  return RecordingReader(std::move(state));
}

const std::string& RecordingReader::path() const {
  return state_->path;
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
