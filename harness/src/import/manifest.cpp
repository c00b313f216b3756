#include "../recording/names.hpp"
#include "../recording/text.hpp"
#include "json.hpp"
#include "sources.hpp"

namespace dsakit::harness {
namespace {

using Json = nlohmann::json;

/// The reader of one manifest; messages begin with its path.
class Manifest {
public:
  Manifest(Draft& draft, std::string path) : draft_(draft), path_(std::move(path)) {}

  Status read() {
    const auto text = read_text_file(path_);
    DSAKIT_TRY(text);
    auto json = parse_json(path_, *text, 5);
    if (!json) return json.status();
    DSAKIT_TRY(only(*json, "", {"contract", "config", "operations"}));
    DSAKIT_TRY(texts(*json, "contract", draft_.contract));
    DSAKIT_TRY(texts(*json, "config", draft_.config));
    const Json operations = json->value("operations", Json());
    if (!operations.is_array() || operations.empty())
      return fail("operations: found no list, want one with at least one operation");
    for (const Json& operation : operations)
      DSAKIT_TRY(read_operation(operation));
    return {};
  }

private:
  Draft& draft_;
  std::string path_;

  Status fail(const std::string& text) const { return bad_input(path_ + ": " + text); }

  Status only(const Json& json, const std::string& where,
              std::initializer_list<std::string_view> keys) const {
    if (!json.is_object()) return fail(where + "found no JSON object, want one");
    std::string wanted;
    for (std::string_view key : keys)
      wanted += (wanted.empty() ? "" : ", ") + std::string(key);
    for (const auto& [key, value] : json.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        return fail(where + "found key " + in_quotes(key) + ", want one of " + wanted);
    return {};
  }

  /// An object of texts; numbers are taken as they are written.
  Status texts(const Json& json, const char* key, std::map<std::string, std::string>& out) const {
    if (!json.contains(key)) return {};
    if (!json[key].is_object()) return fail(std::string(key) + ": found no JSON object, want one");
    for (const auto& [name, value] : json[key].items()) {
      if (!value.is_string() && !value.is_number())
        return fail(std::string(key) + ": " + in_quotes(name) + ": found " +
                    in_quotes(value.dump()) + ", want a text or a number");
      out[name] = value.is_string() ? value.get<std::string>() : value.dump();
    }
    return {};
  }

  Status read_operation(const Json& json) {
    DSAKIT_TRY(only(json, "operations: ", {"operation", "step", "contract", "inputs", "outputs"}));
    const Json name = json.value("operation", Json());
    if (!name.is_string() || !causal_position(name.get<std::string>()))
      return fail("operations: found operation " + in_quotes(name.dump()) +
                  ", want one that is known");
    const Json step = json.value("step", Json(0u));
    if (!step.is_number_unsigned() || step.get<std::uint64_t>() > 1'000'000'000)
      return fail("operations: found step " + in_quotes(step.dump()) + ", want a number >= 0");
    const OperationId id{step.get<std::int64_t>(), name.get<std::string>()};
    if (json.contains("contract"))
      DSAKIT_TRY(texts(json, "contract", draft_.step_contracts[id.step]));
    for (Side side : {Side::inputs, Side::outputs}) {
      const std::string key(side_name(side));
      if (!json.contains(key)) return fail(id.operation + ": found no " + key + ", want some");
      if (!json[key].is_object()) return fail(id.operation + ": " + key + ": found no JSON object");
      for (const auto& [tensor_name, value] : json[key].items())
        DSAKIT_TRY(read_tensor(id, side, tensor_name, value));
    }
    return {};
  }

  /// "name in the file", or {"tensor": "name in the file", "<attribute>": "text", ...}.
  Status read_tensor(const OperationId& id, Side side, const std::string& name, const Json& json) {
    const std::string where = id.operation + ": " + in_quotes(name) + ": ";
    if (!valid_tensor_name(name))
      return fail(where + "found a name that cannot be used, want " + kTensorNameRule);
    Attributes attributes;
    if (json.is_object()) {
      DSAKIT_TRY(only(json, where,
                      {"tensor", "output", "producer", "accumulation", "mla_scale_read",
                       "block_stride", "dcp_rank", "page_offset"}));
      for (const auto& [key, value] : json.items()) {
        if (!value.is_string()) return fail(where + in_quotes(key) + ": found no text, want one");
        attributes[key] = value.get<std::string>();
      }
    } else if (json.is_string()) {
      attributes["tensor"] = json.get<std::string>();
    }
    if (!attributes.count("tensor"))
      return fail(where + "found " + in_quotes(json.dump()) +
                  ", want the tensor's name in the file");
    const std::string tensor = attributes["tensor"];
    attributes.erase("tensor");
    if (!draft_.has(tensor))
      return fail(where + "found tensor " + in_quotes(tensor) + ", want one of " +
                  draft_.file().path());
    if (draft_.find(object_path(id, side, name))) return fail(where + "is named twice");
    draft_.place(id, side, name, tensor, attributes);
    return {};
  }
};

} // namespace

Status place_by_manifest(Draft& draft, const std::string& manifest) {
  return Manifest(draft, manifest).read();
}

} // namespace dsakit::harness
