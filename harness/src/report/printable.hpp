// Reports as people see them: nothing that a file, or its name, holds moves their cursor.
#pragma once

#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

/// With every text escaped that may come from a file, a file's name or a library. Not for JSON,
/// which escapes by itself.
Report printable(Report report);
ReportLine printable(ReportLine line);

} // namespace dsakit::harness
