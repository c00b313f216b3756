#include "child_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <type_traits>

#include <sys/wait.h>
#include <tbb/global_control.h>
#include <unistd.h>

#include "../process/child.hpp"

namespace dsakit::harness {
namespace {

/// Copies plain numbers, texts and lists of them to bytes.
class Writer {
public:
  std::string bytes;

  template <class T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void add(const T& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const std::string& text) {
    add(text.size());
    bytes += text;
  }
  template <class T>
  void add(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values)
      add(value);
  }
  void add(const Tensor& tensor) {
    add(tensor.dtype);
    add(tensor.shape);
    bytes.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
};

/// The reverse; the bytes are our own child's.
class Reader {
public:
  explicit Reader(const std::string& bytes) : at_(bytes.data()) {}

  template <class T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void take(T& value) {
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
  }
  void take(std::string& text) {
    std::size_t size = 0;
    take(size);
    text.assign(at_, size);
    at_ += size;
  }
  template <class T>
  void take(std::vector<T>& values) {
    std::size_t size = 0;
    take(size);
    values.resize(size);
    for (T& value : values)
      take(value);
  }
  void take(Tensor& tensor) {
    Dtype dtype{};
    Shape shape;
    take(dtype);
    take(shape);
    tensor = Tensor(dtype, shape);
    std::copy_n(reinterpret_cast<const std::byte*>(at_), tensor.bytes.size(), tensor.bytes.begin());
    at_ += tensor.bytes.size();
  }

private:
  const char* at_;
};

/// A lock that a worker of TBB holds while the process is forked stays locked in the child.
void end_worker_threads() {
  tbb::task_scheduler_handle scheduler{tbb::attach{}};
  tbb::finalize(scheduler, std::nothrow);
}

void write_all(int descriptor, const std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(descriptor, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno != EINTR) ::_exit(1);
    done += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  }
}

[[noreturn]] void be_child(const std::function<Result<std::string>()>& body, int descriptor) {
  std::signal(SIGINT, SIG_DFL);
  const auto result = body();
  Writer writer;
  writer.add(result ? Code::ok : result.status().code());
  writer.add(result ? *result : result.status().what());
  write_all(descriptor, writer.bytes);
  ::_exit(0);
}

} // namespace

Result<std::string> run_in_child(const std::function<Result<std::string>()>& body, int limit_s) {
  end_worker_threads();
  const auto end = run_forked([&](int out, int) { be_child(body, out); }, limit_s);
  DSAKIT_TRY(end);
  DSAKIT_TRY(survived(*end, limit_s));
  if (WEXITSTATUS(end->status) != 0 || end->out.empty())
    return Status(Code::device_error,
                  "its process ended with exit code " + std::to_string(WEXITSTATUS(end->status)));
  Reader reader(end->out);
  Code code{};
  std::string text;
  reader.take(code);
  reader.take(text);
  if (code != Code::ok) return Status(code, text);
  return text;
}

std::string serialise(const KernelRun& run) {
  Writer writer;
  writer.add(run.kernel);
  writer.add(run.configuration.size());
  for (const auto& [key, value] : run.configuration) {
    writer.add(key);
    writer.add(value);
  }
  writer.add(run.problem_class);
  writer.add(run.workgroups);
  writer.add(run.time_us);
  writer.add(run.accumulation);
  writer.add(run.other_kernels);
  writer.add(run.outputs.size());
  for (const auto& [name, tensor] : run.outputs) {
    writer.add(name);
    writer.add(tensor);
  }
  writer.add(run.stray.has_value());
  if (run.stray) {
    writer.add(run.stray->output);
    writer.add(run.stray->at);
    writer.add(run.stray->why);
  }
  return std::move(writer.bytes);
}

KernelRun parse_kernel_run(const std::string& bytes) {
  KernelRun run;
  Reader reader(bytes);
  reader.take(run.kernel);
  std::size_t keys = 0;
  reader.take(keys);
  for (std::size_t i = 0; i < keys; ++i) {
    std::string key;
    reader.take(key);
    reader.take(run.configuration[key]);
  }
  reader.take(run.problem_class);
  reader.take(run.workgroups);
  reader.take(run.time_us);
  reader.take(run.accumulation);
  reader.take(run.other_kernels);
  std::size_t outputs = 0;
  reader.take(outputs);
  for (std::size_t i = 0; i < outputs; ++i) {
    std::string name;
    reader.take(name);
    reader.take(run.outputs[name]);
  }
  bool strayed = false;
  reader.take(strayed);
  if (strayed) {
    run.stray.emplace();
    reader.take(run.stray->output);
    reader.take(run.stray->at);
    reader.take(run.stray->why);
  }
  return run;
}

} // namespace dsakit::harness
