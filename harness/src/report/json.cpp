#include "json_parts.hpp"

#include <cmath>

namespace dsakit::harness {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no NaN and no infinity: null, and the text beside it under NAME_text.
void put(Json& object, const char* key, std::optional<double> value) {
  object[key] = nullptr;
  if (!value) return;
  if (std::isfinite(*value))
    object[key] = *value;
  else
    object[std::string(key) + "_text"] = std::isnan(*value) ? "nan" : *value > 0 ? "inf" : "-inf";
}

void put(Json& object, const char* key, const std::optional<std::int64_t>& value) {
  object[key] = value ? Json(*value) : Json(nullptr);
}

void put(Json& object, const char* key, const std::string& text) {
  object[key] = text.empty() ? Json(nullptr) : Json(text);
}

void put(Json& object, const char* key, const std::vector<std::int64_t>& at) {
  object[key] = at.empty() ? Json(nullptr) : Json(at);
}

void put(Json& object, const std::string& key, const std::optional<Sample>& sample) {
  put(object, key.c_str(), sample ? std::optional(sample->value) : std::nullopt);
  if (sample) object[key + "_hex"] = sample->hex;
}

Json anomaly_json(const ReportAnomaly& anomaly) {
  Json object;
  object["kind"] = anomaly.kind;
  object["got"] = anomaly.got;
  object["want"] = anomaly.want;
  object["apart"] = anomaly.apart;
  put(object, "first_at", anomaly.first_at);
  return object;
}

Json axis_json(const AxisMap& axis) {
  Json object;
  object["axis"] = axis.axis;
  object["unit"] = axis.unit;
  object["extent"] = axis.extent;
  object["block"] = axis.block;
  object["blocks"] = axis.blocks;
  object["wrong_blocks"] = axis.wrong_blocks;
  object["ranges"] = axis.ranges;
  return object;
}

Json bin_json(const UlpBin& bin) {
  Json object;
  object["from"] = bin.from;
  object["to"] = bin.to;
  object["elements"] = bin.elements;
  return object;
}

Json sample_json(const SamplePair& pair) {
  Json object;
  put(object, "at", pair.at);
  put(object, "got", pair.got);
  put(object, "want", pair.want);
  return object;
}

Json quantised_json(const ReportQuantised& quantised) {
  Json object;
  object["codes"] = quantised.codes;
  object["codes_wrong"] = quantised.codes_wrong;
  object["scales"] = quantised.scales;
  object["scales_wrong"] = quantised.scales_wrong;
  object["scales_wrong_percent"] = quantised.scales_wrong_percent();
  object["scales_one_exponent"] = quantised.scales_one_exponent;
  object["values_wrong"] = quantised.values_wrong;
  put(object, "values_worst_abs", std::optional(quantised.values_worst_abs));
  put(object, "values_worst_rel", std::optional(quantised.values_worst_rel));
  return object;
}

Json ties_json(const ReportTies& ties) {
  Json object;
  object["rows"] = ties.rows;
  object["largest"] = ties.largest;
  object["places"] = ties.places;
  object["row"] = ties.row;
  object["groups"] = Json::object();
  for (const auto& [size, rows] : ties.groups)
    object["groups"][std::to_string(size)] = rows;
  return object;
}

Json attribution_json(const ReportAttribution& attribution) {
  Json object;
  put(object, "implementation", std::optional(attribution.implementation));
  put(object, "format", std::optional(attribution.format));
  object["points"] = Json::array();
  for (const SwitchedPoint& point : attribution.points) {
    Json& of_point = object["points"].emplace_back();
    of_point["point"] = point.point;
    put(of_point, "used", std::optional(point.used));
  }
  put(object, "explained_by", attribution.explained_by);
  return object;
}

template <class Items, class ToJson>
Json array_json(const Items& items, ToJson to_json) {
  Json array = Json::array();
  for (const auto& item : items)
    array.push_back(to_json(item));
  return array;
}

} // namespace

