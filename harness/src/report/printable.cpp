#include "printable.hpp"

#include "dsakit/harness/text.hpp"

namespace dsakit::harness {
namespace {

void escape(std::string& text) {
  text = escaped(text);
}

void escape_values(ContractValues& values) {
  ContractValues shown;
  for (const auto& [key, value] : values)
    shown[escaped(key)] = escaped(value);
  values = std::move(shown);
}

} // namespace

ReportLine printable(ReportLine line) {
  for (std::string* text : {&line.file, &line.operation, &line.tensor, &line.kernel, &line.reason,
                            &line.why, &line.hint, &line.reproduce})
    escape(*text);
  for (std::string& kernel : line.other_kernels)
    escape(kernel);
  for (AxisMap& axis : line.map)
    escape(axis.axis);
  return line;
}

Report printable(Report report) {
  escape(report.against);
  escape(report.environment.device);
  for (ReportFile& file : report.files) {
    escape(file.file);
    escape(file.reason);
    escape_values(file.contract);
    escape_values(file.contract_recorded);
  }
  for (ReportLine& line : report.lines)
    line = printable(std::move(line));
  for (std::string& warning : report.warnings)
    escape(warning);
  return report;
}

} // namespace dsakit::harness
