#include "overrides.hpp"

#include <algorithm>
#include <map>

#include "dsakit/core/operations.hpp"
#include "dsakit/harness/contract_keys.hpp"
#include "names.hpp"

namespace dsakit::harness {
namespace {

/// `o` is about `key` of that tensor, one of the tensors of `output`.
bool applies(const ContractOverride& o, std::string_view key, const std::string& tensor,
             const std::string& output) {
  return o.key == key && (o.tensor.empty() || o.tensor == tensor || o.tensor == output);
}

/// A key of one output, where it stands.
struct Place {
  std::string folder; ///< "steps/1/index_logits_decode/"
  std::string used;
  std::string recorded;

  bool agrees(const Place& other) const { return used == other.used && recorded == other.recorded; }
};

} // namespace

void Overrides::note(const RecordingReader& reader, const std::string& operation,
                     ReportFile& file) {
  ContractValues& used = file.contract;
  used = reader.contract();
  for (const OperationId& id : reader.operations())
    for (const auto& [key, value] : reader.contract(id.step))
      if (!used.contains(key) || used.at(key) != value)
        used["steps/" + std::to_string(id.step) + "/" + key] = value;
  for (const ContractOverride& o : list_)
    for (auto& [key, value] : used)
      if (key == o.key || key.ends_with("/" + o.key)) {
        if (value != o.value) file.contract_recorded.try_emplace(key, value);
        value = o.value;
        used_.insert(&o);
      }
  note_outputs(reader, operation, file);
}

void Overrides::note_outputs(const RecordingReader& reader, const std::string& operation,
                             ReportFile& file) {
  std::map<std::string, std::vector<Place>> places; // by "accumulation:logits"
  for (const OperationId& id : reader.operations()) {
    const Operation* known = find_operation(id.operation);
    if (!known || (!operation.empty() && id.operation != operation)) continue;
    for (const TensorInfo& info : reader.tensors(id, Side::outputs))
      for (const std::string& key : split_names(known->output_attributes)) {
        const auto recorded = info.attributes.find(key);
        if (recorded == info.attributes.end()) continue; // of an operation that is only recorded
        for (const ContractOverride& o : list_)
          if (applies(o, key, info.name(), info.output())) used_.insert(&o);
        places[key + ":" + info.name()].push_back(
            {"steps/" + std::to_string(id.step) + "/" + id.operation + "/",
             attribute(key, info.name(), info.attributes), recorded->second});
      }
  }
  for (const auto& [key, all] : places) {
    const bool agree = std::all_of(all.begin(), all.end(),
                                   [&](const Place& place) { return place.agrees(all.front()); });
    for (const Place& place : all) {
      const std::string name = agree ? key : place.folder + key;
      file.contract[name] = place.used;
      if (place.used != place.recorded) file.contract_recorded[name] = place.recorded;
    }
  }
}

Status Overrides::check_used() const {
  for (const ContractOverride& o : list_)
    if (!used_.contains(&o))
      return bad_input("--contract " + o.key + (o.tensor.empty() ? "" : ":" + o.tensor) + "=" +
                       o.value + ": no file has such a key or tensor");
  return {};
}

ContractValues Overrides::contract(const RecordingReader& reader, std::int64_t step) const {
  ContractValues values = reader.contract(step);
  for (const ContractOverride& o : list_)
    if (values.contains(o.key)) values[o.key] = o.value;
  return values;
}

std::string Overrides::attribute(const std::string& key, const std::string& tensor,
                                 const Attributes& attributes) const {
  std::string value = attributes.at(key);
  for (const ContractOverride& o : list_)
    if (applies(o, key, tensor, output_of(tensor, attributes))) value = o.value;
  return value;
}

Result<Accumulation> Overrides::accumulation(const Operation* operation, const std::string& tensor,
                                             const Attributes& attributes) const {
  if (!outputs_hold(operation, "accumulation")) return Accumulation::exact;
  return parse_accumulation(attribute("accumulation", tensor, attributes));
}

Result<ContractOverride> parse_override(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos)
    return bad_input("--contract: found '" + text + "', want key[:tensor]=value");
  std::string key = text.substr(0, equals);
  std::string tensor;
  if (const auto colon = key.find(':'); colon != std::string::npos) {
    tensor = key.substr(colon + 1);
    key.resize(colon);
  }
  ContractOverride result{key, tensor, text.substr(equals + 1)};
  std::set<std::string> known;
  for (const Operation& operation : kOperations)
    for (std::string_view keys :
         {operation.contract, operation.optional_contract, operation.output_attributes})
      for (std::string& name : split_names(keys))
        known.insert(std::move(name));
  if (!known.contains(key)) {
    std::string list;
    for (const std::string& name : known)
      list += (list.empty() ? "" : ", ") + name;
    return bad_input("--contract: found key '" + key + "', want one of " + list);
  }
  if (equals > key.size() && tensor.empty())
    return bad_input("--contract: found '" + text + "' without a tensor's name after ':'");
  if (!tensor.empty() && !is_per_output(key))
    return bad_input("--contract " + key + ":" + tensor +
                     ": only accumulation and mla_scale_read are per tensor");
  Status value = check_contract_value(key, result.value);
  if (value && key == "page_size") value = parse_page_size({{key, result.value}}).status();
  if (!value) return bad_input("--contract: " + value.what());
  return result;
}

} // namespace dsakit::harness