Json line_json(const ReportLine& line) {
  Json object;
  object["file"] = line.file;
  object["step"] = line.step;
  object["operation"] = line.operation;
  put(object, "tensor", line.tensor);
  put(object, "subject", line.subject);
  put(object, "against", line.against);
  put(object, "kernel", line.kernel);
  if (!line.configuration.empty()) object["configuration"] = line.configuration;
  put(object, "workgroups", line.workgroups);
  object["verdict"] = name(line.verdict);
  put(object, "gate", line.gate);
  put(object, "used", line.used);
  object["elements"] = line.elements;
  object["mismatches"] = line.mismatches;
  object["wrong_percent"] = line.wrong_percent();
  object["allowed"] = line.allowed;
  object["moved"] = line.moved;
  put(object, "dtype", line.dtype);
  put(object, "worst_abs", line.worst_abs);
  put(object, "worst_rel", line.worst_rel);
  put(object, "relative_l2", line.relative_l2);
  put(object, "relative_l2_limit", line.relative_l2_limit);
  put(object, "ulp_max", line.ulp_max);
  put(object, "ulp_p99", line.ulp_p99);
  object["ulp_histogram"] = array_json(ulp_bins(line.ulp_histogram), bin_json);
  put(object, "ulp_at", line.ulp_at);
  object["anomalies"] = array_json(line.anomalies, anomaly_json);
  object["map"] = array_json(line.map, axis_json);
  object["samples"] = array_json(line.samples, sample_json);
  object["quantised"] = line.quantised ? quantised_json(*line.quantised) : Json(nullptr);
  object["ties"] = line.ties ? ties_json(*line.ties) : Json(nullptr);
  object["attribution"] = line.attribution ? attribution_json(*line.attribution) : Json(nullptr);
  put(object, "first_at", line.first_at);
  put(object, "worst_at", line.worst_at);
  put(object, "got", line.got);
  put(object, "want", line.want);
  put(object, "tightest_gate", line.tightest_gate);
  put(object, "hint", line.hint);
  put(object, "reproduce", line.reproduce);
  put(object, "time_us", line.time_us);
  put(object, "why", line.why);
  put(object, "reason", line.reason);
  object["other_kernels"] = line.other_kernels;
  return object;
}

Json environment_json(const Environment& environment) {
  Json object;
  object["version"] = environment.version;
  object["revision"] = environment.revision;
  object["compiler"] = environment.compiler;
  object["build_type"] = environment.build_type;
  object["cpu"] = environment.cpu;
  put(object, "device", environment.device);
  object["threads"] = environment.threads;
  object["variables"] = environment.variables;
  return object;
}

namespace {

Json summary_json(const Summary& summary) {
  Json object;
  object["operations"] = summary.operations;
  object["comparisons"] = summary.comparisons;
  object["passed"] = summary.passed;
  object["not_passed"] = summary.not_passed;
  object["waived"] = summary.waived;
  object["mismatches"] = summary.mismatches;
  put(object, "worst_used", summary.worst_used);
  object["time_us"] = summary.time_us;
  return object;
}

/// What every file agrees on; `files` has each file's own.
ContractValues common_contract(const std::vector<ReportFile>& files) {
  ContractValues common;
  bool first = true;
  for (const ReportFile& file : files) {
    if (file.contract.empty()) continue;
    if (first) common = file.contract;
    first = false;
    std::erase_if(common, [&](const auto& item) {
      const auto found = file.contract.find(item.first);
      return found == file.contract.end() || found->second != item.second;
    });
  }
  return common;
}

} // namespace

std::string to_json(const Report& report) {
  Json document;
  document["schema"] = "dsakit-report/1";
  document["verb"] = report.verb;
  put(document, "mode", report.mode);
  put(document, "against", report.against);
  document["verdict"] = name(report.verdict());
  document["partial"] = report.partial;
  put(document, "device", report.device);
  put(document, "host_arch", report.host_arch);
  document["environment"] = environment_json(report.environment);
  document["contract"] = common_contract(report.files);
  document["files"] = Json::array();
  for (const ReportFile& file : report.files) {
    Json object;
    object["file"] = file.file;
    object["verdict"] = name(file.verdict);
    put(object, "reason", file.reason);
    object["contract"] = file.contract;
    object["contract_recorded"] = file.contract_recorded;
    object["summary"] = summary_json(report.summary(file.file));
    document["files"].push_back(std::move(object));
  }
  document["summary"] = summary_json(report.summary());
  document["files_left_out"] = report.files_left_out;
  document["operations"] = Json::array();
  for (const ReportLine& line : report.lines)
    document["operations"].push_back(line_json(line));
  document["warnings"] = report.warnings;
  // A path need not be UTF-8; a report must not fail for it.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace dsakit::harness
