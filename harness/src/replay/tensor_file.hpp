// A file as a bag of named tensors.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "dsakit/harness/compare_recordings.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/safetensors.hpp"

namespace dsakit::harness {

/// By its first bytes. A file that is neither is taken for a recording, whose reader says why not.
bool is_safetensors(const std::string& path);

/// The tensors of a .safetensors file, or of a recording under the names and dtypes with which
/// `export` writes them.
class TensorFile {
public:
  struct Entry {
    Dtype dtype;
    Shape shape;
    std::string stored; ///< name inside the file
  };

  /// bad_input for a name that has more than 255 bytes or a control character, too.
  static Result<TensorFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  bool is_recording() const { return recording_ != nullptr; }
  const std::map<std::string, Entry>& tensors() const { return tensors_; }

  /// Renames every tensor; bad_input where two get one name. used[i] becomes 1 where maps[i]
  /// matched.
  Status rename(const std::vector<NameMap>& maps, std::vector<char>& used);

  /// Pushes a payload front to back, in blocks of at most 64 MiB.
  Status stream(const Entry& entry, const BlockSink& sink) const;
  /// Payload of a .safetensors file, to be pulled front to back.
  BlockSource source(const Entry& entry) const;

private:
  TensorFile() = default;
  Status add(const std::string& name, Entry entry);

  std::string path_;
  std::map<std::string, Entry> tensors_;
  std::unique_ptr<SafetensorsReader> safetensors_; ///< one of the two
  std::unique_ptr<RecordingReader> recording_;
  std::map<std::string, TensorInfo> infos_; ///< of the recording, by object
};

/// `name` with every match of every map replaced, one map after the other.
std::string mapped(const std::string& name, const std::vector<NameMap>& maps,
                   std::vector<char>& used);

} // namespace dsakit::harness
