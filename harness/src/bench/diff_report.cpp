// The comparison of two benchmarks as text, JSON and markdown.
#include <algorithm>
#include <cstdio>
#include <map>

#include "../report/format.hpp"
#include "dsakit/harness/bench_diff.hpp"
#include "dsakit/harness/text.hpp"
#include "report_json.hpp"

namespace dsakit::harness {
namespace {

using DiffJson = nlohmann::ordered_json;

double middle(std::vector<double> samples) {
  return timing_of(std::move(samples)).median_us;
}

std::string percent_change(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f %%", 100 * (ratio - 1));
  return text;
}

std::string interval_text(const DiffRow& row) {
  return row.high == 0 ? "-" : percent_change(row.low) + " to " + percent_change(row.high);
}

std::string remarks_text(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts)
    text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::vector<std::string> cells_of(const DiffRow& row) {
  std::vector<std::string> remarks = row.changed;
  if (!row.note.empty()) remarks.insert(remarks.begin(), row.note);
  return {std::string(name(row.change)),
          escaped(row.key),
          escaped(row.what),
          duration(middle(row.base.samples)),
          duration(middle(row.now.samples)),
          percent_change(row.ratio),
          interval_text(row),
          escaped(remarks_text(remarks))};
}

const std::vector<std::string> kHeader = {"verdict", "row",    "times",    "base",
                                          "new",     "change", "interval", "remarks"};

std::int64_t count_of(const BenchDiff& diff, BenchChange change) {
  return std::count_if(diff.rows.begin(), diff.rows.end(),
                       [&](const DiffRow& row) { return row.change == change; });
}

std::string summary_of(const BenchDiff& diff) {
  if (diff.rows.empty()) return "no row with times on both sides: nothing was compared";
  std::string text;
  for (const BenchChange change :
       {BenchChange::slower, BenchChange::faster, BenchChange::same, BenchChange::ambiguous})
    text += std::to_string(count_of(diff, change)) + " " + std::string(name(change)) + ", ";
  if (diff.geometric_mean)
    text += "geometric mean of the hot times " + percent_change(*diff.geometric_mean) + ", ";
  return text + "minimum effect " + percent_change(1 + diff.min_effect).substr(1);
}

/// What no line of the table says.
std::vector<std::string> remarks_of(const BenchDiff& diff) {
  std::vector<std::string> lines;
  for (const std::string& warning : diff.warnings)
    lines.push_back("warning: " + warning);
  for (const std::string& failure : diff.failures)
    lines.push_back("FAIL " + failure);
  for (const std::string& key : diff.only_base)
    lines.push_back("in BASE alone: " + key);
  for (const std::string& key : diff.only_new)
    lines.push_back("in NEW alone: " + key);
  if (!diff.rerun && count_of(diff, BenchChange::slower) > 0)
    lines.emplace_back("SLOWER stands for one run: --rerun CMD says whether it repeats");
  for (std::string& line : lines)
    line = escaped(line);
  return lines;
}

} // namespace

std::string to_text(const BenchDiff& diff, bool colour) {
  std::string text = "dsakit bench-diff " + escaped(diff.base) + " " + escaped(diff.now) + "\n";
  std::vector<std::vector<std::string>> lines = {kHeader};
  for (const DiffRow& row : diff.rows)
    lines.push_back(cells_of(row));
  std::string body = diff.rows.empty() ? "" : table(lines, "");
  if (colour)
    for (const auto& [word, code] : {std::pair<std::string, std::string>{"\nSLOWER", "31"},
                                     {"\nFASTER", "32"},
                                     {"\nAMBIGUOUS", "33"}})
      for (std::size_t at = 0; (at = body.find(word, at)) != std::string::npos;) {
        const std::string painted = "\n\033[" + code + "m" + word.substr(1) + "\033[0m";
        body.replace(at, word.size(), painted);
        at += painted.size();
      }
  text += body;
  for (const std::string& line : remarks_of(diff))
    text += line + "\n";
  return text + summary_of(diff) + "\n";
}

std::string to_json(const BenchDiff& diff) {
  DiffJson document;
  document["schema"] = "dsakit.bench-diff/1";
  document["base"] = diff.base;
  document["new"] = diff.now;
  document["min_effect"] = diff.min_effect;
  document["confidence"] = kDiffConfidence;
  document["rerun"] = diff.rerun;
  document["geometric_mean"] =
      diff.geometric_mean ? DiffJson(*diff.geometric_mean) : DiffJson(nullptr);
  document["rows"] = DiffJson::array();
  for (const DiffRow& row : diff.rows) {
    DiffJson object;
    object["row"] = row.key;
    object["times"] = row.what;
    object["verdict"] = name(row.change);
    object["base_median_us"] = middle(row.base.samples);
    object["new_median_us"] = middle(row.now.samples);
    object["ratio"] = row.ratio;
    object["ratio_low"] = row.high == 0 ? DiffJson(nullptr) : DiffJson(row.low);
    object["ratio_high"] = row.high == 0 ? DiffJson(nullptr) : DiffJson(row.high);
    object["note"] = row.note;
    object["changed"] = row.changed;
    object["base_code_hash"] = row.base.code_hash;
    object["new_code_hash"] = row.now.code_hash;
    document["rows"].push_back(std::move(object));
  }
  document["failures"] = diff.failures;
  document["only_base"] = diff.only_base;
  document["only_new"] = diff.only_new;
  document["warnings"] = diff.warnings;
  document["exit_code"] = diff.exit_code();
  return document.dump(2, ' ', false, DiffJson::error_handler_t::replace) + "\n";
}

std::string to_markdown(const BenchDiff& diff) {
  std::string text = "### Benchmarks: " + summary_of(diff) + "\n\n";
  std::vector<std::vector<std::string>> lines;
  if (!diff.rows.empty()) lines = {kHeader, std::vector<std::string>(8, "---")};
  for (const DiffRow& row : diff.rows)
    lines.push_back(cells_of(row));
  for (const auto& line : lines) {
    text += "|";
    for (const std::string& cell : line)
      text += " " + cell + " |";
    text += "\n";
  }
  text += "\n";
  for (const std::string& line : remarks_of(diff))
    text += "- " + line + "\n";
  return text;
}

} // namespace dsakit::harness
