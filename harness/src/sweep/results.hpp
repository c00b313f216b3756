// The file of a sweep's results: a JSON object a line, only ever appended to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/sweep.hpp"

namespace dsakit::harness {

struct SweepResults {
  std::vector<nlohmann::json> lines;
  std::uint64_t whole_bytes = 0; ///< up to the end of the last line; beyond it a torn one
};

/// bad_input, naming file and line, for a line that is whole and no result.
Result<SweepResults> read_sweep_results(const std::string& path);

/// SHA-256 of what holds the candidate's kernel.
const std::string& code_hash_of(const SweepCandidate& candidate, const SweepIdentity& identity);

/// SHA-256 of what a time depends on, 32 hexadecimal digits.
std::string sweep_key(const SweepCandidate& candidate, const SweepIdentity& identity);

/// The median of a line's times in microseconds; 0 where it has none: disqualified.
double hot_median(const nlohmann::json& line);

/// Its configuration sets nothing: dispatch chose.
bool is_default(const nlohmann::json& line);

/// Appends lines to a file that no other sweep writes meanwhile. May be used from one thread at a
/// time.
class SweepLog {
public:
  /// Takes what the file holds; a torn last line is cut off. A file that this made is gone with it
  /// unless it got a line.
  static Result<SweepLog> open(const std::string& path, bool resume);

  SweepLog(SweepLog&& other) noexcept;
  SweepLog& operator=(SweepLog&&) = delete;
  ~SweepLog();

  const std::vector<nlohmann::json>& before() const { return before_; }
  /// The line is on the disk when this returns.
  Status append(const nlohmann::json& line);

private:
  SweepLog(std::string path, int descriptor, bool is_new)
      : path_(std::move(path)), descriptor_(descriptor), is_new_(is_new) {}

  std::string path_;
  int descriptor_;
  bool is_new_; ///< and without a line
  std::vector<nlohmann::json> before_;
};

} // namespace dsakit::harness
