#include "dsakit/harness/sweep.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "../golden/manifest.hpp"
#include "../replay/kernel_runner.hpp"
#include "candidate.hpp"
#include "dsakit/harness/environment.hpp"
#include "results.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;
using SweepClock = std::chrono::steady_clock;

/// This shard's candidates in the order in which they start.
std::vector<const SweepCandidate*> in_order(const SweepSpace& space, const SweepOptions& options) {
  std::vector<const SweepCandidate*> order;
  for (std::size_t i = 0; i < space.candidates.size(); ++i)
    if (static_cast<std::int64_t>(i) % options.shards == options.shard - 1)
      order.push_back(&space.candidates[i]);
  if (!options.random) return order;
  // Without its default no configuration of a problem is known to be better.
  std::vector<const SweepCandidate*> defaults, rest;
  for (const SweepCandidate* candidate : order)
    (candidate->is_default() ? defaults : rest).push_back(candidate);
  std::mt19937_64 random(options.seed);
  for (std::size_t left = rest.size(); left > 1; --left)
    std::swap(rest[left - 1], rest[random() % left]);
  defaults.insert(defaults.end(), rest.begin(), rest.end());
  return defaults;
}

/// A sweep that runs: what its threads share.
class RunningSweep {
public:
  RunningSweep(const SweepOptions& options, SweepLog& log,
               std::vector<const SweepCandidate*> waiting, SweepSummary& summary)
      : options_(options), log_(log), waiting_(std::move(waiting)), summary_(summary) {}

  /// Of a line of an earlier run or of this one.
  void count(const json& line) {
    const double median = hot_median(line);
    const bool of_default = is_default(line);
    if (of_default && line["verdict"] == "fail") summary_.default_fails = true;
    if (median == 0) return;
    const std::string problem = line["problem"].dump();
    auto best = std::find_if(summary_.best.begin(), summary_.best.end(),
                             [&](const SweepBest& b) { return b.problem == problem; });
    if (best == summary_.best.end())
      best = summary_.best.insert(summary_.best.end(), SweepBest{problem, {}, 0, 0});
    if (of_default) best->default_us = median;
    if (best->median_us == 0 || median < best->median_us) {
      best->median_us = median;
      best->configuration = line["configuration"].get<optimized::Configuration>();
    }
    show_ = "best " + optimized::configuration_text(best->configuration) + ": " +
            microseconds(best->median_us);
  }

  /// Works until nothing is left; the failure that ended it early.
  Status run() {
    std::vector<std::thread> threads;
    for (int i = 1; i < options_.jobs; ++i)
      threads.emplace_back([this] { work(); });
    work();
    for (std::thread& thread : threads)
      thread.join();
    summary_.left = static_cast<std::int64_t>(waiting_.size()) - done_;
    summary_.interrupted = interrupted() || failure_.code() == Code::interrupted;
    return failure_.code() == Code::interrupted ? Status{} : failure_;
  }

private:
  static std::string microseconds(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f us", value);
    return text;
  }

  bool interrupted() const { return options_.interrupted && *options_.interrupted; }

  const SweepCandidate* next() {
    const std::lock_guard lock(mutex_);
    const double elapsed_s = std::chrono::duration<double>(SweepClock::now() - begin_).count();
    if (started_ == waiting_.size() || !failure_ || interrupted() ||
        (options_.budget_s > 0 && elapsed_s >= options_.budget_s))
      return nullptr;
    show();
    return waiting_[started_++];
  }

  void show() const {
    if (options_.progress)
      options_.progress(static_cast<double>(done_) / static_cast<double>(waiting_.size()), show_);
  }

  void work() {
    while (const SweepCandidate* candidate = next()) {
      auto line = try_candidate(*candidate, options_);
      const std::lock_guard lock(mutex_);
      const Status status = line ? log_.append(*line) : line.status();
      if (!status) {
        if (failure_) failure_ = status;
        return;
      }
      ++done_;
      ++(hot_median(*line) == 0 ? summary_.disqualified : summary_.timed);
      count(*line);
      show();
    }
  }

  const SweepOptions& options_;
  SweepLog& log_;
  std::vector<const SweepCandidate*> waiting_;
  SweepSummary& summary_;
  const SweepClock::time_point begin_ = SweepClock::now();
  std::mutex mutex_; ///< of everything below, the log and the summary
  std::size_t started_ = 0;
  std::int64_t done_ = 0;
  Status failure_;
  std::string show_ = "default first";
};

} // namespace

Result<SweepIdentity> sweep_identity(optimized::DeviceKind kind, const optimized::HostOptions& host,
                                     int time_limit_s, const std::string& library) {
  const auto device = KernelRunner(kind, host, time_limit_s).open();
  DSAKIT_TRY(device);
  const auto hash = sha256_of("/proc/self/exe");
  DSAKIT_TRY(hash);
  SweepIdentity identity{*device, "", *hash};
  const Environment environment = capture_environment();
  identity.toolchain = environment.compiler + " " + environment.build_type;
  if (library.empty()) return identity;
  auto library_hash = sha256_of(library);
  DSAKIT_TRY(library_hash);
  identity.library_hash = std::move(*library_hash);
  return identity;
}

Result<SweepSummary> sweep(const SweepSpace& space, const SweepOptions& options) {
  auto log = SweepLog::open(options.output, options.resume);
  DSAKIT_TRY(log);
  std::map<std::string, const json*> done;
  for (const json& line : log->before())
    done.emplace(line["key"].get<std::string>(), &line);

  SweepSummary summary;
  std::vector<const SweepCandidate*> waiting;
  std::vector<const json*> earlier;
  for (const SweepCandidate* candidate : in_order(space, options)) {
    ++summary.candidates;
    const auto found = done.find(sweep_key(*candidate, options.identity));
    if (found == done.end()) {
      waiting.push_back(candidate);
      continue;
    }
    ++summary.done_before;
    earlier.push_back(found->second);
  }
  RunningSweep running(options, *log, std::move(waiting), summary);
  for (const json* line : earlier)
    running.count(*line);
  DSAKIT_TRY(running.run());
  return summary;
}

} // namespace dsakit::harness
