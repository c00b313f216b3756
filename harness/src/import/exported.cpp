#include "dsakit/harness/export.hpp"

#include <algorithm>

#include "../recording/atomic_file.hpp"
#include "../recording/names.hpp"
#include "../recording/text.hpp"
#include "json.hpp"
#include "sources.hpp"

namespace dsakit::harness {
namespace {

using Json = nlohmann::json;

Json describe(const TensorInfo& info) {
  Json json = {{"axes", join_axes(info.axes)},
               {"attributes", info.attributes},
               {"dtype", name(info.dtype)},
               {"object", info.object}};
  if (info.stored_as != info.object) json["same_as"] = info.stored_as;
  return json;
}

/// The description of a recording in a file that export wrote, which anybody may have changed.
class Description {
public:
  Description(Draft& draft, const Json& json)
      : draft_(draft), json_(json), path_(draft.file().path()) {}

  Status read() {
    for (const char* key : {"contract", "config", "provenance", "steps", "tensors"})
      if (!json_.contains(key) || !json_[key].is_object())
        return fail(std::string("found no object ") + key + ", want one");
    DSAKIT_TRY(texts(json_["contract"], draft_.contract));
    DSAKIT_TRY(texts(json_["config"], draft_.config));
    DSAKIT_TRY(texts(json_["provenance"], draft_.provenance));
    for (const auto& [step_text, values] : json_["steps"].items()) {
      const auto step = parse_step(step_text);
      if (!step) return fail("found step " + in_quotes(step_text) + ", want a number");
      DSAKIT_TRY(texts(values, draft_.step_contracts[*step]));
    }
    for (const auto& [tensor, json] : json_["tensors"].items())
      DSAKIT_TRY(read_tensor(tensor, json));
    for (const auto& [tensor, same_as] : links_)
      DSAKIT_TRY(check_link(tensor, same_as));
    if (const auto rest = draft_.unplaced(); !rest.empty())
      return fail("found tensor " + in_quotes(rest.front()) + ", which it does not describe");
    return {};
  }

private:
  Draft& draft_;
  const Json& json_;
  const std::string& path_;
  std::vector<std::pair<std::string, std::string>> links_; ///< tensor, object it is stored with

  Status fail(const std::string& text) const {
    return bad_input(path_ + ": metadata " + kExportMetadata + ": " + text);
  }

  Status texts(const Json& json, std::map<std::string, std::string>& out) const {
    if (!json.is_object()) return fail("found no object of texts, want one");
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) return fail("found no text for " + in_quotes(key) + ", want one");
      out[key] = value.get<std::string>();
    }
    return {};
  }

  /// Both lie in the file, and one of them would be lost: they have to be the same.
  Status check_link(const std::string& tensor, const std::string& same_as) const {
    const std::string where = in_quotes(tensor) + ": found same_as " + in_quotes(same_as);
    const DraftTensor* stored = draft_.find(same_as);
    if (!stored || stored->info.object != same_as)
      return fail(where + ", want an object that is stored");
    const auto linked = draft_.file().read(tensor);
    DSAKIT_TRY(linked);
    const auto first = draft_.file().read(std::get<std::string>(stored->payload));
    DSAKIT_TRY(first);
    const auto [a, b] = std::mismatch(linked->bytes.begin(), linked->bytes.end(),
                                      first->bytes.begin(), first->bytes.end());
    if (a == linked->bytes.end() && b == first->bytes.end()) return {};
    return fail(where + ", whose bytes differ from byte " +
                std::to_string(a - linked->bytes.begin()) +
                " on, want the same (or no same_as: then it is stored of its own)");
  }

  Status read_tensor(const std::string& tensor, const Json& json) {
    const std::string where = in_quotes(tensor) + ": ";
    if (!draft_.has(tensor)) return fail(where + "found no such tensor in the file");
    Attributes texts_of;
    Json texts_only = json;
    if (json.is_object()) texts_only.erase("attributes");
    DSAKIT_TRY(texts(texts_only, texts_of));

    TensorInfo info;
    const auto& entry = draft_.file().tensors().at(tensor);
    info.object = texts_of["object"];
    if (!valid_object(info.object) || draft_.find(info.object))
      return fail(where + "found object " + in_quotes(info.object) + ", want a free place");
    const auto dtype = parse_dtype(texts_of["dtype"]);
    if (!dtype || size_of(*dtype) != size_of(entry.dtype))
      return fail(where + "found dtype " + in_quotes(texts_of["dtype"]) + ", want one of " +
                  std::to_string(size_of(entry.dtype)) + " bytes");
    info.dtype = *dtype;
    info.shape = entry.shape;
    info.axes = {""};
    for (char c : texts_of["axes"]) {
      if (c == ',')
        info.axes.emplace_back();
      else
        info.axes.back() += c;
    }
    if (json.contains("attributes")) DSAKIT_TRY(texts(json["attributes"], info.attributes));
    const std::string same_as = texts_of["same_as"];
    if (!same_as.empty()) links_.emplace_back(tensor, same_as);
    draft_.add_exact(std::move(info), tensor, same_as);
    return {};
  }
};

} // namespace

Result<bool> place_exported_file(Draft& draft) {
  if (!draft.file().metadata().count(kExportMetadata)) return false;
  auto json = parse_json(draft.file().path() + ": metadata " + kExportMetadata,
                         draft.metadata(kExportMetadata), 4);
  if (!json) return json.status();
  if (!json->is_object())
    return bad_input(draft.file().path() + ": metadata " + kExportMetadata +
                     ": found no object, want one");
  DSAKIT_TRY(Description(draft, *json).read());
  return true;
}

Status export_safetensors(const std::string& recording, const std::string& output) {
  DSAKIT_TRY(check_not_input(output, recording));
  auto opened = RecordingReader::open(recording);
  if (!opened) return opened.status();
  const RecordingReader& reader = *opened;

  Json json = {{"contract", reader.contract()},
               {"config", reader.config()},
               {"provenance", reader.provenance()},
               {"steps", Json::object()},
               {"tensors", Json::object()}};
  std::vector<SafetensorsOutput> tensors;
  const auto add = [&](const TensorInfo& info) {
    const std::string exported = exported_name(info.object);
    json["tensors"][exported] = describe(info);
    tensors.push_back({exported, info.dtype, info.shape,
                       [&](const BlockSink& sink) { return reader.stream(info, sink); }});
  };
  for (const OperationId& id : reader.operations()) {
    for (const auto& [key, value] : reader.contract(id.step))
      if (const auto same = reader.contract().find(key);
          same == reader.contract().end() || same->second != value)
        json["steps"][std::to_string(id.step)][key] = value;
    for (Side side : {Side::inputs, Side::outputs})
      for (const TensorInfo& info : reader.tensors(id, side))
        add(info);
  }
  for (const TensorInfo& info : reader.weights())
    add(info);
  return write_safetensors(
      output,
      {{"format", "pt"},
       {kExportMetadata, json.dump(-1, ' ', false, Json::error_handler_t::replace)}},
      tensors);
}

} // namespace dsakit::harness
