// A model's config.json of any bytes: read, and what is read is judged by the layer.
#include "dsakit/harness/model_config.hpp"

#include "dsakit/reference/layer_config.hpp"
#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit;
  static fuzz::InputFile file;
  file.write(data, size);
  const auto config = harness::read_model_config(file.path());
  if (!config) {
    fuzz::check_refusal(config.status(), file.path());
    return 0;
  }
  std::int32_t cell = 0;
  static_cast<void>(
      reference::check_layer(*config, {&cell, 1, config->dsa ? config->dsa->index_topk : 0}));
  return 0;
}
