// A file that appears under its name only when it is whole.
#pragma once

#include <string>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// bad_input where `target` is the file `input`, by whatever name, which writing would destroy.
Status check_not_input(const std::string& target, const std::string& input);

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
