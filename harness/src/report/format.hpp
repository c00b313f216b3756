// How the text and the markdown of a report write numbers and wrap words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

inline constexpr std::size_t kScreenWidth = 100;

std::string count(std::int64_t n);                            ///< 10,000,000 and more: 1.2e+07
std::string short_number(const std::optional<double>& value); ///< two digits; none: "-"
std::string duration(double us);                              ///< "1.20 ms"
std::string coordinate(const std::vector<std::int64_t>& at);  ///< "[4, 3]"; none: "-"
std::string sample_text(const Sample& sample);                ///< "-83.3 (0xc2a6a8ab)"
/// "reference 1 (0x3f800000), recorded 2 (0x40000000)": whose they are; of two recordings got and
/// want
std::string samples_text(const ReportLine& line, const std::string& got, const std::string& want);
std::string plural(std::int64_t n, const char* noun); ///< "1 file", "2 files"
std::vector<std::string> words(const std::string& text);

/// Words after `label`, wrapped at the width of a screen, continued under the first word.
std::string wrapped(const std::string& label, const std::vector<std::string>& words);

/// Left-aligned columns as wide as their widest cell.
std::string table(const std::vector<std::vector<std::string>>& rows, const std::string& indent);

/// Neither pass, skipped nor waived.
bool failed(Verdict verdict);

/// "index_logits_decode step 0 logits: kernel against reference"
std::string title(const ReportLine& line);

/// What is known of a line that did not pass, place and hint first, indented, several lines.
/// `verbose` adds the samples and the histogram of ulps.
std::string details(const ReportLine& line, bool verbose);

} // namespace dsakit::harness
