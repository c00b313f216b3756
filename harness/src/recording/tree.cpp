// The tree of a recording's groups: what may be where.
#include <algorithm>

#include "dataset.hpp"
#include "dsakit/core/operations.hpp"
#include "names.hpp"
#include "reader_state.hpp"
#include "structure.hpp"
#include "text.hpp"

namespace dsakit::harness {

namespace {

using hdf5::fail;
using hdf5::Handle;
using hdf5::last_error;

} // namespace

Status RecordingReader::State::load(Levels levels) {
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
  if (root.count("level")) level = root.at("level");
  if (level != "full" && (levels == Levels::full || (level != "stats" && level != "meta")))
    return fail(path, "/",
                "found level " + (root.count("level") ? in_quotes(level) : "none") + ", want full" +
                    (levels == Levels::full ? "" : ", stats or meta"));
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
  return hdf5::list(*group, path, name);
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
    auto tensor = hdf5::describe(dataset, path, object, level == "full");
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

} // namespace dsakit::harness
