#include "atomic_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace dsakit::harness {
namespace {

Status cannot_write(const std::string& target, int error) {
  return bad_input(target + ": cannot be written: " + std::strerror(error));
}

} // namespace

Result<AtomicFile> AtomicFile::create(const std::string& target) {
  const std::filesystem::path path(target);
  std::error_code ignored;
  if (path.filename().empty() || std::filesystem::is_directory(path, ignored))
    return bad_input(target + ": found a directory, want a file to write");
  static int count = 0; // one process may write to a target twice
  std::string name = ".";
  name += path.filename().string();
  name += "." + std::to_string(::getpid()) + "." + std::to_string(count++) + ".tmp";
  AtomicFile file;
  file.target_ = target;
  const std::string temporary = (path.parent_path() / name).string();
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) return cannot_write(target, errno);
  ::close(descriptor);
  file.temporary_ = temporary;
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)), temporary_(std::exchange(other.temporary_, {})) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(target_, other.target_);
  std::swap(temporary_, other.temporary_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::commit() {
  // A network file system or a quota may refuse only now.
  const int descriptor = ::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return cannot_write(target_, errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0) return cannot_write(target_, error);
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) return cannot_write(target_, errno);
  temporary_.clear();
  return {};
}

} // namespace dsakit::harness
