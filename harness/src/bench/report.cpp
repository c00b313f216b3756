// The report of a benchmark as JSON, CSV, text and markdown.
#include <algorithm>
#include <cstdio>

#include "../report/format.hpp"
#include "../report/json_parts.hpp"
#include "report_json.hpp"
#include "statistics.hpp"

namespace dsakit::harness {
namespace {

using BenchJson = nlohmann::ordered_json;

constexpr const char* kHostNote =
    "times are of a model of AMD lanes on this CPU: they are no kernel times";

BenchJson limit_json(const BenchRow& row) {
  if (!row.limit) return nullptr;
  BenchJson object;
  object["name"] = row.limit->name;
  object[row.limit->compute ? "TFLOPps" : "GBps"] = row.limit->rate;
  object["time_us"] = row.limit->time_us;
  return object;
}

BenchJson row_json(const BenchReport& report, const BenchRow& row) {
  const auto timing = [](const std::optional<BenchTiming>& of) {
    return of ? timing_json(*of) : BenchJson(nullptr);
  };
  BenchJson object;
  object["operation"] = row.operation;
  object["kernel"] = row.kernel;
  object["library"] = row.library;
  object["device"] = report.device;
  object["problem"] = row.problem;
  object["configuration"] = row.configuration;
  object["ran"] = row.ran;
  object["problem_class"] = row.problem_class;
  object["code_hash"] = row.code_hash;
  object["verdict"] = name(row.verdict);
  object["reason"] = row.reason;
  object["gate"] = row.gate;
  object["rows"] = row.rows;
  object["graph"] = row.graph;
  object["hot"] = timing(row.hot);
  object["cold"] = timing(row.cold);
  object["reference"] = timing(row.reference);
  object["bytes"] = row.work.bytes;
  object["flops"] = row.work.flops;
  object["bytes_formula"] = row.work.bytes_formula;
  object["flops_formula"] = row.work.flops_formula;
  object["limit"] = limit_json(row);
  object["of_limit"] = row.of_limit() ? BenchJson(*row.of_limit()) : BenchJson(nullptr);
  object["resources"] = row.resources;
  object["reproduce"] = row.reproduce;
  return object;
}

std::string percent_text(const std::optional<double>& part) {
  if (!part) return "-";
  char text[16];
  std::snprintf(text, sizeof text, *part < 0.1 ? "%.1f %%" : "%.0f %%", 100 * *part);
  return text;
}

/// "12.3 [12.1, 12.6] us"
std::string timing_text(const std::optional<BenchTiming>& timing) {
  if (!timing) return "-";
  const double median = timing->median_us;
  const auto& [unit, scale] = median < 1e3   ? std::pair{"us", 1.0}
                              : median < 1e6 ? std::pair{"ms", 1e3}
                                             : std::pair{"s", 1e6};
  char text[96];
  std::snprintf(text, sizeof text, "%.4g [%.4g, %.4g] %s", median / scale, timing->q1_us / scale,
                timing->q3_us / scale, unit);
  return text;
}

std::string minimum_text(const std::optional<BenchTiming>& timing) {
  return timing ? duration(timing->min_us) : "-";
}

std::string per_time(const BenchRow& row, double amount, const char* unit) {
  return row.hot && amount > 0 ? rate_text(amount / row.hot->median_us, unit) : "-";
}

/// "radix64 lanes=512": with what may be tuned of it, as it ran.
std::string kernel_text(const BenchRow& row) {
  if (row.kernel.empty()) return "-";
  return row.ran.empty() ? row.kernel : row.kernel + " " + optimized::configuration_text(row.ran);
}

std::vector<std::vector<std::string>> cells(const BenchReport& report) {
  std::vector<std::vector<std::string>> table = {{"operation", "problem", "kernel", "hot [q1, q3]",
                                                  "min", "cold [q1, q3]", "bytes", "flops",
                                                  "of limit", "result"}};
  for (const BenchRow& row : report.rows)
    table.push_back({row.operation, dims_text(row.problem), kernel_text(row),
                     timing_text(row.hot) + (row.graph ? "*" : ""), minimum_text(row.hot),
                     timing_text(row.cold), per_time(row, row.work.bytes, "B/s"),
                     per_time(row, row.work.flops, "FLOP/s"), percent_text(row.of_limit()),
                     std::string(name(row.verdict))});
  return table;
}

std::vector<std::string> bench_notes(const BenchReport& report) {
  const auto any = [&](const auto& what) {
    return std::any_of(report.rows.begin(), report.rows.end(), what);
  };
  const auto foreign = [](const BenchRow& row) { return !row.library.empty(); };
  const bool on_host = report.device == "host";
  std::vector<std::string> lines;
  if (on_host &&
      (report.rows.empty() || !std::all_of(report.rows.begin(), report.rows.end(), foreign)))
    lines.emplace_back(kHostNote);
  if (any(foreign))
    lines.emplace_back(
        std::string("LIB.so:NAME is a foreign kernel (--kernel-lib), gated as ours") +
        (on_host ? "; its times are of its own code on this CPU" : ""));
  if (any([](const BenchRow& row) { return row.graph; }))
    lines.emplace_back("* below 400 us: replay of a graph of many launches");
  return lines;
}

/// What a row has beside its line.
std::string row_details(const BenchRow& row, bool explain) {
  std::string text;
  const auto add = [&](const std::string& line) { text += "    " + line + "\n"; };
  if (row.reference && row.hot && row.rows > 0)
    add("rows/s: reference " +
        rate_text(static_cast<double>(row.rows) / row.reference->median_us, "") + ", kernel " +
        rate_text(static_cast<double>(row.rows) / row.hot->median_us, "") + ", ratio " +
        short_number(row.reference->median_us / row.hot->median_us));
  else if (row.reference && row.hot)
    add("bytes/s: reference " + rate_text(row.work.bytes / row.reference->median_us, "B/s") +
        ", kernel " + rate_text(row.work.bytes / row.hot->median_us, "B/s") + ", ratio " +
        short_number(row.reference->median_us / row.hot->median_us));
  if (!row.reason.empty()) add(std::string(name(row.verdict)) + ": " + row.reason);
  if (row.verdict != Verdict::pass) add("reproduce: " + row.reproduce);
  if (!explain) return text;
  add("gate: " + row.gate);
  add("bytes: " + row.work.bytes_formula);
  add("flops: " + row.work.flops_formula);
  if (row.limit)
    add("limit: " + row.limit->name + " " +
        rate_text(row.limit->rate * (row.limit->compute ? 1e6 : 1e3),
                  row.limit->compute ? "FLOP/s" : "B/s") +
        ": " + duration(row.limit->time_us));
  if (row.cold)
    add("cold: " + std::to_string(row.cold->copies) +
        (row.cold->copies == 1 ? " copy" : " copies") + " of all tensors in turn, " +
        plural(static_cast<std::int64_t>(row.cold->samples.size()), "sample") + " of " +
        std::to_string(row.cold->launches) + (row.cold->launches == 1 ? " launch" : " launches"));
  for (const auto& [what, amount] : row.resources)
    text += (what == row.resources.begin()->first ? "    code object: " : ", ") + what + " " +
            std::to_string(amount);
  return text + (row.resources.empty() ? "" : "\n");
}

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text)
    quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_number(const std::optional<double>& value) {
  if (!value) return "";
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", *value);
  return text;
}

std::string conclusion(const BenchReport& report) {
  std::map<std::string, std::int64_t> counts;
  for (const BenchRow& row : report.rows)
    ++counts[std::string(name(row.verdict))];
  std::string text = plural(static_cast<std::int64_t>(report.rows.size()), "row");
  for (const auto& [verdict, count] : counts)
    text += ", " + std::to_string(count) + " " + verdict;
  return text + (report.partial ? ", interrupted" : "");
}

std::string bench_heading(const BenchReport& report) {
  return "dsakit " + report.environment.version + " bench on " + report.environment.device;
}

} // namespace

