#include "target.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <sys/mman.h>
#include <unistd.h>

#include "dsakit/harness/import.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::fuzz {

InputFile::InputFile()
    : descriptor_(::memfd_create("input", 0)),
      path_("/proc/self/fd/" + std::to_string(descriptor_)) {
  if (descriptor_ < 0) found("no file in memory");
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

void InputFile::write(const void* data, std::size_t size) {
  if (::ftruncate(descriptor_, 0) != 0 ||
      ::pwrite(descriptor_, data, size, 0) != static_cast<ssize_t>(size))
    found("the file in memory cannot be written");
}

const std::string& output_folder() {
  struct Folder {
    std::string path = (std::filesystem::temp_directory_path() / "dsakit_fuzz_XXXXXX").string();
    Folder() {
      if (!::mkdtemp(path.data())) found(path + ": cannot be made");
    }
    ~Folder() {
      std::error_code error;
      std::filesystem::remove_all(path, error);
    }
  };
  static const Folder folder;
  return folder.path;
}

void found(const std::string& text) {
  std::fprintf(stderr, "found: %s\n", text.c_str());
  std::abort();
}

Status read_recording(const std::string& path) {
  using namespace harness;
  const auto reader = RecordingReader::open(path);
  DSAKIT_TRY(reader);
  DSAKIT_TRY(reader->verify());
  for (const OperationId& id : reader->operations())
    if (const auto read = reader->read(id, reader->contract(id.step));
        !read && read.status().code() != Code::unsupported)
      return read.status();
  return {};
}

void check_refusal(const Status& status, const std::string& path) {
  if (status) return;
  if (status.code() != Code::bad_input && status.code() != Code::unsupported)
    found("a refusal with code " + std::to_string(static_cast<int>(status.code())) + ": " +
          status.what());
  if (!status.what().starts_with(path)) found("a refusal that names no file: " + status.what());
  if (status.what().find('\n') != std::string::npos) found("two lines: " + status.what());
}

void check_import(const std::string& input, const std::string& manifest) {
  harness::ImportOptions options;
  options.input = input;
  options.output = output_folder() + "/imported.h5";
  options.manifest = manifest;
  options.contract_preset = "kimi-k3.1";
  std::filesystem::remove(options.output);
  if (const auto imported = import_safetensors(options); !imported) {
    if (std::filesystem::exists(options.output))
      found("a failed import left a file: " + imported.status().what());
    const bool of_manifest = !manifest.empty() && imported.status().what().starts_with(manifest);
    return check_refusal(imported.status(), of_manifest ? manifest : input);
  }
  if (const auto reader = harness::RecordingReader::open(options.output); !reader)
    found("an import that cannot be opened: " + reader.status().what());
  check_refusal(read_recording(options.output), options.output); // ids may be out of their range
}

} // namespace dsakit::fuzz
