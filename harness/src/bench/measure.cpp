#include "measure.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "dsakit/optimized/launch.hpp"
#include "report_json.hpp"
#include "statistics.hpp"

namespace dsakit::harness {
namespace {

using Once = std::function<Status(void* stream)>;

constexpr std::size_t kStack = std::size_t{512} << 20; // virtual: what is not used costs nothing
constexpr std::int64_t kGpuCopies = 2048, kHostCopies = 16;
constexpr double kGraph_us = 1000; // of launches in one graph, so that starting it does not show
constexpr std::int64_t kGraphLaunches = 1024;

/// Bytes of the last cache before the memory.
double last_cache(const optimized::Device& device) {
  if (device.kind() == optimized::DeviceKind::host) {
    const long bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? static_cast<double>(bytes) : 32e6;
  }
  // L2 of an H200; Infinity Cache of an MI300X and an MI355X, and for what is not known.
  return device.description().find("H200") != std::string::npos ? 50e6 : 256e6;
}

/// Two caches full of them in turn. One where a launch alone is eight: what it left at its end is
/// gone before the next one gets there.
std::int64_t copies_for(const optimized::Device& device, double bytes) {
  const double cache = last_cache(device);
  if (bytes >= 8 * cache) return 1;
  const auto wanted = static_cast<std::int64_t>(1 + std::ceil(2 * cache / std::max(bytes, 1.0)));
  return std::min(wanted, device.kind() == optimized::DeviceKind::host ? kHostCopies : kGpuCopies);
}

/// Passes launches on and notes what is launched.
class NotingStream final : public optimized::LaunchStream {
public:
  explicit NotingStream(void* inner) : inner_(static_cast<LaunchStream*>(inner)) {}
  Status launch(const optimized::Launch& launch) override {
    symbols.insert(launch.kernel);
    return inner_->launch(launch);
  }
  std::set<std::string> symbols;

private:
  LaunchStream* inner_;
};

/// Each copy of the tensors lives in a run of the adapter of its own, and each run is made while
/// the one before waits here: in the innermost all of them can be launched.
class Stopwatch final : public LaunchObserver {
public:
  Stopwatch(const BenchProblem& problem, std::int64_t copies, int samples,
            const BenchSampler& sampler, const KernelLibrary* library)
      : problem_(problem), copies_(copies), samples_(samples), sampler_(sampler),
        library_(library) {}

  Measurement result;

  Status prepare(optimized::Device& device) {
    if (library_) return prepare_foreign(device);
    return find_adapter(problem_.id.operation)->run(problem_.data(this), device).status();
  }

  Status ready(optimized::Device& device, const std::string& kernel, const Once& once) override {
    launches_.push_back(&once);
    if (std::ssize(launches_) < copies_) return prepare(device);
    return time_all(device, kernel);
  }

private:
  Status prepare_foreign(optimized::Device& device) {
    std::deque<ForeignLaunch> loaded;
    std::deque<Once> launches;
    for (std::int64_t i = 0; i < copies_; ++i) {
      auto one = ForeignLaunch::prepare(*library_, problem_.data(), device);
      DSAKIT_TRY(one);
      const ForeignLaunch& mine = loaded.emplace_back(std::move(*one));
      launches_.push_back(&launches.emplace_back([&mine](void*) { return mine.launch(); }));
    }
    return time_all(device, loaded.front().kernel());
  }

  Status time_all(optimized::Device& device, const std::string& kernel) {
    result.kernel = kernel;
    DSAKIT_TRY(note_symbols(device));
    DSAKIT_TRY(time_launches(device, "hot", 1, result.hot));
    return time_launches(device, "cold", copies_, result.cold);
  }

  Status note_symbols(optimized::Device& device) {
    if (library_ || device.kind() == optimized::DeviceKind::cuda)
      return (*launches_[0])(device.stream());
    NotingStream stream(device.stream());
    DSAKIT_TRY((*launches_[0])(static_cast<optimized::LaunchStream*>(&stream)));
    result.symbols = std::move(stream.symbols);
    return device.synchronize();
  }

  Status launch(optimized::Device& device, std::int64_t i, std::int64_t copies) const {
    return (*launches_[static_cast<std::size_t>(i % copies)])(device.stream());
  }

