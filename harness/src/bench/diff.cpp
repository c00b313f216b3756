#include "dsakit/harness/bench_diff.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <set>

#include "../import/json.hpp"
#include "../recording/text.hpp"
#include "dsakit/harness/exit_codes.hpp"
#include "report_json.hpp"
#include "statistics.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;

double median_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return quantile(samples, 0.5);
}

/// What names a row: everything that was asked for, and nothing of what came out.
std::string row_key(const json& row) {
  std::string key = row["operation"].get<std::string>();
  for (const char* part : {"problem", "configuration"})
    if (const auto dims = row.find(part); dims != row.end() && dims->is_object())
      for (const auto& [name, value] : dims->items())
        key += " " + name + "=" + (value.is_string() ? value.get<std::string>() : value.dump());
  return key + " on " + row["device"].get<std::string>();
}

/// The document, whose rows have what a comparison reads.
Result<json> read_benchmark(const std::string& name, const std::string& text) {
  auto document = parse_json(name, text, 12);
  DSAKIT_TRY(document);
  if (!document->is_object() || document->value("schema", json()) != kBenchSchema)
    return bad_input(name + ": schema: found something else, want \"" + std::string(kBenchSchema) +
                     "\"");
  if (document->value("partial", json()) == json(true))
    return bad_input(name + ": partial: found a benchmark that was interrupted, want a whole one");
  const auto rows = document->find("rows");
  if (rows == document->end() || !rows->is_array())
    return bad_input(name + ": rows: found none, want a list");
  std::set<std::string> keys;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    const json& row = (*rows)[i];
    const std::string where = name + ": rows[" + std::to_string(i) + "]";
    if (!row.is_object()) return bad_input(where + ": found no object, want one");
    for (const char* text_key : {"operation", "device", "verdict"})
      if (const auto found = row.find(text_key); found == row.end() || !found->is_string())
        return bad_input(where + ": " + text_key + ": found none, want a text");
    for (const char* what : {"hot", "cold"}) {
      const auto timing = row.find(what);
      if (timing == row.end() || timing->is_null()) {
        if (what == std::string("hot") && row["verdict"] == "pass")
          return bad_input(where + ": hot: found none in a row that passed, want its times");
        continue;
      }
      const auto samples = timing->is_object() ? timing->find("samples") : timing->end();
      const bool numbers = timing->is_object() && samples != timing->end() && samples->is_array() &&
                           !samples->empty() &&
                           std::all_of(samples->begin(), samples->end(), [](const json& one) {
                             return one.is_number() && one.get<double>() > 0;
                           });
      if (!numbers)
        return bad_input(where + ": " + what + ".samples: found none, want numbers > 0");
    }
    if (!keys.insert(row_key(row)).second)
      return bad_input(where + ": found " + in_quotes(row_key(row)) + " twice, want once");
  }
  return document;
}

