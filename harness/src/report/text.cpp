#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <tuple>

#include "dsakit/harness/report.hpp"

namespace dsakit::harness {
namespace {

constexpr std::size_t kScreenWidth = 100;

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string count(std::int64_t n) {
  return n < 10'000'000 ? std::to_string(n) : format("%.1e", static_cast<double>(n));
}

std::string short_number(const std::optional<double>& value) {
  if (!value) return "-";
  return *value == 0 ? "0" : format("%.2g", *value);
}

std::string duration(double us) {
  return us < 1e3   ? format("%.1f us", us)
         : us < 1e6 ? format("%.2f ms", us / 1e3)
                    : format("%.2f s", us / 1e6);
}

std::string coordinate(const std::vector<std::int64_t>& at) {
  if (at.empty()) return "-";
  std::string text = "[";
  for (std::size_t axis = 0; axis < at.size(); ++axis)
    text += (axis ? ", " : "") + std::to_string(at[axis]);
  return text + "]";
}

std::string sample(const Sample& sample) {
  return format("%.9g", sample.value) + " (" + sample.hex + ")";
}

std::string plural(std::int64_t n, const char* noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

/// Words after `label`, wrapped, continued under the first word.
std::string wrapped(const std::string& label, const std::vector<std::string>& words) {
  std::string text = label;
  std::size_t column = label.size();
  for (const std::string& word : words) {
    if (column > label.size() && column + 1 + word.size() > kScreenWidth) {
      text += '\n';
      text.append(label.size(), ' ');
      column = label.size();
    }
    if (column > label.size()) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  return text + "\n";
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> result(1);
  for (const char c : text)
    if (c == ' ')
      result.emplace_back();
    else
      result.back() += c;
  return result;
}

/// Left-aligned columns as wide as their widest cell.
std::string table(const std::vector<std::vector<std::string>>& rows, const std::string& indent) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t column = 0; column < row.size(); ++column) {
      widths.resize(std::max(widths.size(), column + 1));
      widths[column] = std::max(widths[column], row[column].size());
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line = indent;
    for (std::size_t column = 0; column < row.size(); ++column)
      line += row[column] + (column + 1 < row.size()
                                 ? std::string(widths[column] - row[column].size() + 1, ' ')
                                 : "");
    text += line + "\n";
  }
  return text;
}

class TextReport {
public:
  TextReport(const Report& report, const TextOptions& options)
      : report_(report), options_(options) {}

  std::string print() {
    header();
    if (report_.files.size() == 1 || options_.verbose)
      for (const ReportFile& file : report_.files)
        whole_file(file);
    else
      summary_of_files();
    first_failure();
    for (const std::string& warning : report_.warnings)
      text_ += wrapped("warning: ", words(warning));
    verdict();
    return std::move(text_);
  }

private:
  static bool failed(Verdict verdict) {
    return verdict != Verdict::pass && verdict != Verdict::skipped;
  }

  std::string painted(Verdict verdict, const std::string& text) const {
    if (!options_.colour || verdict == Verdict::skipped) return text;
    return (failed(verdict) ? "\033[31m" : "\033[32m") + text + "\033[0m";
  }

  std::string result(Verdict verdict) const {
    return painted(verdict, verdict == Verdict::fail ? "FAIL" : std::string(name(verdict)));
  }

  std::vector<const ReportLine*> lines_of(const std::string& file) const {
    std::vector<const ReportLine*> lines;
    for (const ReportLine& line : report_.lines)
      if (line.file == file) lines.push_back(&line);
    return lines;
  }

  void header() {
    text_ += "dsakit " + report_.environment.version + " " + report_.verb;
    if (!report_.against.empty()) text_ += " against " + report_.against;
    if (!report_.device.empty()) text_ += " on " + report_.environment.device;
    if (report_.device == "host") text_ += ": a model of AMD lanes on this CPU, no AMD hardware";
    text_ += "\n";
  }

