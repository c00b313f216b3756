#include "dsakit/harness/report.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <tuple>

#include "dsakit/harness/text.hpp"
#include "recording/atomic_file.hpp"

namespace dsakit::harness {
namespace {

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

template <class Includes>
Summary summarise(const std::vector<ReportLine>& lines, Includes includes) {
  Summary summary;
  std::set<std::tuple<std::string, std::int64_t, std::string>> operations;
  std::set<std::tuple<std::string, std::int64_t, std::string>> timed;
  for (const ReportLine& line : lines) {
    if (!includes(line) || line.verdict == Verdict::skipped) continue;
    const auto operation = std::tuple(line.file, line.step, line.operation);
    operations.insert(operation);
    summary.comparisons += !line.gate.empty();
    summary.passed += line.verdict == Verdict::pass;
    summary.not_passed += line.verdict != Verdict::pass;
    summary.waived += line.verdict == Verdict::waived;
    summary.mismatches += line.mismatches;
    if (line.used) summary.worst_used = std::max(summary.worst_used.value_or(0), *line.used);
    // All lines of an operation tell of one launch.
    if (line.time_us && timed.insert(operation).second) summary.time_us += *line.time_us;
  }
  summary.operations = static_cast<std::int64_t>(operations.size());
  return summary;
}

/// As bash, ksh and zsh read it: $'a\x0ab', all of it printable.
std::string ansi_c_word(const std::string& text) {
  std::string word = "$'";
  for (const char c : text)
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 0x7F)
      word += hex_escape(c);
    else if (c == '\'' || c == '\\')
      word += std::string("\\") + c;
    else
      word += c;
  return word + "'";
}

} // namespace

std::string_view name(Verdict verdict) {
  constexpr std::array<std::string_view, 7> names = {"pass",        "fail",  "held",   "waived",
                                                     "unsupported", "error", "skipped"};
  return names[static_cast<std::size_t>(verdict)];
}

double ReportLine::wrong_percent() const {
  return percent(mismatches, elements);
}

double ReportQuantised::scales_wrong_percent() const {
  return percent(scales_wrong, scales);
}

std::vector<UlpBin> ulp_bins(const std::vector<std::int64_t>& histogram) {
  std::vector<UlpBin> bins;
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    const auto from = i == 0 ? 0 : std::uint64_t{1} << (i - 1);
    if (histogram[i] != 0)
      bins.push_back({static_cast<std::int64_t>(from),
                      static_cast<std::int64_t>(i == 0 ? 0 : 2 * from - 1), histogram[i]});
  }
  return bins;
}

Verdict Report::verdict() const {
  constexpr std::array worst_first = {Verdict::error, Verdict::unsupported, Verdict::fail,
                                      Verdict::held,  Verdict::waived,      Verdict::pass};
  for (const Verdict verdict : worst_first) {
    const auto is = [&](const auto& entry) { return entry.verdict == verdict; };
    if (std::any_of(lines.begin(), lines.end(), is) || std::any_of(files.begin(), files.end(), is))
      return verdict;
  }
  return Verdict::skipped;
}

Summary Report::summary() const {
  return summarise(lines, [](const ReportLine&) { return true; });
}

Summary Report::summary(const std::string& file) const {
  return summarise(lines, [&](const ReportLine& line) { return line.file == file; });
}

Status write_report(const std::string& path, const std::string& contents) {
  auto file = AtomicFile::create(path);
  DSAKIT_TRY(file);
  std::ofstream out(file->temporary(), std::ios::binary);
  out << contents;
  out.close();
  if (!out) return bad_input(path + ": cannot write the report: " + std::strerror(errno));
  return file->commit();
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
      "_-./=:,+@%";
  if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
  if (escaped(text) != text) return ansi_c_word(text);
  std::string word = "'";
  for (const char c : text)
    word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

} // namespace dsakit::harness
