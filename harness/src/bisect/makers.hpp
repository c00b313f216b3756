// What the operations of a step made, in two recordings of one run.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

class Makers {
public:
  /// Both outlive this.
  Makers(const RecordingReader& got, const RecordingReader& want) : got_(got), want_(want) {}

  /// A step ends: what it made is given to the next one.
  void clear() { made_.clear(); }
  /// The outputs of that operation, for those after it.
  void note(const OperationId& id);

  /// Where an input comes from.
  struct Origin {
    std::string operation; ///< that makes it, by its name; empty: none of the step so far
    bool got = false;      ///< holds what that operation made in the same recording
    bool want = false;
    /// First and end, in BYTES, of what both inputs hold of it: of a merge a rank's part.
    std::vector<std::pair<std::ptrdiff_t, std::ptrdiff_t>> explained;
  };
  Result<Origin> origin(const std::string& input, const Tensor& got, const Tensor& want) const;

private:
  struct Made {
    OperationId id;
    std::string tensor; ///< with its producer
  };

  const RecordingReader& got_;
  const RecordingReader& want_;
  std::multimap<std::string, Made> made_; ///< by the name of an input
};

} // namespace dsakit::harness
