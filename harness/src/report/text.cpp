#include <algorithm>
#include <set>
#include <tuple>

#include "../replay/names.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/rules.hpp"
#include "format.hpp"
#include "printable.hpp"

namespace dsakit::harness {
namespace {

/// A failing run is told in few lines, so that place and hint are on the first screen.
constexpr std::size_t kContractLines = 3;
constexpr std::size_t kTableLines = 4;
constexpr std::size_t kTensorLines = 20; ///< of a file, where they pass
constexpr std::size_t kShown = 8;        ///< files, other operations, waived lines

class TextReport {
public:
  TextReport(const Report& report, const TextOptions& options)
      : report_(report), options_(options), brief_(failed(report.verdict()) && !options.verbose) {}

  std::string print() {
    header();
    if (report_.files.size() == 1 || options_.verbose)
      for (const ReportFile& file : report_.files)
        whole_file(file);
    else
      summary_of_files();
    first_failure();
    waived();
    for (const std::string& warning : report_.warnings)
      text_ += wrapped("warning: ", words(warning));
    verdict();
    return std::move(text_);
  }

private:
  std::string painted(Verdict verdict, const std::string& text) const {
    if (!options_.colour || verdict == Verdict::skipped) return text;
    return (failed(verdict) ? "\033[31m" : "\033[32m") + text + "\033[0m";
  }

