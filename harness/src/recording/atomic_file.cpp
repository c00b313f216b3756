#include "atomic_file.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace dsakit::harness {
namespace {

/// A temporary file that exists, where a signal handler finds it.
struct Unfinished {
  std::atomic_flag taken;
  std::atomic<bool> named{false};
  char path[4096];
};
/// One that finds no place here is left behind by Ctrl-C, nothing worse.
std::array<Unfinished, 16> unfinished;
static_assert(std::atomic<bool>::is_always_lock_free, "read from a signal handler");

void add_unfinished(const std::string& path) {
  for (Unfinished& place : unfinished) {
    if (path.size() >= sizeof place.path || place.taken.test_and_set()) continue;
    std::memcpy(place.path, path.c_str(), path.size() + 1);
    place.named = true;
    return;
  }
}

void remove_from_unfinished(const std::string& path) {
  for (Unfinished& place : unfinished)
    if (place.named && path == place.path) {
      place.named = false;
      place.taken.clear();
    }
}

Status cannot_write(const std::string& target, int error) {
  return bad_input(target + ": cannot be written: " + std::strerror(error));
}

/// A rename would replace a device or a FIFO, such as /dev/null.
Status check_replaceable(const std::string& target, const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status))
    return bad_input(target + ": found a directory, want a file to write");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    return bad_input(target + ": found a special file, want a file to write");
  return {};
}

/// The file that `target` leads to, which need not exist: links stay, their target is replaced.
Result<std::filesystem::path> follow_links(const std::string& target) {
  constexpr int kMostLinks = 40; // as the kernel
  std::filesystem::path path(target);
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code not_a_link;
    const auto next = std::filesystem::read_symlink(path, not_a_link);
    if (not_a_link) return path;
    path = path.parent_path() / next; // `next` alone where it is absolute
  }
  return cannot_write(target, ELOOP);
}

} // namespace

Status check_not_input(const std::string& target, const std::string& input) {
  std::error_code ignored; // one that does not exist is none
  if (std::filesystem::equivalent(target, input, ignored))
    return bad_input(target + ": found the input " + input + ", want another file to write");
  return {};
}

void remove_unfinished_outputs() noexcept {
  for (const Unfinished& place : unfinished)
    if (place.named) ::unlink(place.path);
}

Result<AtomicFile> AtomicFile::create(const std::string& target) {
  DSAKIT_TRY(check_replaceable(target, target));
  auto followed = follow_links(target);
  if (!followed) return followed.status();
  const std::filesystem::path& path = *followed;
  if (path.filename().empty())
    return bad_input(target + ": found a directory, want a file to write");
  static int count = 0; // one process may write to a target twice
  const std::string own = std::to_string(::getpid()) + "." + std::to_string(count++);
  std::string name = ".";
  name += path.filename().string() + "." + own + ".tmp";
  AtomicFile file;
  file.target_ = target;
  file.destination_ = path.string();
  const std::string temporary = (path.parent_path() / name).string();
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) return cannot_write(target, errno);
  ::close(descriptor);
  file.temporary_ = temporary;
  add_unfinished(temporary);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)), destination_(std::move(other.destination_)),
      temporary_(std::exchange(other.temporary_, {})) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(target_, other.target_);
  std::swap(destination_, other.destination_);
  std::swap(temporary_, other.temporary_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  remove_from_unfinished(temporary_);
}

Status AtomicFile::commit() {
  // A network file system or a quota may refuse only now.
  const int descriptor = ::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return cannot_write(target_, errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0) return cannot_write(target_, error);
  DSAKIT_TRY(check_replaceable(target_, destination_)); // it may have come since create()
  if (std::rename(temporary_.c_str(), destination_.c_str()) != 0)
    return cannot_write(target_, errno);
  remove_from_unfinished(temporary_);
  temporary_.clear();
  return {};
}

} // namespace dsakit::harness
