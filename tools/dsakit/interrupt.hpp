// Ctrl-C of verbs that leave a partial report.
#pragma once

#include <atomic>

/// From now on the first Ctrl-C sets the flag that is returned, for the run to end with a report of
/// what is done; the second ends the process at once (130).
const std::atomic<bool>& catch_interrupt();
