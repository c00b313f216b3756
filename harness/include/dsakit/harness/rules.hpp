// Rules: which gate a tensor is held to, and why. One JSON file an operation:
//   {"operation": "index_logits_decode",
//    "rules": [{"match": "logits(\\..*)?", "gate": "derived", "why": "..."}]}
// `match` is a regular expression over the whole name of the tensor; the first match wins. With
// "subject": "kernel" | "reference" | "recorded" a rule is for the comparisons of that side alone.
// "budget": {"count": N, "fraction": F} lets elements be outside the gate, at most N and at most
// that part; "relative_l2": X is a limit on the whole tensor. Both are in addition to the gate.
// "band": ACCUMULATION says that a top-k (gate topk_set) was chosen from logits of its producer's
// own, which differ from the recorded ones by what that accumulation rounds.
// Waivers (waivers.hpp) may stand beside "rules".
#pragma once

#include <map>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/compare.hpp"
#include "dsakit/harness/waivers.hpp"

namespace dsakit::harness {

struct Rule {
  std::string match;
  std::regex pattern;
  std::string subject; ///< empty: any
  Gate gate;
  Limits limits = {};
  std::optional<Accumulation> band = {}; ///< of a topk_set
  std::string why = {};
  bool used = false;
};

class Rules {
public:
  /// The files of golden/rules, as they were when this was built.
  static Rules built_in();

  /// Replaces the rules of the operations that `path` names: a .json file, or a folder of them.
  Status replace_from(const std::string& path);

  /// Puts "REGEX=GATE[,budget=COUNT:FRACTION][,l2=LIMIT][,band=ACCUMULATION]" before all rules.
  /// REGEX is over the whole of "OPERATION/TENSOR", or of "TENSOR" of any operation.
  Status add_override(const std::string& text);

  /// The waivers of the rules files, and of --waivers.
  Waivers waivers;

  /// The gate of an output of `subject`, and the reason for it; bad_input where no rule matches.
  /// Marks the rule as used.
  Result<const Rule*> find(std::string_view operation, std::string_view tensor,
                           std::string_view subject);

  /// One line for each rule that is not built in, of an operation that was asked for, and that
  /// matched nothing; and for each override and each waiver that did.
  std::vector<std::string> unused() const;

private:
  struct OperationRules {
    std::string source; ///< file, for messages
    std::vector<Rule> rules;
    bool built_in = false;
    bool asked = false;
  };

  Status add(const std::string& source, const std::string& json, bool built_in);
  const Rule* find_override(std::string_view operation, std::string_view tensor);

  std::map<std::string, OperationRules, std::less<>> operations_;
  std::vector<Rule> overrides_;
};

} // namespace dsakit::harness