  void contract(const ReportFile& file) {
    std::vector<std::string> items;
    for (const auto& [key, value] : file.contract) {
      const auto recorded = file.contract_recorded.find(key);
      items.push_back(key + "=" + value);
      if (recorded != file.contract_recorded.end())
        items.push_back("(recorded: " + recorded->second + ")");
    }
    if (!items.empty()) text_ += wrapped("contract ", items);
  }

  void whole_file(const ReportFile& file) {
    text_ += file.file + "\n";
    if (file.verdict == Verdict::error || file.verdict == Verdict::skipped)
      text_ += wrapped(std::string(name(file.verdict)) + ": ", words(file.reason));
    contract(file);

    const std::vector<const ReportLine*> lines = lines_of(file.file);
    std::vector<std::vector<std::string>> rows;
    std::vector<std::string> left_out;
    std::set<std::string> reference_only;
    rows.push_back(
        {"tensor", "compared", "gate", "used", "wrong", "abs", "rel", "worst at", "ulp", "result"});
    std::string heading;
    std::vector<std::pair<std::size_t, std::string>> headings; // before which row
    for (const ReportLine* line : lines) {
      if (line->verdict == Verdict::skipped) {
        if (line->tensor.empty())
          left_out.push_back(line->operation);
        else
          reference_only.insert(line->operation + ", step " + std::to_string(line->step) + ": " +
                                line->reason);
        continue;
      }
      const std::string operation = operation_heading(*line, lines);
      if (operation != heading) headings.emplace_back(rows.size(), operation);
      heading = operation;
      rows.push_back(
          {line->tensor.empty() ? "-" : line->tensor, line->subject + "/" + line->against,
           line->gate.empty() ? "-" : line->gate, short_number(line->used), count(line->mismatches),
           short_number(line->worst_abs), short_number(line->worst_rel), coordinate(line->worst_at),
           line->ulp_max ? count(*line->ulp_max) : "-",
           result(line->verdict) + (line->moved ? ", " + count(line->moved) + " moved" : "")});
    }
    if (rows.size() > 1) insert_headings(table(rows, "  "), headings);
    for (const std::string& operation : reference_only)
      text_ += operation + "\n";
    if (!left_out.empty()) {
      std::sort(left_out.begin(), left_out.end());
      left_out.erase(std::unique(left_out.begin(), left_out.end()), left_out.end());
      for (std::size_t i = 0; i + 1 < left_out.size(); ++i)
        left_out[i] += ",";
      text_ += wrapped("skipped (not replayed by this version): ", left_out);
    }
  }

  /// "index_logits_decode, step 0: mfma_16x16, 15 workgroups, 1.20 ms"
  std::string operation_heading(const ReportLine& of, const std::vector<const ReportLine*>& lines) {
    std::string text = of.operation + ", step " + std::to_string(of.step);
    for (const ReportLine* line : lines) {
      if (line->operation != of.operation || line->step != of.step || line->kernel.empty())
        continue;
      text += ": " + line->kernel;
      if (line->workgroups.value_or(0)) text += ", " + plural(*line->workgroups, "workgroup");
      if (line->time_us) text += ", " + duration(*line->time_us);
      if (options_.verbose)
        for (const std::string& other : line->other_kernels)
          text += "\n  not taken: " + other;
      break;
    }
    return text;
  }

  void insert_headings(const std::string& rows,
                       const std::vector<std::pair<std::size_t, std::string>>& headings) {
    std::size_t row = 0;
    std::size_t begin = 0;
    for (std::size_t end; (end = rows.find('\n', begin)) != std::string::npos; begin = end + 1) {
      for (const auto& [before, heading] : headings)
        if (before == row) text_ += heading + "\n";
      text_ += rows.substr(begin, end - begin + 1);
      ++row;
    }
  }

