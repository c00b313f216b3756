// A manifest of any bytes, which names the tensors of a small .safetensors file for import.
#include "dsakit/harness/safetensors.hpp"
#include "target.hpp"

namespace {

using namespace dsakit;
using namespace dsakit::harness;

/// Two rows of logits and their two best, as corpus/manifest names them.
std::string tensors() {
  const std::string path = fuzz::output_folder() + "/tensors.safetensors";
  const auto zeros = [](std::string name, Dtype dtype, Shape shape) {
    const auto bytes = static_cast<std::size_t>(element_count(shape)) * size_of(dtype);
    return SafetensorsOutput{
        std::move(name), dtype, std::move(shape),
        [bytes](const BlockSink& sink) { return sink(std::vector<std::byte>(bytes)); }};
  };
  const Status written =
      write_safetensors(path, {},
                        {zeros("a", Dtype::float32, {2, 4}), zeros("b", Dtype::int32, {2}),
                         zeros("c", Dtype::int32, {2, 2}), zeros("d", Dtype::bfloat16, {2, 64})});
  if (!written) fuzz::found(written.what());
  return path;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string input = tensors();
  static fuzz::InputFile manifest;
  manifest.write(data, size);
  fuzz::check_import(input, manifest.path());
  return 0;
}
