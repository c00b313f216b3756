// The files of a replay, and all that can be said of them without a device.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/report.hpp"
#include "dsakit/harness/rules.hpp"
#include "overrides.hpp"

namespace dsakit::harness {

/// A file of the run, open where it is sound.
struct ReplayFile {
  ReportFile report;
  std::optional<RecordingReader> reader;

  void bad(const Status& status); ///< closes it
};

/// Each file named, and the *.h5 of each folder, once, in order.
Result<std::vector<std::string>> files_of(const std::vector<std::string>& paths);

/// What judges files before any device is asked for.
struct FileChecks {
  Rules& rules;
  Overrides& overrides;
  /// Operations that are compared.
  std::function<bool(const OperationId&)> wanted;
  std::string operation; ///< empty: all
};

/// Structure, checksums and rules; what is wrong is in the entry.
ReplayFile open_file(const std::string& file, const FileChecks& checks);

/// Reads every tensor that is compared: ids and values that no recording may hold.
void check_payload(ReplayFile& entry, const FileChecks& checks);

/// BYTES of an operation's tensors: what it counts for in the progress.
double bytes_of(const RecordingReader& reader, const OperationId& id);

/// The verdict of its lines; of none the reason. `operation`: the one that was asked for, or empty.
void summarise(ReplayFile& entry, const Report& report, const std::string& operation);

} // namespace dsakit::harness
