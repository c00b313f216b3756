// What feeds an operation in chained mode: the outputs of our own kernels.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

/// The outputs of the operations of one step so far. An input of a later operation is one of them
/// where it has the output's name and was recorded with the same bytes; so is a rank's part of what
/// ranks offer to a merge.
class Chain {
public:
  /// `recorded` with those inputs replaced by what the kernels wrote.
  RecordedOperation feed(RecordedOperation recorded) const;
  void take(const RecordedOperation& recorded, const KernelRun& run);
  /// Keys that a layer gathered from its own cache: inputs of the logits, and no operation's
  /// output.
  void take_keys(const RecordedOperation& recorded, const KernelRun& run);

private:
  struct Link {
    Tensor recorded;
    Tensor ours;
  };
  std::map<std::string, std::vector<Link>> links_; ///< by name of the input
};

} // namespace dsakit::harness
