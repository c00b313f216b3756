// A file of rules or waivers of any bytes: taken or refused; names can be judged after both.
#include "dsakit/harness/rules.hpp"

#include "dsakit/core/operations.hpp"
#include "dsakit/harness/waivers.hpp"
#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit;
  static fuzz::InputFile file;
  file.write(data, size);
  static const harness::Rules built_in = harness::Rules::built_in();
  harness::Rules rules = built_in;
  fuzz::check_refusal(rules.replace_from(file.path()), file.path());
  for (const Operation& operation : kOperations)
    for (const char* tensor : {"logits", "logits.vllm", "topk_indices", ""})
      static_cast<void>(rules.find(operation.name, tensor, "recorded"));
  static_cast<void>(rules.unused());

  harness::Waivers waivers;
  waivers.today = "2030-01-01";
  fuzz::check_refusal(waivers.add_file(file.path()), file.path());
  harness::ReportLine failed;
  failed.operation = "topk";
  failed.tensor = "topk_indices";
  failed.verdict = harness::Verdict::fail;
  waivers.apply(failed);
  static_cast<void>(waivers.unused());
  return 0;
}