std::map<std::string, const json*> rows_by_key(const json& document) {
  std::map<std::string, const json*> rows;
  for (const json& row : document["rows"])
    rows[row_key(row)] = &row;
  return rows;
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

DiffSide side_of(const json& row, const char* what) {
  DiffSide side;
  side.kernel = text_of(row, "kernel");
  side.code_hash = text_of(row, "code_hash");
  side.verdict = text_of(row, "verdict");
  if (const auto resources = row.find("resources");
      resources != row.end() && resources->is_object())
    for (const auto& [name, amount] : resources->items())
      if (amount.is_number_integer()) side.resources[name] = amount.get<std::int64_t>();
  if (const auto timing = row.find(what); timing != row.end() && timing->is_object())
    side.samples = (*timing)["samples"].get<std::vector<double>>();
  return side;
}

std::vector<std::string> changed_resources(const DiffSide& base, const DiffSide& now) {
  std::vector<std::string> changed;
  const auto text = [](const std::map<std::string, std::int64_t>& of, const std::string& name) {
    const auto found = of.find(name);
    return found == of.end() ? std::string("?") : std::to_string(found->second);
  };
  std::set<std::string> names;
  for (const DiffSide* side : {&base, &now})
    for (const auto& [name, amount] : side->resources)
      names.insert(name);
  for (const std::string& name : names)
    if (const auto was = text(base.resources, name), is = text(now.resources, name); was != is)
      changed.push_back(name + " " + was + " -> " + is);
  if (base.kernel != now.kernel) changed.push_back("kernel " + base.kernel + " -> " + now.kernel);
  return changed;
}

std::string device_of(const json& document) {
  const auto environment = document.find("environment");
  return environment != document.end() && environment->is_object() ? text_of(*environment, "device")
                                                                   : "";
}

void compare_rows(BenchDiff& diff, const std::string& key, const json& base, const json& now) {
  if (text_of(now, "verdict") != "pass" && text_of(base, "verdict") == "pass")
    diff.failures.push_back(key + ": " + text_of(now, "verdict") + ": " + text_of(now, "reason"));
  for (const char* what : {"hot", "cold"}) {
    DiffRow row;
    row.key = key;
    row.what = what;
    row.base = side_of(base, what);
    row.now = side_of(now, what);
    if (row.base.samples.empty() || row.now.samples.empty()) continue;
    row.change = judge_change(row.base.samples, row.now.samples, diff.min_effect, &row);
    row.changed = changed_resources(row.base, row.now);
    diff.rows.push_back(std::move(row));
  }
}

/// SLOWER first, the slowest before all; then AMBIGUOUS; the rest as it came.
void order_rows(std::vector<DiffRow>& rows) {
  std::vector<DiffRow> slower, ambiguous, rest;
  for (DiffRow& row : rows)
    (row.change == BenchChange::slower      ? slower
     : row.change == BenchChange::ambiguous ? ambiguous
                                            : rest)
        .push_back(std::move(row));
  std::sort(slower.begin(), slower.end(),
            [](const DiffRow& a, const DiffRow& b) { return a.ratio > b.ratio; });
  rows = std::move(slower);
  for (auto* others : {&ambiguous, &rest})
    rows.insert(rows.end(), std::make_move_iterator(others->begin()),
                std::make_move_iterator(others->end()));
}

} // namespace

std::string_view name(BenchChange change) {
  constexpr std::string_view names[] = {"SAME", "FASTER", "SLOWER", "AMBIGUOUS"};
  return names[static_cast<std::size_t>(change)];
}

BenchChange judge_change(const std::vector<double>& base, const std::vector<double>& now,
                         double min_effect, DiffRow* row) {
  const double ratio = median_of(now) / median_of(base);
  const auto of_base = median_interval(base, kDiffConfidence);
  const auto of_now = median_interval(now, kDiffConfidence);
  if (row) row->ratio = ratio;
  if (!of_base || !of_now) {
    if (row)
      row->note = std::to_string(std::min(base.size(), now.size())) + " samples, want at least 8";
    return BenchChange::ambiguous;
  }
  const double low = of_now->low / of_base->high, high = of_now->high / of_base->low;
  if (row) row->low = low, row->high = high;
  const double most = 1 + min_effect;
  if (low > 1 && ratio >= most) return BenchChange::slower;
  if (high < 1 && ratio <= 1 / most) return BenchChange::faster;
  if (low >= 1 / most && high <= most) return BenchChange::same;
  return BenchChange::ambiguous;
}

int BenchDiff::exit_code() const {
  const auto any = [&](BenchChange change) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const DiffRow& row) { return row.change == change; });
  };
  if (!failures.empty() || any(BenchChange::slower)) return kExitMismatch;
  if (rows.empty()) return kExitNothingRan;
  return any(BenchChange::ambiguous) ? kExitInconclusive : kExitPass;
}

