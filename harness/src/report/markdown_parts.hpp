// What the markdown of several verbs has in common.
#pragma once

#include <string>
#include <vector>

#include "dsakit/harness/report.hpp"

namespace dsakit::harness::markdown {

/// Of a table, or a list. A comment holds 65,536 characters; the rest is in the other formats.
inline constexpr std::size_t kRows = 20;

/// Text of one cell of a table, cut behind `longest` bytes; nothing in it is markup.
std::string cell(const std::string& text, std::size_t longest = 200);
std::string row(const std::vector<std::string>& cells);
std::string heading(const std::vector<std::string>& columns);
std::string shown(Verdict verdict);
/// In a fence longer than any run of backticks inside.
std::string fenced(const std::string& text);
/// A line that did not pass, in full.
std::string failure(const ReportLine& line);
std::string warnings(const std::vector<std::string>& all);

} // namespace dsakit::harness::markdown
