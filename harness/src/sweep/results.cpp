#include "results.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "../golden/manifest.hpp"
#include "../import/json.hpp"
#include "../recording/text.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;

constexpr int kLineDepth = 8;

/// Empty for a result.
std::string wrong_with(const json& line) {
  if (!line.is_object()) return "found no object, want one";
  for (const char* key : {"key", "device", "code_hash", "toolchain", "verdict"})
    if (!line.contains(key) || !line[key].is_string())
      return std::string(key) + ": found no text, want one";
  for (const char* key : {"problem", "configuration"})
    if (!line.contains(key) || !line[key].is_object())
      return std::string(key) + ": found no object, want one";
  for (const auto& [key, value] : line["configuration"].items())
    if (!value.is_number_integer()) return "configuration " + key + ": found no number, want one";
  for (const char* times : {"hot", "cold"}) {
    if (!line.contains(times)) continue;
    double before = 0;
    for (const char* key : {"q1_us", "median_us", "q3_us"}) {
      const std::string what = std::string(times) + " " + key + ": found ";
      if (!line[times].is_object() || !line[times].contains(key) || !line[times][key].is_number())
        return what + "no number, want one";
      const auto value = line[times][key].get<double>();
      if (!(value > 0)) return what + line[times][key].dump() + ", want a time above 0";
      if (value < before) return what + line[times][key].dump() + ", want quartiles that ascend";
      before = value;
    }
  }
  return "";
}

Status failed_with(const std::string& path, const char* what) {
  return bad_input(path + ": " + what + ": " + std::strerror(errno));
}

/// Children that a sweep had just forked when it was killed hold its lock until they are gone, too.
bool lock_soon(int descriptor) {
  for (int i = 0; i < 40; ++i) {
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

} // namespace

Result<SweepResults> read_sweep_results(const std::string& path) {
  const auto text = read_text_file(path);
  DSAKIT_TRY(text);
  SweepResults results;
  for (std::size_t begin = 0, number = 1;; ++number) {
    const std::size_t end = text->find('\n', begin);
    if (end == std::string::npos) return results;
    const std::string place = path + ":" + std::to_string(number);
    auto line = parse_json(place, text->substr(begin, end - begin), kLineDepth);
    DSAKIT_TRY(line);
    if (const std::string wrong = wrong_with(*line); !wrong.empty())
      return bad_input(place + ": " + wrong);
    results.lines.push_back(std::move(*line));
    begin = end + 1;
    results.whole_bytes = begin;
  }
}

const std::string& code_hash_of(const SweepCandidate& candidate, const SweepIdentity& identity) {
  return candidate.foreign ? identity.library_hash : identity.code_hash;
}

std::string sweep_key(const SweepCandidate& candidate, const SweepIdentity& identity) {
  const std::string text = json{
      {"problem", json::parse(candidate.problem)},
      {"configuration", candidate.configuration},
      {"code_hash", code_hash_of(candidate, identity)},
      {"device", identity.device},
      {"toolchain",
       identity.toolchain}}.dump();
  return sha256_of_bytes(std::as_bytes(std::span(text))).substr(0, 32);
}

double hot_median(const json& line) {
  if (line["verdict"] != "pass") return 0;
  const auto times = line.find("hot");
  return times == line.end() ? 0 : (*times)["median_us"].get<double>();
}

bool is_default(const json& line) {
  return std::all_of(line["configuration"].begin(), line["configuration"].end(),
                     [](const json& value) { return value == 0; });
}

Result<SweepLog> SweepLog::open(const std::string& path, bool resume) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (there && !resume)
    return bad_input(path + ": found a file, want none, or --resume to add what it lacks");
  if (there) DSAKIT_TRY(read_sweep_results(path)); // before it is opened: it may be no file of ours
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) return failed_with(path, "cannot be written");
  SweepLog log(path, descriptor, false);
  if (!lock_soon(descriptor))
    return bad_input(path + ": found another sweep that writes it, want none");
  log.is_new_ = !there;
  auto read = read_sweep_results(path); // nobody writes it now
  DSAKIT_TRY(read);
  if (::ftruncate(descriptor, static_cast<off_t>(read->whole_bytes)) != 0)
    return failed_with(path, "cannot be cut to whole lines");
  log.before_ = std::move(read->lines);
  return log;
}

SweepLog::SweepLog(SweepLog&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)),
      is_new_(other.is_new_), before_(std::move(other.before_)) {}

SweepLog::~SweepLog() {
  if (descriptor_ < 0) return;
  if (is_new_) ::unlink(path_.c_str());
  ::close(descriptor_);
}

Status SweepLog::append(const json& line) {
  // What a child said may be no UTF-8.
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  is_new_ = false;
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor_, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) return failed_with(path_, "cannot be written");
    done += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  }
  return ::fdatasync(descriptor_) == 0 || errno == EINVAL ? Status{}
                                                          : failed_with(path_, "cannot be flushed");
}

} // namespace dsakit::harness