Result<BenchDiff> diff_benchmark_texts(const std::string& base_name, const std::string& base,
                                       const std::string& new_name, const std::string& now,
                                       double min_effect) {
  const auto of_base = read_benchmark(base_name, base);
  DSAKIT_TRY(of_base);
  const auto of_new = read_benchmark(new_name, now);
  DSAKIT_TRY(of_new);
  BenchDiff diff;
  diff.base = base_name;
  diff.now = new_name;
  diff.min_effect = min_effect;
  if (device_of(*of_base) != device_of(*of_new))
    diff.warnings.push_back("BASE ran on " + in_quotes(device_of(*of_base)) + ", NEW on " +
                            in_quotes(device_of(*of_new)) + ": times of two devices");
  const auto base_rows = rows_by_key(*of_base), new_rows = rows_by_key(*of_new);
  double logarithms = 0;
  std::int64_t hot = 0;
  for (const json& row : (*of_new)["rows"]) {
    const std::string key = row_key(row);
    const auto found = base_rows.find(key);
    if (found == base_rows.end())
      diff.only_new.push_back(key);
    else
      compare_rows(diff, key, *found->second, row);
  }
  for (const auto& [key, row] : base_rows)
    if (!new_rows.contains(key)) diff.only_base.push_back(key);
  for (const DiffRow& row : diff.rows)
    if (row.what == "hot") {
      logarithms += std::log(row.ratio);
      ++hot;
    }
  if (hot > 0) diff.geometric_mean = std::exp(logarithms / static_cast<double>(hot));
  order_rows(diff.rows);
  return diff;
}

Result<BenchDiff> diff_with_text(const std::string& base_path, const std::string& new_name,
                                 const std::string& now, double min_effect) {
  const auto base = read_text_file(base_path);
  DSAKIT_TRY(base);
  return diff_benchmark_texts(base_path, *base, new_name, now, min_effect);
}

Result<BenchDiff> diff_benchmarks(const std::string& base_path, const std::string& new_path,
                                  double min_effect) {
  const auto now = read_text_file(new_path);
  DSAKIT_TRY(now);
  return diff_with_text(base_path, new_path, *now, min_effect);
}

void keep_repeated(BenchDiff& diff, const BenchDiff& again) {
  diff.rerun = true;
  for (DiffRow& row : diff.rows) {
    if (row.change != BenchChange::slower) continue;
    const auto repeated =
        std::find_if(again.rows.begin(), again.rows.end(), [&](const DiffRow& other) {
          return other.key == row.key && other.what == row.what;
        });
    if (repeated == again.rows.end()) {
      row.note = "SLOWER, and the second run has no such row";
    } else if (repeated->change == BenchChange::slower) {
      char text[48];
      std::snprintf(text, sizeof text, "again: %+.1f %%", 100 * (repeated->ratio - 1));
      row.note = text;
      continue;
    } else {
      row.note = "SLOWER once, " + std::string(name(repeated->change)) + " in the second run";
    }
    row.change = BenchChange::ambiguous;
  }
}

Result<std::string> join_samples(const std::string& name, const std::string& first,
                                 const std::string& second) {
  auto joined = read_benchmark(name, first);
  DSAKIT_TRY(joined);
  const auto other = read_benchmark(name, second);
  DSAKIT_TRY(other);
  const auto others = rows_by_key(*other);
  for (json& row : (*joined)["rows"]) {
    const auto found = others.find(row_key(row));
    if (found == others.end()) continue;
    for (const char* what : {"hot", "cold"}) {
      const DiffSide more = side_of(*found->second, what);
      if (more.samples.empty() || !row.contains(what) || !row[what].is_object()) continue;
      for (const double sample : more.samples)
        row[what]["samples"].push_back(sample);
    }
    if (text_of(*found->second, "verdict") != "pass") {
      row["verdict"] = text_of(*found->second, "verdict");
      row["reason"] = text_of(*found->second, "reason");
    }
  }
  return joined->dump();
}

} // namespace dsakit::harness
