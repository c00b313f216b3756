// An operation's tensors as a plug-in sees them.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>

#include "../operations/launch.hpp"
#include "../replay/kernel_runner.hpp"
#include "../replay/names.hpp"
#include "dsakit/harness/kernel_library.hpp"
#include "dsakit/optimized/native_stream.hpp"

namespace dsakit::harness {
namespace {

using Why = std::array<char, 512>;

/// What a plug-in said, however it ended it.
std::string said(const Why& why) {
  const std::string text(why.data(), ::strnlen(why.data(), why.size()));
  return text.empty() ? "it did not say why" : text;
}

} // namespace

struct ForeignLaunch::State {
  struct Slot {
    std::string name;
    std::string dtype;
    Tensor before;
    DeviceBuffer buffer;
    bool is_output;
  };

  optimized::Device& device;
  const dsakit_kernel_v1* kernel;
  std::string library;
  std::string operation;
  std::string kind;
  std::string arch;
  optimized::Configuration configuration = {}; ///< what was asked for
  Accumulation accumulation = Accumulation::fp32;
  std::deque<Slot> slots = {}; // views below point into it
  std::deque<std::pair<std::string, std::string>> texts = {};
  std::vector<dsakit_tensor> inputs = {};
  std::vector<dsakit_tensor> outputs = {};
  std::vector<dsakit_setting> settings = {};
  std::size_t workspace_bytes = 0;
  std::optional<DeviceBuffer> workspace = {};

  Status add(const std::string& name, const Tensor& tensor, bool is_output) {
    auto buffer = DeviceBuffer::upload(device, tensor);
    DSAKIT_TRY(buffer);
    slots.push_back(
        {name, std::string(dsakit::name(tensor.dtype)), tensor, std::move(*buffer), is_output});
    const Slot& slot = slots.back();
    (is_output ? outputs : inputs)
        .push_back({slot.name.c_str(), slot.dtype.c_str(), slot.before.shape.data(),
                    static_cast<std::int32_t>(slot.before.shape.size()),
                    slot.buffer.template as<void>()});
    return {};
  }

  void set(const std::string& key, const std::string& value) {
    const auto& [k, v] = texts.emplace_back(key, value);
    settings.push_back({k.c_str(), v.c_str()});
  }

  dsakit_problem problem() const {
    return {operation.c_str(),
            kind.c_str(),
            arch.c_str(),
            inputs.data(),
            outputs.data(),
            settings.data(),
            static_cast<std::int32_t>(inputs.size()),
            static_cast<std::int32_t>(outputs.size()),
            static_cast<std::int32_t>(settings.size())};
  }

