#include <cmath>

#include "../report/json_parts.hpp"
#include "dsakit/harness/bisect.hpp"

namespace dsakit::harness {
namespace {

using Json = nlohmann::ordered_json;

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

/// JSON has no NaN and no infinity: null, and the text beside it under NAME_text.
void set_key(Json& object, const std::string& key, double value) {
  object[key] = std::isfinite(value) ? Json(value) : Json(nullptr);
  if (!std::isfinite(value))
    object[key + "_text"] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

void set_key(Json& object, const std::string& key, const std::optional<Sample>& sample) {
  object[key] = nullptr;
  if (!sample) return;
  set_key(object, key, sample->value);
  object[key + "_hex"] = sample->hex;
}

void set_key(Json& object, const std::string& key, const std::optional<bool>& value) {
  object[key] = value ? Json(*value) : Json(nullptr);
}

Json rows_json(const WrongRows& rows) {
  return {{"axis", rows.axis},   {"first", rows.first}, {"last", rows.last},
          {"wrong", rows.wrong}, {"of", rows.of},       {"complete", rows.complete}};
}

Json growth_json(const Growth& growth) {
  Json object = {{"step", growth.step}, {"operation", growth.operation}, {"tensor", growth.tensor}};
  set_key(object, "fed_abs", growth.fed_abs);
  set_key(object, "fed_used", growth.fed_used);
  set_key(object, "chained_abs", growth.chained_abs);
  set_key(object, "chained_used", growth.chained_used);
  object["moved"] = growth.moved;
  return object;
}

Json parting_json(const Parting& parting) {
  Json object = {{"step", parting.step},         {"operation", parting.operation},
                 {"tensor", parting.tensor},     {"cause", name(parting.cause)},
                 {"elements", parting.elements}, {"mismatches", parting.mismatches}};
  object["first_at"] = parting.first_at.empty() ? Json(nullptr) : Json(parting.first_at);
  set_key(object, "got", parting.got);
  set_key(object, "want", parting.want);
  object["maker"] = text_or_null(parting.maker);
  set_key(object, "got_right", parting.got_right);
  set_key(object, "want_right", parting.want_right);
  object["gate"] = parting.gate;
  object["waived"] = text_or_null(parting.waived);
  return object;
}

} // namespace

std::string to_json(const Bisection& bisection) {
  Json document;
  document["schema"] = "dsakit-bisect/1";
  document["file"] = bisection.file;
  document["against"] = text_or_null(bisection.against);
  document["verdict"] = name(bisection.verdict);
  document["reason"] = text_or_null(bisection.reason);
  document["partial"] = bisection.partial;
  document["device"] = text_or_null(bisection.device);
  document["host_arch"] = text_or_null(bisection.host_arch);
  document["environment"] = environment_json(bisection.environment);
  document["operations"] = bisection.operations;
  document["judged"] = Json::array();
  for (const JudgedOperation& judged : bisection.judged)
    document["judged"].push_back({{"step", judged.step},
                                  {"operation", judged.operation},
                                  {"verdict", name(judged.verdict)},
                                  {"reason", text_or_null(judged.reason)}});
  document["first"] = bisection.first ? line_json(*bisection.first) : Json(nullptr);
  document["rows"] = bisection.rows ? rows_json(*bisection.rows) : Json(nullptr);
  document["others"] = Json::array();
  for (const ReportLine& line : bisection.others)
    document["others"].push_back(line_json(line));
  document["waived"] = Json::array();
  for (const ReportLine& line : bisection.waived_lines)
    document["waived"].push_back(line_json(line));
  document["growth"] = Json::array();
  for (const Growth& growth : bisection.growth)
    document["growth"].push_back(growth_json(growth));
  document["partings"] = Json::array();
  for (const Parting& parting : bisection.partings)
    document["partings"].push_back(parting_json(parting));
  document["warnings"] = bisection.warnings;
  document["reproduce"] = text_or_null(bisection.reproduce);
  document["next"] = text_or_null(bisection.next);
  // A path need not be UTF-8; a report must not fail for it.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace dsakit::harness
