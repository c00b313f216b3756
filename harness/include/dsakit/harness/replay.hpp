// Replay: feed each recorded operation to the reference and to our kernels, and compare (design 8).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/progress.hpp"
#include "dsakit/harness/report.hpp"
#include "dsakit/harness/rules.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::harness {

/// One `--contract key[:tensor]=value`.
struct ContractOverride {
  std::string key;
  std::string tensor; ///< of a key that outputs hold: an output or one's tensor; empty: all of them
  std::string value;
};

/// bad_input for an unknown key, a value out of its set, or a tensor on a key that is not per
/// tensor.
Result<ContractOverride> parse_override(const std::string& text);

enum class ReplayMode : std::uint8_t {
  fed,     ///< every operation is fed from the recording: isolates a fault
  chained, ///< an operation is fed from what our kernels made of the ones before: shows
           ///< accumulation
};

/// Which bits have to be the same again.
struct Determinism {
  bool run = false;   ///< of `count` runs; on host lanes in other orders of their waves
  bool batch = false; ///< of `count` rows alone, and in their batch
  bool split = false; ///< for `count` numbers of splits: what the kernel claims of them
  int count = 0;
};

/// "run,batch,split" and "3"; bad_input naming what is neither.
Result<Determinism> parse_determinism(const std::string& levels, const std::string& count);

struct ReplayOptions {
  std::vector<std::string> paths; ///< files, and folders whose *.h5 are taken in order of name
  optimized::DeviceKind device = optimized::DeviceKind::host;
  optimized::HostOptions host;
  std::vector<ContractOverride> overrides;
  std::string operation; ///< only this one; empty: all
  ReplayMode mode = ReplayMode::fed;
  std::int64_t rows = 0;  ///< a sample of at most so many rows of each operation; 0: all
  std::uint64_t seed = 0; ///< of that sample
  int time_limit_s = 60;  ///< of each operation on a GPU or of a library, in a process of its own
  std::string kernel_library; ///< whose kernels go before the built-in ones; empty: none
  bool attribute = false;     ///< says which rounding point explains an error
  Determinism determinism;    ///< of fed replay: nothing is asked for by default
  bool keep_going = false;    ///< go on after a file that is bad or does not pass
  std::string repeat;         ///< options that `reproduce` repeats: "--host-arch gfx950"
  const std::atomic<bool>* interrupted = nullptr; ///< asked between operations
  Progress progress;                              ///< by bytes of the operations
};

/// Every file is read and checked before the device is opened. A file's own fault is its verdict
/// `error` in the report; the failures are an argument's (bad_input), no_device, and interrupted
/// before the first file was read. Interrupted later, the report is partial and ends with the last
/// whole operation.
Result<Report> replay(const ReplayOptions& options, Rules& rules);

} // namespace dsakit::harness
