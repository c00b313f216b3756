// One adapter an operation: from recorded tensors to what the reference says and what a kernel did.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/operations.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/harness/compare.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::harness {

/// Takes a kernel that is ready to launch, in the place of one timed launch.
class LaunchObserver {
public:
  virtual ~LaunchObserver() = default;
  /// `once` launches it on a stream of `device`; it and the tensors live until this returns.
  virtual Status ready(optimized::Device& device, const std::string& kernel,
                       const std::function<Status(void* stream)>& once) = 0;
};

/// An operation under a contract. The tensors were read and checked; they outlive this.
struct OperationData {
  OperationId id;
  ContractValues contract; ///< with mla_scale_read, which recordings hold per output
  const RecordedOperation& tensors;
  Attributes config = {};             ///< of the recording
  LaunchObserver* observer = nullptr; ///< none: a run launches once

  /// What it is of: of two formats the one that the contract and the tensors say.
  const Operation& operation() const;
  const Tensor& input(const std::string& name) const { return tensors.inputs.at(name).tensor; }
  /// nullptr where it was not recorded.
  const Tensor* optional_input(const std::string& name) const {
    const auto found = tensors.inputs.find(name);
    return found == tensors.inputs.end() ? nullptr : &found->second.tensor;
  }
  /// Some recorded tensor of that output: all have its shape.
  const RecordedTensor& output(std::string_view name) const;
  /// nullptr where it was not recorded.
  const RecordedTensor* find_output(std::string_view name) const;
};

/// What the reference says of one output.
struct Expected {
  std::string output; ///< canonical name
  Values value;
  Mask mask; ///< elements that the operation defines: nothing else is ever compared
  /// Elements that a recorded producer may have left as they were (spec 2.6): compared with a
  /// recording only where they differ from `before`, never where that is not recorded.
  /// Empty: none.
  Mask may_be_left;
  const Tensor* before = nullptr; ///< in OperationData: what the output held before, if recorded
};

/// The first cell that a kernel wrote although it must not: beyond a row, or beside the tensor.
struct StrayWrite {
  std::string output;
  std::vector<std::int64_t> at; ///< empty: beside the tensor
};

/// One launch of a kernel.
struct KernelRun {
  std::string kernel;                     ///< or the library that projected
  std::int64_t workgroups = 0;            ///< 0 of a library
  double time_us = 0;                     ///< of the launch alone, by the device's clock
  std::vector<std::string> other_kernels; ///< "name: why it was not taken"
  std::map<std::string, Tensor> outputs;  ///< by canonical name
  std::optional<StrayWrite> stray;
};

class OperationAdapter {
public:
  virtual ~OperationAdapter() = default;

  /// What every output must be, under the contract of `data`.
  virtual Result<std::vector<Expected>> reference(const OperationData& data) const = 0;
  /// Largest right error of each element of `output` under that accumulation (spec 8); bad_input
  /// where the operation derives no bound for it.
  virtual Result<std::vector<double>> bound(const OperationData& data, std::string_view output,
                                            Accumulation accumulation) const;
  /// Which elements a right answer may hold where an output has several (gate topk_set); bad_input
  /// where the operation has one right answer alone. `band` says for each logit by how much the
  /// producer's own may have been off; empty: it had these.
  virtual Result<Mask> valid_set(const OperationData& data, const Tensor& output,
                                 const std::vector<double>& band) const;
  /// Names of the rounding points of the simulated tier that can be switched; empty where none can.
  virtual std::vector<std::string> rounding_points(const OperationData& data) const;
  /// The outputs of the simulated tier with rounding_points()[*switched] switched, or as it is.
  virtual Result<std::map<std::string, Tensor>>
  simulated(const OperationData& data, std::optional<std::size_t> switched) const;
  /// Why no kernel is meant to serve this contract: the reference alone is compared, and run is not
  /// called. Empty: one is.
  virtual std::string reference_only(const OperationData&) const { return ""; }
  /// Uploads the inputs, poisons the outputs, launches and downloads.
  virtual Result<KernelRun> run(const OperationData& data, optimized::Device& device) const = 0;
};

/// nullptr where this version replays no operation of that name.
const OperationAdapter* find_adapter(std::string_view operation);

} // namespace dsakit::harness