  std::string kernel_name() const { return library + ":" + kernel->name; }
};

ForeignLaunch::ForeignLaunch(std::unique_ptr<State> state) : state_(std::move(state)) {}
ForeignLaunch::ForeignLaunch(ForeignLaunch&&) noexcept = default;
ForeignLaunch::~ForeignLaunch() = default;

Result<ForeignLaunch> ForeignLaunch::prepare(const KernelLibrary& library,
                                             const OperationData& data, optimized::Device& device) {
  const auto kernel = library.find(data.id.operation);
  DSAKIT_TRY(kernel);
  if (!*kernel) return unsupported(library.name() + ": no kernel for " + data.id.operation);
  auto state = std::make_unique<State>(State{device, *kernel, library.name(), data.id.operation,
                                             kind_name(device.kind()),
                                             std::string(optimized::name(device.arch()))});
  if ((*kernel)->accumulation) {
    const auto accumulation = parse_accumulation((*kernel)->accumulation);
    if (!accumulation)
      return Status(Code::device_error,
                    state->kernel_name() + ": accumulation: " + accumulation.status().what());
    state->accumulation = *accumulation;
  }

  const Operation& operation = data.operation();
  std::vector<std::string> outputs = split_names(operation.outputs);
  for (std::string& output : split_names(operation.optional_outputs))
    if (data.find_output(output)) outputs.push_back(std::move(output));
  for (const auto& [name, input] : data.tensors.inputs) {
    const bool in_place = std::find(outputs.begin(), outputs.end(), name) != outputs.end();
    if (!in_place) DSAKIT_TRY(state->add(name, input.tensor, false));
    for (const auto& [key, value] : input.attributes)
      state->set(name + "." + key, value);
  }
  for (const std::string& name : outputs) {
    const RecordedTensor& recorded = data.output(name);
    const Tensor* before = data.optional_input(name);
    DSAKIT_TRY(state->add(
        name, before ? *before : poisoned(recorded.tensor.dtype, recorded.tensor.shape), true));
    for (const char* key : {"block_stride", "dcp_rank"})
      if (const auto found = recorded.attributes.find(key); found != recorded.attributes.end())
        state->set(name + "." + key, found->second);
  }
  for (const auto& [key, value] : data.contract)
    state->set(key, value);
  for (const auto& [key, value] : data.config)
    state->set("config." + key, value);
  for (const auto& [key, value] : data.configuration)
    if (value != 0) { // 0: as it likes
      state->configuration[key] = value;
      state->set("configuration." + key, std::to_string(value));
    }

  const dsakit_problem problem = state->problem();
  if (Why why{}; (*kernel)->supports && (*kernel)->supports(&problem, why.data(), why.size()) != 0)
    return unsupported(state->kernel_name() + ": " + said(why));
  if ((*kernel)->workspace_bytes) state->workspace_bytes = (*kernel)->workspace_bytes(&problem);
  const std::vector<std::byte> scratch(state->workspace_bytes, std::byte{0xFF});
  auto workspace = DeviceBuffer::upload(device, scratch.data(), scratch.size());
  DSAKIT_TRY(workspace);
  state->workspace.emplace(std::move(*workspace));
  return ForeignLaunch(std::move(state));
}

std::string ForeignLaunch::kernel() const {
  return state_->kernel_name();
}

Status ForeignLaunch::launch() const {
  const State& s = *state_;
  const dsakit_problem problem = s.problem();
  Why why{};
  if (s.kernel->launch(&problem, s.workspace->as<void>(), s.workspace_bytes,
                       optimized::native_stream(s.device), why.data(), why.size()) != 0)
    return {Code::device_error, s.kernel_name() + ": launch failed: " + said(why)};
  return {};
}

Result<KernelRun> ForeignLaunch::take() const {
  const State& s = *state_;
  KernelRun run;
  run.kernel = s.kernel_name();
  run.configuration = s.configuration;
  run.accumulation = s.accumulation;
  for (const State::Slot& slot : s.slots) {
    if (slot.is_output) {
      DSAKIT_TRY(take_output(run, slot.name, slot.buffer, slot.before));
      continue;
    }
    Tensor after(slot.before.dtype, slot.before.shape);
    const auto intact = slot.buffer.download(after);
    DSAKIT_TRY(intact);
    if (!*intact || after.bytes != slot.before.bytes)
      return Status(Code::device_error, s.kernel_name() + ": found its input " + slot.name +
                                            (*intact ? " changed" : " written beside") +
                                            ", want it as it was");
  }
  Tensor scratch(Dtype::uint8, {static_cast<std::int64_t>(s.workspace_bytes)});
  const auto intact = s.workspace->download(scratch);
  DSAKIT_TRY(intact);
  if (!*intact)
    return Status(Code::device_error, s.kernel_name() + ": it wrote beside its workspace of " +
                                          std::to_string(s.workspace_bytes) + " bytes");
  return run;
}

Result<KernelRun> run_foreign(const KernelLibrary& library, const OperationData& data,
                              optimized::Device& device) {
  const auto prepared = ForeignLaunch::prepare(library, data, device);
  DSAKIT_TRY(prepared);
  DSAKIT_TRY(device.start_timer());
  DSAKIT_TRY(prepared->launch());
  const auto time = device.stop_timer();
  DSAKIT_TRY(time);
  DSAKIT_TRY(device.synchronize());
  auto run = prepared->take();
  DSAKIT_TRY(run);
  run->time_us = *time;
  return run;
}

} // namespace dsakit::harness
