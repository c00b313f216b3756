// Parts of rules and waivers files, from JSON. Errors do not name the file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dsakit/harness/rules.hpp"

namespace dsakit::harness {

/// Text member `key` of `object`.
Result<std::string> text_member(const nlohmann::json& object, const char* key);

/// bad_input where `object` has a key that is not `known`.
Status only_keys(const nlohmann::json& object, std::initializer_list<std::string_view> known);

Result<Rule> parse_rule(const nlohmann::json& object);

/// "REGEX=GATE[,budget=COUNT:FRACTION][,l2=LIMIT][,band=ACCUMULATION]"
Result<Rule> parse_gate_option(const std::string& text);

/// `operation`: that of the rules file it stands in; empty: the waiver names its own.
Result<Waiver> parse_waiver(const nlohmann::json& object, const std::string& source,
                            const std::string& operation);

} // namespace dsakit::harness
