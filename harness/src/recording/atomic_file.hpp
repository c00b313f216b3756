// A file that appears under its name only when it is whole.
#pragma once

#include <string>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/output.hpp"

namespace dsakit::harness {

/// Holds a temporary name in the folder of the target; unlinks it unless committed. A symbolic link
/// is followed: the file that it leads to is replaced.
class AtomicFile {
public:
  /// bad_input naming the target where nothing can be written there: a directory, a device, a FIFO.
  static Result<AtomicFile> create(const std::string& target);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  const std::string& target() const { return target_; }
  /// Exists and is empty.
  const std::string& temporary() const { return temporary_; }
  /// The temporary file has been closed: flushes it to the disk and renames it.
  Status commit();

private:
  AtomicFile() = default;
  std::string target_;      ///< as given, for messages
  std::string destination_; ///< behind all links
  std::string temporary_;
};

} // namespace dsakit::harness
