#include <cstring>
#include <set>

#include "atomic_file.hpp"
#include "hdf5.hpp"
#include "names.hpp"

namespace dsakit::harness {

using hdf5::fail;
using hdf5::Handle;
using hdf5::last_error;

namespace {

constexpr unsigned kMaxInHeader = 65535; // HDF5's own limit

/// No times, and attributes in the object's header, which has a checksum from end to end. HDF5's
/// trees of many attributes have bytes that no checksum covers.
void set_object_properties(hid_t creation) {
  H5Pset_obj_track_times(creation, false);
  H5Pset_attr_phase_change(creation, kMaxInHeader, kMaxInHeader);
}

} // namespace

struct RecordingWriter::State {
  std::string path;
  AtomicFile target; // before `file`, so that HDF5 closes first
  bool deflate;
  Handle file;
  std::set<std::string> groups;

  State(AtomicFile atomic, WriterOptions options)
      : path(atomic.target()), target(std::move(atomic)), deflate(options.deflate) {}

  Status create();
  Status group(const std::string& name);
  Status parent_of(const std::string& object);
  Status group_attributes(const std::string& name, const Attributes& values);
  Status add(const TensorInfo& info, const BlockSource& source);
  Status commit();
  Status failed(std::string_view object) const {
    return fail(path, object, "cannot be written: " + last_error());
  }
};

Status RecordingWriter::State::create() {
  hdf5::initialise();
  Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  set_object_properties(creation);
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_file_locking(access, false, true);
  // No space in reserve: a changed byte there would go unnoticed.
  H5Pset_meta_block_size(access, 0);
  H5Pset_small_data_block_size(access, 0);
  file = Handle(H5Fcreate(target.temporary().c_str(), H5F_ACC_TRUNC, creation, access), H5Fclose);
  if (!file || hdf5::write_attribute(file, "format", kRecordingFormat) < 0 ||
      hdf5::write_attribute(file, "level", "full") < 0)
    return failed("/");
  for (const char* name_of_group : {"/contract", "/config", "/provenance", "/steps", "/weights"})
    DSAKIT_TRY(group(name_of_group));
  return {};
}

Status RecordingWriter::State::group(const std::string& name) {
  if (name.empty() || !groups.insert(name).second) return {};
  DSAKIT_TRY(group(name.substr(0, name.rfind('/'))));
  Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  set_object_properties(creation);
  H5Pset_link_phase_change(creation, kMaxInHeader, kMaxInHeader);
  Handle created(H5Gcreate2(file, name.c_str(), H5P_DEFAULT, creation, H5P_DEFAULT), H5Gclose);
  if (!created) return failed(name);
  return {};
}

/// The groups above a tensor; an operation gets both sides, also where one stays empty.
Status RecordingWriter::State::parent_of(const std::string& object) {
  const std::string parent = object.substr(0, object.rfind('/'));
  if (parent.starts_with("/steps/")) {
    const std::string operation = parent.substr(0, parent.rfind('/'));
    for (const char* side : {"/inputs", "/outputs"})
      DSAKIT_TRY(group(operation + side));
  }
  return group(parent);
}

Status RecordingWriter::State::group_attributes(const std::string& name, const Attributes& values) {
  DSAKIT_TRY(group(name));
  Handle opened(H5Gopen2(file, name.c_str(), H5P_DEFAULT), H5Gclose);
  if (!opened || hdf5::write_attributes(opened, values) < 0) return failed(name);
  return {};
}

Status RecordingWriter::State::add(const TensorInfo& info, const BlockSource& source) {
  DSAKIT_TRY(check_writable(path, info));
  DSAKIT_TRY(parent_of(info.object));

  const std::size_t element_bytes = size_of(info.dtype);
  const hdf5::Extents extents(info.shape.begin(), info.shape.end());
  Handle type = hdf5::element_type(info.dtype);
  Handle space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
               H5Sclose);
  Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  set_object_properties(creation);
  if (element_count(info.shape) != 0) { // nothing to check in an empty one
    const hdf5::Extents chunk = hdf5::chunk_shape(info.shape, element_bytes);
    H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
    if (deflate) {
      H5Pset_shuffle(creation);
      H5Pset_deflate(creation, 6);
    }
    H5Pset_fletcher32(creation); // last, so that it covers what is stored
  }
  Handle dataset(
      H5Dcreate2(file, info.object.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT),
      H5Dclose);
  if (!dataset) return failed(info.object);

  std::vector<std::byte> buffer;
  for (hdf5::Blocks block(info.shape, element_bytes); !block.done(); block.next()) {
    buffer.resize(block.bytes());
    DSAKIT_TRY(source(buffer));
    if (block.select(space) < 0 ||
        H5Dwrite(dataset, type, block.memory_space(), space, H5P_DEFAULT, buffer.data()) < 0)
      return failed(info.object);
  }

  Attributes attributes = info.attributes;
  attributes["dtype"] = name(info.dtype);
  attributes["axes"] = join_axes(info.axes);
  if (hdf5::write_attributes(dataset, attributes) < 0 || dataset.close() < 0)
    return failed(info.object);
  return {};
}

Status RecordingWriter::State::commit() {
  if (file.close() < 0) return bad_input(path + ": cannot be written: " + last_error());
  return target.commit();
}

RecordingWriter::RecordingWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
RecordingWriter::RecordingWriter(RecordingWriter&&) noexcept = default;
RecordingWriter& RecordingWriter::operator=(RecordingWriter&&) noexcept = default;
RecordingWriter::~RecordingWriter() = default;

Result<RecordingWriter> RecordingWriter::create(const std::string& path, WriterOptions options) {
  auto target = AtomicFile::create(path);
  if (!target) return target.status();
  auto state = std::make_unique<State>(std::move(*target), options);
  DSAKIT_TRY(state->create());
  return RecordingWriter(std::move(state));
}

Status RecordingWriter::contract(const ContractValues& values) {
  return state_->group_attributes("/contract", values);
}
Status RecordingWriter::config(const Attributes& values) {
  return state_->group_attributes("/config", values);
}
Status RecordingWriter::provenance(const Attributes& values) {
  return state_->group_attributes("/provenance", values);
}
Status RecordingWriter::step_contract(std::int64_t step, const ContractValues& values) {
  return state_->group_attributes("/steps/" + std::to_string(step), values);
}

Status RecordingWriter::add(const TensorInfo& info, const BlockSource& source) {
  return state_->add(info, source);
}

Status RecordingWriter::add(const std::string& object, const RecordedTensor& tensor) {
  const std::byte* next = tensor.tensor.bytes.data();
  const TensorInfo info{.object = object,
                        .stored_as = {},
                        .dtype = tensor.tensor.dtype,
                        .shape = tensor.tensor.shape,
                        .axes = tensor.axes,
                        .attributes = tensor.attributes};
  return state_->add(info, [&](std::span<std::byte> block) -> Status {
    std::memcpy(block.data(), next, block.size());
    next += block.size();
    return {};
  });
}

Status RecordingWriter::link(const std::string& existing, const std::string& object) {
  DSAKIT_TRY(state_->parent_of(object));
  if (H5Lcreate_hard(state_->file, existing.c_str(), state_->file, object.c_str(), H5P_DEFAULT,
                     H5P_DEFAULT) < 0)
    return state_->failed(object);
  return {};
}

Status RecordingWriter::commit() {
  return state_->commit();
}

} // namespace dsakit::harness
