// Waivers: failures that are known, why, and until when. In a file of their own, or beside "rules"
// in a rules file, where "operation" is that of the file:
//   {"waivers": [{"operation": "topk", "match": "topk_indices\\.x", "subject": "kernel",
//                 "reason": "...", "expires": "2027-01-31"}]}
// `match` is a regular expression over the whole name of the tensor; "subject" may be missing.
// `expires` is the last day on which it holds, UTC.
#pragma once

#include <regex>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

struct Waiver {
  std::string source; ///< file, for messages
  std::string operation;
  std::string match;
  std::regex pattern;
  std::string subject; ///< empty: any
  std::string reason;
  std::string expires; ///< YYYY-MM-DD
  bool asked = false;  ///< its operation was compared
  bool used = false;
};

class Waivers {
public:
  /// Reads a file of waivers.
  Status add_file(const std::string& path);
  void add(Waiver waiver) { waivers_.push_back(std::move(waiver)); }

  /// To be told of every line. Makes a failed one `waived` where a waiver names it; one that has
  /// expired leaves it a fail, and becomes its reason.
  void apply(ReportLine& line);

  /// One line for each whose operation was compared and that named no failure: it can go.
  std::vector<std::string> unused() const;

  std::string today; ///< YYYY-MM-DD; empty: of the system's clock

private:
  std::vector<Waiver> waivers_;
};

} // namespace dsakit::harness
