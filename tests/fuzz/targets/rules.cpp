// A rules file of any bytes: Rules takes or refuses it, and then judges names.
#include "dsakit/harness/rules.hpp"

#include "dsakit/core/operations.hpp"
#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit;
  static fuzz::InputFile file;
  file.write(data, size);
  harness::Rules rules = harness::Rules::built_in();
  fuzz::check_refusal(rules.replace_from(file.path()), file.path());
  for (const Operation& operation : kOperations)
    for (const char* tensor : {"logits", "logits.vllm", "topk_indices", ""})
      static_cast<void>(rules.find(operation.name, tensor, "recorded"));
  static_cast<void>(rules.unused());
  return 0;
}
