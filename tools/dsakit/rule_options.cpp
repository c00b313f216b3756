#include "rule_options.hpp"

#include "dsakit/harness/report.hpp"

using namespace dsakit;
using harness::shell_word;

void RuleOptions::add_to(CLI::App& verb) {
  verb.add_option("--rules", files, "gates in place of the built-in ones, for the operations named")
      ->type_name("FILE|DIR");
  verb.add_option("--gate", gates,
                  "gate of the tensors that REGEX matches (TENSOR or OPERATION/TENSOR), before all "
                  "rules: exact, derived or topk_set, then ,budget=COUNT:FRACTION ,l2=LIMIT "
                  ",band=ACCUMULATION")
      ->type_name("REGEX=GATE[,...]")
      ->allow_extra_args(false);
  verb.add_option("--waivers", waivers, "known failures, each with a reason and a last day")
      ->type_name("FILE");
}

Result<harness::Rules> RuleOptions::load() const {
  harness::Rules rules = harness::Rules::built_in();
  if (!files.empty()) DSAKIT_TRY(rules.replace_from(files));
  for (const std::string& gate : gates)
    DSAKIT_TRY(rules.add_override(gate));
  if (!waivers.empty()) DSAKIT_TRY(rules.waivers.add_file(waivers));
  return rules;
}

std::string RuleOptions::repeat() const {
  std::string text;
  const auto add = [&](const std::string& option, const std::string& value) {
    text += (text.empty() ? "" : " ") + option + " " + shell_word(value);
  };
  if (!files.empty()) add("--rules", files);
  for (const std::string& gate : gates)
    add("--gate", gate);
  if (!waivers.empty()) add("--waivers", waivers);
  return text;
}

std::string joined(const std::string& options, const std::string& more) {
  return options + (options.empty() || more.empty() ? "" : " ") + more;
}