  std::string result(Verdict verdict) const {
    if (options_.colour && verdict == Verdict::waived) return "\033[33mwaived\033[0m";
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

  /// What an override replaced comes first: it may be cut in a failing run.
  void contract(const ReportFile& file) {
    std::vector<std::string> replaced;
    std::vector<std::string> others;
    for (const auto& [key, value] : file.contract) {
      const auto recorded = file.contract_recorded.find(key);
      if (recorded == file.contract_recorded.end()) {
        others.push_back(key + "=" + value);
        continue;
      }
      replaced.push_back(key + "=" + value);
      replaced.push_back("(recorded: " + recorded->second + ")");
    }
    replaced.insert(replaced.end(), others.begin(), others.end());
    if (replaced.empty()) return;
    const std::string text = wrapped("contract ", replaced);
    std::size_t end = 0;
    for (std::size_t line = 0; line < kContractLines && end != std::string::npos; ++line)
      end = text.find('\n', end + 1);
    if (brief_ && end != std::string::npos && end + 1 < text.size())
      text_ += text.substr(0, end) + "\n         ... (-v: all)\n";
    else
      text_ += text;
  }

  void whole_file(const ReportFile& file) {
    text_ += file.file + "\n";
    if (file.verdict == Verdict::error || file.verdict == Verdict::skipped)
      text_ += wrapped(std::string(name(file.verdict)) + ": ", words(file.reason));
    contract(file);

    const std::vector<const ReportLine*> lines = lines_of(file.file);
    // A model has hundreds of tensors.
    const bool brief = brief_ || (!options_.verbose && lines.size() > kTensorLines &&
                                  lines.front()->operation == kTensors);
    bool cut = false;
    std::vector<std::vector<std::string>> rows;
    std::vector<std::string> left_out;
    std::set<std::string> reference_only;
    rows.push_back({"tensor", "compared", "gate", "used", "wrong", "abs", "rel", "worst at",
                    "ulp max,p99", "result"});
    std::string heading;
    std::vector<std::pair<std::size_t, std::string>> headings; // before which row
    for (const ReportLine* line : lines) {
      if (line->verdict == Verdict::skipped) {
        if (report_.verb == "replay" && line->tensor.empty() && !is_unknown(line->operation))
          reference_only.insert(line->operation + ", step " + std::to_string(line->step) +
                                ": skipped: " + line->reason);
        else if (line->tensor.empty() || line->operation == kTensors)
          left_out.push_back(line->tensor.empty() ? line->operation : line->tensor);
        else
          reference_only.insert(line->operation + ", step " + std::to_string(line->step) + ": " +
                                line->reason);
        continue;
      }
      if (brief && (!failed(line->verdict) || rows.size() + headings.size() > kTableLines)) {
        cut |= failed(line->verdict);
        continue;
      }
      const std::string operation = operation_heading(*line, lines);
      if (operation != heading) headings.emplace_back(rows.size(), operation);
      heading = operation;
      rows.push_back(
          {line->tensor.empty() ? "-" : line->tensor, line->subject + "/" + line->against,
           line->gate.empty() ? "-" : line->gate, short_number(line->used), count(line->mismatches),
           short_number(line->worst_abs), short_number(line->worst_rel), coordinate(line->worst_at),
           ulps(*line),
           result(line->verdict) + (line->moved ? ", " + count(line->moved) + " moved" : "")});
    }
    if (rows.size() > 1) insert_headings(table(rows, "  "), headings);
    const std::int64_t passed = report_.summary(file.file).passed;
    if (brief && (cut || passed > 0))
      text_ += "  ... " + std::to_string(passed) + " passed" + (cut ? ", more failed" : "") +
               " (-v: all lines)\n";
    for (const std::string& operation : reference_only)
      text_ += wrapped("", words(operation));
    if (!left_out.empty()) {
      std::sort(left_out.begin(), left_out.end());
      left_out.erase(std::unique(left_out.begin(), left_out.end()), left_out.end());
      for (std::size_t i = 0; i + 1 < left_out.size(); ++i)
        left_out[i] += ",";
      text_ += wrapped(report_.verb == "replay"
                           ? "skipped (not replayed by this version): "
                           : "skipped (on one side only, or not compared by this version): ",
                       left_out);
    }
  }

  static bool is_unknown(const std::string& operation) {
    return operation != kLayer && !find_adapter(operation);
  }

  static std::string ulps(const ReportLine& line) {
    if (!line.ulp_max) return "-";
    return count(*line.ulp_max) + (line.ulp_p99 ? "," + count(*line.ulp_p99) : "");
  }

  /// "index_logits_decode, step 0: mfma_16x16, 15 workgroups, 1.20 ms"
  std::string operation_heading(const ReportLine& of, const std::vector<const ReportLine*>& lines) {
    if (of.operation == kTensors) return of.operation;
    std::string text = of.operation + ", step " + std::to_string(of.step);
    for (const ReportLine* line : lines) {
      if (line->operation != of.operation || line->step != of.step || line->kernel.empty())
        continue;
      text += ": " + line->kernel;
      if (!line->configuration.empty())
        text += " " + optimized::configuration_text(line->configuration);
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
    const bool all = !brief_ || report_.files.size() <= kShown;
    for (const ReportFile& file : report_.files) {
      if (!all && (!failed(file.verdict) || rows.size() > kShown)) continue;
      const Summary summary = report_.summary(file.file);
      rows.push_back({file.file.substr(folder.size()), std::to_string(summary.operations),
                      std::to_string(summary.comparisons), count(summary.mismatches),
                      short_number(summary.worst_used),
                      summary.time_us > 0 ? duration(summary.time_us) : "-", result(file.verdict)});
    }
    text_ += table(rows, "");
    if (!all) text_ += "... (-v: all files)\n";
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
    text_ += '\n' + result(line->verdict) + " " + title(*line);
    if (report_.files.size() > 1) text_ += ", " + line->file;
    text_ += "\n" + details(*line, options_.verbose);
    others(*line);
  }

  /// The other operations that did not pass.
  void others(const ReportLine& first) {
    // Of the tensors of no operation each is told.
    const auto key = [](const ReportLine& line) {
      return std::tuple(line.file, line.step, line.operation,
                        line.operation == kTensors ? line.tensor : std::string());
    };
    std::set told = {key(first)};
    std::vector<std::string> lines;
    for (const ReportLine& line : report_.lines)
      if (failed(line.verdict) && told.insert(key(line)).second)
        lines.push_back(result(line.verdict) + " too: " +
                        (line.operation == kTensors
                             ? "tensor " + line.tensor
                             : line.operation + " step " + std::to_string(line.step)) +
                        (report_.files.size() > 1 ? ", " + line.file : std::string()));
    shown(lines);
  }

  /// At most kShown of them.
  void shown(const std::vector<std::string>& lines) {
    for (std::size_t i = 0; i < std::min(lines.size(), kShown); ++i)
      text_ += lines[i] + "\n";
    if (lines.size() > kShown) text_ += "... and more (--format json: all)\n";
  }

  void waived() {
    std::vector<std::string> lines;
    for (const ReportLine& line : report_.lines)
      if (line.verdict == Verdict::waived) {
        std::string text = wrapped(result(line.verdict) + " " + title(line) +
                                       (report_.files.size() > 1 ? ", " + line.file : "") + ": ",
                                   words(line.reason));
        text.pop_back();
        lines.push_back(std::move(text));
      }
    shown(lines);
  }

  void verdict() {
    const Summary summary = report_.summary();
    text_ += "verdict: " + result(report_.verdict()) + " (" +
             plural(summary.comparisons, "comparison") + ", " + std::to_string(summary.not_passed) +
             " not passed, " +
             (summary.waived > 0 ? std::to_string(summary.waived) + " of them waived, " : "") +
             plural(static_cast<std::int64_t>(report_.files.size()), "file");
    if (report_.files_left_out > 0)
      text_ += ", " + std::to_string(report_.files_left_out) +
               (report_.partial ? " left out" : " left out after the first failure");
    text_ += ")\n";
    if (report_.partial) text_ += "PARTIAL: interrupted; the verdict is of what was compared\n";
  }

  const Report& report_;
  const TextOptions& options_;
  const bool brief_; ///< a failing run, and not all was asked for
  std::string text_;
};

} // namespace

std::string to_text(const Report& report, const TextOptions& options) {
  const Report shown = printable(report);
  return TextReport(shown, options).print();
}

} // namespace dsakit::harness