  void summary_of_files() {
    const std::string folder = common_folder();
    if (!folder.empty()) text_ += "folder " + folder + "\n";
    std::vector<std::vector<std::string>> rows = {
        {"file", "operations", "compared", "wrong", "worst used", "time", "result"}};
    for (const ReportFile& file : report_.files) {
      const Summary summary = report_.summary(file.file);
      rows.push_back({file.file.substr(folder.size()), std::to_string(summary.operations),
                      std::to_string(summary.comparisons), count(summary.mismatches),
                      short_number(summary.worst_used),
                      summary.time_us > 0 ? duration(summary.time_us) : "-", result(file.verdict)});
    }
    text_ += table(rows, "");
    for (const ReportFile& file : report_.files)
      if (file.bad_input) text_ += wrapped("error: ", words(file.reason));
  }

  /// "golden/data/" where every file lies right there.
  std::string common_folder() const {
    const std::string& first = report_.files[0].file;
    const std::string folder = first.substr(0, first.rfind('/') + 1);
    for (const ReportFile& file : report_.files)
      if (file.file.substr(0, file.file.rfind('/') + 1) != folder) return {};
    return folder;
  }

  void first_failure() {
    const auto line = std::find_if(report_.lines.begin(), report_.lines.end(),
                                   [](const ReportLine& l) { return failed(l.verdict); });
    if (line == report_.lines.end()) return;
    text_ += '\n';
    text_ += result(line->verdict) + " " + line->operation + " step " + std::to_string(line->step);
    if (!line->tensor.empty()) text_ += " " + line->tensor;
    text_ += ": " + line->subject + " against " + line->against;
    if (report_.files.size() > 1) text_ += ", " + line->file;
    text_ += "\n";
    if (line->mismatches > 0)
      text_ += "  wrong: " + std::to_string(line->mismatches) + " of " +
               std::to_string(line->elements) + " under gate " + line->gate + "\n";
    if (!line->reason.empty()) text_ += wrapped("  reason: ", words(line->reason));
    if (line->got && line->want)
      text_ += "  first " + coordinate(line->first_at) + ": got " + sample(*line->got) + ", want " +
               sample(*line->want) + "\n";
    if (!line->worst_at.empty())
      text_ += "  worst " + coordinate(line->worst_at) + ": " + short_number(line->used) +
               " of the gate; anywhere at most abs " + short_number(line->worst_abs) + ", rel " +
               short_number(line->worst_rel) + "\n";
    if (!line->tightest_gate.empty())
      text_ += "  tightest passing gate: " + line->tightest_gate + "\n";
    if (!line->hint.empty()) text_ += wrapped("  hint: ", words(line->hint));
    // One line, to be copied.
    if (!line->reproduce.empty()) text_ += "  reproduce: " + line->reproduce + "\n";
    others(*line);
  }

  /// The other operations that did not pass.
  void others(const ReportLine& first) {
    std::set<std::tuple<std::string, std::int64_t, std::string>> told = {
        {first.file, first.step, first.operation}};
    std::vector<std::string> lines;
    for (const ReportLine& line : report_.lines)
      if (failed(line.verdict) && told.emplace(line.file, line.step, line.operation).second)
        lines.push_back(result(line.verdict) + " too: " + line.operation + " step " +
                        std::to_string(line.step) +
                        (report_.files.size() > 1 ? ", " + line.file : std::string()));
    constexpr std::size_t kShown = 8;
    for (std::size_t i = 0; i < std::min(lines.size(), kShown); ++i)
      text_ += lines[i] + "\n";
    if (lines.size() > kShown)
      text_ += "... and " + plural(static_cast<std::int64_t>(lines.size() - kShown), "operation") +
               " more\n";
  }

  void verdict() {
    const Summary summary = report_.summary();
    text_ += "verdict: " + result(report_.verdict()) + " (" +
             plural(summary.comparisons, "comparison") + ", " + std::to_string(summary.not_passed) +
             " not passed, " + plural(static_cast<std::int64_t>(report_.files.size()), "file");
    if (report_.files_left_out > 0)
      text_ += ", " + std::to_string(report_.files_left_out) + " left out after the first failure";
    text_ += ")\n";
  }

  const Report& report_;
  const TextOptions& options_;
  std::string text_;
};

} // namespace

std::string to_text(const Report& report, const TextOptions& options) {
  return TextReport(report, options).print();
}

} // namespace dsakit::harness
