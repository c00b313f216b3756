#include "ordinary_file.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace dsakit::harness {

Result<std::uint64_t> size_of_ordinary_file(const std::string& path) {
  const auto cannot_open = [&] {
    return bad_input(path + ": cannot be opened: " + std::strerror(errno));
  };
  // Before it is opened: that alone may block, or wake a device.
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return cannot_open();
  if (S_ISDIR(info.st_mode)) return bad_input(path + ": found a directory, want a file");
  if (!S_ISREG(info.st_mode))
    return bad_input(path + ": found a special file, want an ordinary one");
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return cannot_open();
  ::close(descriptor);
  return static_cast<std::uint64_t>(info.st_size);
}

} // namespace dsakit::harness
