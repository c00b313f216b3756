// A recording of any bytes: opened and read, or refused.
#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit;
  static fuzz::InputFile file;
  file.write(data, size);
  fuzz::check_refusal(fuzz::read_recording(file.path()), file.path());
  return 0;
}
