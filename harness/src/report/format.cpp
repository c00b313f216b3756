#include "format.hpp"

#include <algorithm>
#include <cstdio>

namespace dsakit::harness {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

} // namespace

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

std::string sample_text(const Sample& sample) {
  return format("%.9g", sample.value) + " (" + sample.hex + ")";
}

std::string samples_text(const ReportLine& line, const std::string& got, const std::string& want) {
  return line.subject == line.against ? "got " + got + ", want " + want
                                      : line.subject + " " + got + ", " + line.against + " " + want;
}

std::string plural(std::int64_t n, const char* noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
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

bool failed(Verdict verdict) {
  return verdict != Verdict::pass && verdict != Verdict::skipped && verdict != Verdict::waived;
}

} // namespace dsakit::harness