  Status time_launches(optimized::Device& device, const std::string& what, std::int64_t copies,
                       BenchTiming& timing) {
    for (std::int64_t i = 0; i < copies; ++i) // warm up: instruction caches and clocks
      DSAKIT_TRY(launch(device, i, copies));
    double shortest_us = 0;
    for (int i = 0; i < 2; ++i) {
      DSAKIT_TRY(device.start_timer());
      DSAKIT_TRY(launch(device, i, copies));
      const auto us = device.stop_timer();
      DSAKIT_TRY(us);
      shortest_us = i == 0 ? *us : std::min(shortest_us, *us);
    }
    std::unique_ptr<optimized::DeviceGraph> graph;
    std::int64_t launches = 1;
    if (shortest_us < kGraphBelow_us && device.kind() != optimized::DeviceKind::host) {
      launches = std::clamp(static_cast<std::int64_t>(kGraph_us / std::max(shortest_us, 0.1)),
                            std::int64_t{1}, kGraphLaunches);
      launches = (launches + copies - 1) / copies * copies; // each copy as often
      auto captured = capture(device, launches, copies);
      // A library need not know of graphs.
      if (!captured && !library_ && captured.status().code() != Code::unsupported)
        return captured.status();
      if (captured) graph = std::move(*captured);
      if (!graph) launches = 1;
    }
    result.graph |= graph != nullptr;
    std::int64_t next = 0;
    const auto once = [&]() -> Result<double> {
      DSAKIT_TRY(device.start_timer());
      DSAKIT_TRY(graph ? graph->replay() : launch(device, next++, copies));
      const auto us = device.stop_timer();
      DSAKIT_TRY(us);
      return *us / static_cast<double>(launches);
    };
    DSAKIT_TRY(once());
    auto times = sampler_(problem_.id.operation + "/" + what, samples_, once);
    DSAKIT_TRY(times);
    DSAKIT_TRY(device.synchronize());
    timing = timing_of(std::move(*times));
    timing.launches = launches;
    timing.copies = copies;
    return {};
  }

  Result<std::unique_ptr<optimized::DeviceGraph>>
  capture(optimized::Device& device, std::int64_t launches, std::int64_t copies) const {
    DSAKIT_TRY(device.begin_capture());
    Status status;
    for (std::int64_t i = 0; i < launches && status; ++i)
      status = launch(device, i, copies);
    auto graph = device.end_capture(); // also after a failure: the stream must leave its capture
    if (!status) return status;
    return graph;
  }

  const BenchProblem& problem_;
  std::int64_t copies_;
  int samples_;
  const BenchSampler& sampler_;
  const KernelLibrary* library_; ///< whose kernel it is; nullptr: ours
  std::vector<const Once*> launches_;
};

/// On a thread whose stack holds a run of the adapter for each copy.
Status run_deep(const std::function<Status()>& body) {
  struct Job {
    const std::function<Status()>& body;
    Status status;
  } job{body, {}};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStack);
  pthread_t thread{};
  const int error = pthread_create(
      &thread, &attributes,
      [](void* argument) -> void* {
        auto* mine = static_cast<Job*>(argument);
        mine->status = mine->body();
        return nullptr;
      },
      &job);
  pthread_attr_destroy(&attributes);
  if (error != 0) return {Code::device_error, "no thread for the measurement could be started"};
  pthread_join(thread, nullptr);
  return job.status;
}

} // namespace

double bytes_of(const BenchProblem& problem) {
  double bytes = 0;
  for (const auto* side : {&problem.tensors.inputs, &problem.tensors.outputs})
    for (const auto& [name, recorded] : *side)
      bytes += static_cast<double>(recorded.tensor.bytes.size());
  return bytes;
}

Result<Measurement> measure(const BenchProblem& problem, optimized::Device& device, int samples,
                            std::int64_t copies, const BenchSampler& sampler,
                            const KernelLibrary* library) {
  if (copies == 0) copies = copies_for(device, bytes_of(problem));
  Stopwatch stopwatch(problem, copies, samples, sampler, library);
  DSAKIT_TRY(run_deep([&] { return stopwatch.prepare(device); }));
  return std::move(stopwatch.result);
}

std::string serialise(const Measurement& measurement) {
  nlohmann::ordered_json object;
  object["kernel"] = measurement.kernel;
  object["graph"] = measurement.graph;
  object["hot"] = timing_json(measurement.hot);
  object["cold"] = timing_json(measurement.cold);
  object["symbols"] = measurement.symbols;
  return object.dump();
}

Measurement parse_measurement(const std::string& text) {
  const auto object = nlohmann::json::parse(text); // of our own child
  const auto timing = [](const nlohmann::json& of) {
    BenchTiming result = timing_of(of["samples"].get<std::vector<double>>());
    result.launches = of["launches"].get<std::int64_t>();
    result.copies = of["copies"].get<std::int64_t>();
    return result;
  };
  return {object["kernel"].get<std::string>(), object["graph"].get<bool>(), timing(object["hot"]),
          timing(object["cold"]), object["symbols"].get<std::set<std::string>>()};
}

} // namespace dsakit::harness
