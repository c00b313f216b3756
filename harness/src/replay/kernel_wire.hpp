// What goes to a kernel's process and comes back from there.
#pragma once

#include "../process/wire.hpp"
#include "dsakit/harness/operations.hpp"

namespace dsakit::harness {

/// Those types as a WireWriter and a WireReader have them, const or not.
template <class T, class Of>
concept As = std::is_same_v<std::remove_const_t<T>, Of>;

template <class Wire, As<OperationId> T>
void fields(Wire& wire, T& id) {
  wire(id.step, id.operation);
}

template <class Wire, As<RecordedTensor> T>
void fields(Wire& wire, T& recorded) {
  wire(recorded.tensor, recorded.axes, recorded.attributes);
}

template <class Wire, As<RecordedOperation> T>
void fields(Wire& wire, T& operation) {
  wire(operation.inputs, operation.outputs);
}

template <class Wire, As<StrayWrite> T>
void fields(Wire& wire, T& stray) {
  wire(stray.output, stray.at, stray.why);
}

template <class Wire, As<KernelRun> T>
void fields(Wire& wire, T& run) {
  wire(run.kernel, run.configuration, run.problem_class, run.workgroups, run.time_us,
       run.accumulation, run.other_kernels, run.outputs, run.stray);
}

} // namespace dsakit::harness
