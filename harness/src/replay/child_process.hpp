// Work that may crash or hang, in a process of its own.
#pragma once

#include <functional>
#include <string>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/operations.hpp"

namespace dsakit::harness {

/// Before a fork: a lock that a worker of TBB holds just then stays locked in the child. They start
/// again when they are needed.
void end_worker_threads();

/// What `body` returns in a forked child. device_error where the child is ended by a signal, exits,
/// or takes longer than `limit_s` seconds, when it is killed. This process must not have opened the
/// GPU: no driver survives a fork.
Result<std::string> run_in_child(const std::function<Result<std::string>()>& body, int limit_s);

/// A kernel's run as bytes for a pipe, between two processes of one program.
std::string serialise(const KernelRun& run);
KernelRun parse_kernel_run(const std::string& bytes);

} // namespace dsakit::harness
