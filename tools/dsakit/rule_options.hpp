// What replay, compare, bisect and shrink are told of gates.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/rules.hpp"

/// Options --rules, --gate, --waivers.
struct RuleOptions {
  std::string files;
  std::vector<std::string> gates;
  std::string waivers;

  void add_to(CLI::App& verb);
  /// The built-in rules, or those of --rules in their place, with the gates and waivers.
  dsakit::Result<dsakit::harness::Rules> load() const;
  /// Words that say them again; empty where there are none.
  std::string repeat() const;
};

/// Two lists of options as one.
std::string joined(const std::string& options, const std::string& more);
