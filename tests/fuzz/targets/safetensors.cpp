// A .safetensors file of any bytes: its reader, and import by its metadata.
#include "dsakit/harness/safetensors.hpp"

#include "target.hpp"

namespace {

using namespace dsakit;

Status read_all(const std::string& path) {
  const auto reader = harness::SafetensorsReader::open(path);
  DSAKIT_TRY(reader);
  for (const auto& [name, entry] : reader->tensors())
    DSAKIT_TRY(reader->read(name));
  return {};
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::InputFile file;
  file.write(data, size);
  fuzz::check_refusal(read_all(file.path()), file.path());
  fuzz::check_import(file.path());
  return 0;
}
