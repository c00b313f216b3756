// What --contract puts in the place of recorded values.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/replay.hpp"
#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

class Overrides {
public:
  /// `list` outlives this.
  explicit Overrides(const std::vector<ContractOverride>& list) : list_(list) {}

  /// Puts the contract of a recording as it is used into `file`, and what was replaced. Keys that
  /// outputs hold are those of `operation`; empty: of all.
  void note(const RecordingReader& reader, const std::string& operation, ReportFile& file);
  /// bad_input for an override that no recording noted had a key or tensor for.
  Status check_used() const;

  ContractValues contract(const RecordingReader& reader, std::int64_t step) const;
  /// What a recorded output holds of `key`, or what takes its place.
  std::string attribute(const std::string& key, const std::string& tensor,
                        const Attributes& attributes) const;
  /// That of a recorded output; exact where its operation has none.
  Result<Accumulation> accumulation(const Operation* operation, const std::string& tensor,
                                    const Attributes& attributes) const;

private:
  void note_outputs(const RecordingReader& reader, const std::string& operation, ReportFile& file);

  const std::vector<ContractOverride>& list_;
  std::set<const ContractOverride*> used_;
};

} // namespace dsakit::harness