BenchTiming timing_of(std::vector<double> samples) {
  BenchTiming timing;
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  timing.median_us = quantile(sorted, 0.5);
  timing.q1_us = quantile(sorted, 0.25);
  timing.q3_us = quantile(sorted, 0.75);
  timing.min_us = sorted.empty() ? 0 : sorted.front();
  timing.samples = std::move(samples);
  return timing;
}

nlohmann::ordered_json timing_json(const BenchTiming& timing) {
  nlohmann::ordered_json object;
  object["median_us"] = timing.median_us;
  object["q1_us"] = timing.q1_us;
  object["q3_us"] = timing.q3_us;
  object["min_us"] = timing.min_us;
  object["launches"] = timing.launches;
  object["copies"] = timing.copies;
  object["samples"] = timing.samples;
  return object;
}

std::string dims_text(const BenchDims& dims) {
  std::string text;
  for (const auto& [name, value] : dims)
    text += (text.empty() ? "" : " ") + name + "=" + value;
  return text;
}

std::string rate_text(double per_us, const char* unit) {
  double rate = per_us * 1e6;
  const char* prefixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t at = 0;
  for (; rate >= 1000 && at + 1 < std::size(prefixes); ++at)
    rate /= 1000;
  char text[64];
  std::snprintf(text, sizeof text, "%.3g %s%s", rate, prefixes[at], unit);
  std::string result = text;
  if (result.ends_with(' ')) result.pop_back();
  return result;
}

