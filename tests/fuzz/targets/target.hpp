// What the fuzz targets share. Each is one function of libFuzzer's form, LLVMFuzzerTestOneInput,
// which replay_corpus.cpp calls as well, so that the corpus runs without clang.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "dsakit/core/status.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace dsakit::fuzz {

/// An ordinary file in memory, for readers that take a path.
class InputFile {
public:
  InputFile();
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(const void* data, std::size_t size);

private:
  int descriptor_;
  std::string path_;
};

/// A folder for outputs, empty at first; removed at exit.
const std::string& output_folder();

/// Aborts with `text`: the finding.
[[noreturn]] void found(const std::string& text);

/// Opens a recording and reads all of it, payloads and ids included; the first refusal.
Status read_recording(const std::string& path);

/// A refusal must be bad_input of one line that begins with `path`; unsupported is one, too, where
/// a sound file asks for what this version does not do.
void check_refusal(const Status& status, const std::string& path);

/// Imports, with a contract that says what the file does not. A failure leaves no file and is a
/// refusal that begins with `input` or the manifest; what is written can be opened and read.
void check_import(const std::string& input, const std::string& manifest = "");

} // namespace dsakit::fuzz
