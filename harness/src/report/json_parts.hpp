// What the JSON of several verbs has in common.
#pragma once

#include <nlohmann/json.hpp>

#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

/// A line of dsakit-report/1.
nlohmann::ordered_json line_json(const ReportLine& line);
nlohmann::ordered_json environment_json(const Environment& environment);

} // namespace dsakit::harness
