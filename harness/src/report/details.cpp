// What a report says of one line that did not pass.
#include "dsakit/harness/rules.hpp"
#include "format.hpp"

namespace dsakit::harness {
namespace {

std::string of(std::int64_t part, std::int64_t whole, double percent) {
  return std::to_string(part) + " of " + std::to_string(whole) + " (" +
         (part == whole ? "100" : short_number(percent)) + " %)";
}

/// "keys 0 to 63 (1 of 11 pages of 64)"
std::string place(const AxisMap& axis) {
  const std::string blocks =
      axis.unit == "index" ? "" : " " + axis.unit + "s of " + std::to_string(axis.block);
  if (axis.wrong_blocks == axis.blocks)
    return axis.unit == "index" ? "all " + std::to_string(axis.extent) + " " + axis.axis
                                : axis.axis + ": all " + std::to_string(axis.blocks) + blocks;
  std::string text = axis.axis;
  for (std::size_t i = 0; i < axis.ranges.size(); ++i) {
    const auto [first, last] = axis.ranges[i];
    text += (i ? ", " : " ") + std::to_string(first);
    if (last != first) text += " to " + std::to_string(last);
  }
  if (axis.ranges.size() == AxisMap::kRanges) text += " ...";
  return text + " (" + std::to_string(axis.wrong_blocks) + " of " + std::to_string(axis.blocks) +
         blocks + ")";
}

std::string places(const ReportLine& line) {
  std::string text;
  for (const AxisMap& axis : line.map)
    if (axis.extent > 1) text += (text.empty() ? "" : "; ") + place(axis);
  return text;
}

std::string anomalies(const ReportLine& line) {
  std::string text;
  for (const ReportAnomaly& anomaly : line.anomalies)
    if (anomaly.apart > 0)
      text += (text.empty() ? "" : "; ") + anomaly.kind + " got " + std::to_string(anomaly.got) +
              ", want " + std::to_string(anomaly.want) + ", first at " +
              coordinate(anomaly.first_at);
  return text;
}

/// "0: 12, 1: 3, 2 to 3: 1": elements by their steps
std::string histogram(const ReportLine& line) {
  std::string text;
  for (const UlpBin& bin : ulp_bins(line.ulp_histogram)) {
    text += (text.empty() ? "" : ", ") + std::to_string(bin.from);
    if (bin.to != bin.from) text += " to " + std::to_string(bin.to);
    text += ": " + count(bin.elements);
  }
  return text;
}

std::string parts(const ReportQuantised& quantised) {
  std::string text;
  if (quantised.codes > 0)
    text += std::to_string(quantised.codes_wrong) + " of " + std::to_string(quantised.codes) +
            " codes differ; ";
  text += of(quantised.scales_wrong, quantised.scales, quantised.scales_wrong_percent()) +
          " scales differ, " + std::to_string(quantised.scales_one_exponent) +
          " of them by one exponent";
  if (quantised.codes > 0)
    text += "; " + std::to_string(quantised.values_wrong) + " values differ, at most abs " +
            short_number(quantised.values_worst_abs) + ", rel " +
            short_number(quantised.values_worst_rel);
  return text;
}

std::string attribution(const ReportAttribution& found) {
  std::string text = "implementation error " + short_number(found.implementation) +
                     " and format error " + short_number(found.format) + " of the gate; ";
  if (found.explained_by.empty()) return text + "no rounding point explains it";
  text += "explained by: " + found.explained_by;
  for (const SwitchedPoint& point : found.points)
    if (point.point == found.explained_by) text += ", which leaves " + short_number(point.used);
  return text;
}

} // namespace

std::string title(const ReportLine& line) {
  const std::string operation =
      line.operation == kTensors ? "tensor" : line.operation + " step " + std::to_string(line.step);
  return operation + (line.tensor.empty() ? "" : " " + line.tensor) + ": " + line.subject +
         " against " + line.against;
}

std::string details(const ReportLine& line, bool verbose) {
  std::string text;
  const auto add = [&](const char* label, const std::string& sentence) {
    if (!sentence.empty()) text += wrapped(std::string("  ") + label + ": ", words(sentence));
  };
  if (line.mismatches > 0)
    add("wrong", of(line.mismatches, line.elements, line.wrong_percent()) +
                     (line.gate.empty() ? "" : " under gate " + line.gate) +
                     (line.allowed > 0 ? ", " + std::to_string(line.allowed) + " allowed" : ""));
  add("reason", line.reason);
  add("not finite", anomalies(line));
  add("where", places(line));
  add("hint", line.hint);
  if (line.got && line.want && !line.first_at.empty())
    text += "  first " + coordinate(line.first_at) + ": " +
            samples_text(line, sample_text(*line.got), sample_text(*line.want)) + "\n";
  if (!line.worst_at.empty())
    text += "  worst " + coordinate(line.worst_at) + ": " + short_number(line.used) +
            " of the gate; anywhere at most abs " + short_number(line.worst_abs) + ", rel " +
            short_number(line.worst_rel) + "\n";
  if (line.relative_l2)
    add("relative l2",
        short_number(line.relative_l2) +
            (line.relative_l2_limit ? ", limit " + short_number(line.relative_l2_limit) : ""));
  if (line.ulp_max && line.ulp_p99)
    add(("ulp of " + line.dtype).c_str(), "max " + std::to_string(*line.ulp_max) + " at " +
                                              coordinate(line.ulp_at) + ", p99 " +
                                              std::to_string(*line.ulp_p99));
  if (line.quantised) add("parts", parts(*line.quantised));
  if (line.ties && line.ties->rows > 0)
    add("ties at the threshold",
        std::to_string(line.ties->rows) + " rows have more than places; the most are " +
            std::to_string(line.ties->largest) + " for " + std::to_string(line.ties->places) +
            " in row " + std::to_string(line.ties->row));
  if (line.attribution) add("attribution", attribution(*line.attribution));
  add("tightest passing gate", line.tightest_gate);
  if (verbose) add("elements by ulp", histogram(line));
  if (verbose)
    for (const SamplePair& pair : line.samples)
      text += "  sample " + coordinate(pair.at) + ": " +
              samples_text(line, sample_text(pair.got), sample_text(pair.want)) + "\n";
  // One line, to be copied.
  if (!line.reproduce.empty()) text += "  reproduce: " + line.reproduce + "\n";
  return text;
}

} // namespace dsakit::harness