std::string to_json(const BenchReport& report) {
  BenchJson document;
  document["schema"] = kBenchSchema;
  document["device"] = report.device;
  document["host_arch"] =
      report.host_arch.empty() ? BenchJson(nullptr) : BenchJson(report.host_arch);
  document["environment"] = environment_json(report.environment);
  document["notes"] = bench_notes(report);
  document["partial"] = report.partial;
  document["rows"] = BenchJson::array();
  for (const BenchRow& row : report.rows)
    document["rows"].push_back(row_json(report, row));
  document["exit_code"] = report.exit_code();
  return document.dump(2, ' ', false, BenchJson::error_handler_t::replace) + "\n";
}

std::string to_csv(const BenchReport& report) {
  std::string text =
      "operation,problem,device,kernel,configuration,ran,verdict,graph,hot_median_us,hot_q1_us,"
      "hot_q3_us,hot_min_us,cold_median_us,reference_median_us,bytes,flops,limit,"
      "of_limit,code_hash\n";
  const auto median = [](const std::optional<BenchTiming>& timing, double BenchTiming::* member) {
    return csv_number(timing ? std::optional(*timing.*member) : std::nullopt);
  };
  for (const BenchRow& row : report.rows) {
    const std::vector<std::string> line = {csv_text(row.operation),
                                           csv_text(dims_text(row.problem)),
                                           report.device,
                                           csv_text(row.kernel),
                                           csv_text(dims_text(row.configuration)),
                                           csv_text(optimized::configuration_text(row.ran)),
                                           std::string(name(row.verdict)),
                                           row.graph ? "1" : "0",
                                           median(row.hot, &BenchTiming::median_us),
                                           median(row.hot, &BenchTiming::q1_us),
                                           median(row.hot, &BenchTiming::q3_us),
                                           median(row.hot, &BenchTiming::min_us),
                                           median(row.cold, &BenchTiming::median_us),
                                           median(row.reference, &BenchTiming::median_us),
                                           csv_number(row.work.bytes),
                                           csv_number(row.work.flops),
                                           row.limit ? csv_text(row.limit->name) : "",
                                           csv_number(row.of_limit()),
                                           row.code_hash};
    for (std::size_t i = 0; i < line.size(); ++i)
      text += (i ? "," : "") + line[i];
    text += "\n";
  }
  return text;
}

std::string to_text(const BenchReport& report, const BenchText& options) {
  std::string text = bench_heading(report) + "\n";
  for (const std::string& note : bench_notes(report))
    text += note + "\n";
  // An operation and its kernel are said once, above their rows; details stand under their row.
  std::vector<std::vector<std::string>> lines = cells(report);
  for (auto& line : lines)
    line.erase(line.begin() + 2), line.erase(line.begin());
  const std::string body = table(lines, "  ");
  std::string above;
  std::size_t at = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t end = body.find('\n', at);
    if (i > 0) {
      const BenchRow& row = report.rows[i - 1];
      const std::string title =
          row.operation + (row.kernel.empty() ? "" : " (" + kernel_text(row) + ")") + "\n";
      if (title != above) text += title;
      above = title;
    }
    text += body.substr(at, end - at) + "\n";
    if (i > 0) text += row_details(report.rows[i - 1], options.explain);
    at = end + 1;
  }
  return text + conclusion(report) + "\n";
}

std::string to_markdown(const BenchReport& report) {
  std::string text = "### " + bench_heading(report) + "\n\n";
  for (const std::string& note : bench_notes(report))
    text += note + "\n\n";
  bool first = true;
  for (const auto& line : cells(report)) {
    text += "|";
    for (const std::string& cell : line)
      text += " " + cell + " |";
    text += "\n";
    if (first) {
      text += "|";
      for (std::size_t i = 0; i < line.size(); ++i)
        text += "---|";
      text += "\n";
    }
    first = false;
  }
  text += "\n";
  for (const BenchRow& row : report.rows)
    if (!row.reason.empty())
      text += "- " + row.operation + " " + dims_text(row.problem) + ": " +
              std::string(name(row.verdict)) + ": " + row.reason + "\n";
  return text + "\n" + conclusion(report) + "\n";
}

} // namespace dsakit::harness
