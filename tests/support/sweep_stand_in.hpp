// A small program in the place of `dsakit bench`: what it does depends on the configuration.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace dsakit::testing {

/// Writes the script; every start of it adds the configuration as a line to `log`.
///   splits=2   ends by a signal             splits=3   never ends, nor does its own child
///   splits=5   is wrong                     splits=6   is not supported
///   splits=7   says nothing, and exits 0    splits=9   does not understand
///   splits=10  prints what is no number     splits=11  says pass without a verdict
///   splits=12  finds no device
/// Else it takes 100 us + 1 us for each split; by itself 20 splits.
inline std::string write_sweep_stand_in(const std::string& path, const std::string& log) {
  std::ofstream(path) << R"(#!/bin/sh
for last; do :; done
echo "$last" >> ')" + log + R"('
splits=${last#splits=}
row() { echo "{\"rows\": [{\"operation\": \"sparse_attention\", \"kernel\": \"mfma16\", $1}]}"; }
case $splits in
default) splits=20;;
2) kill -SEGV $$;;
3) sleep 1000 & echo $! > ')" +
                             log + R"(.pid'; wait;;
5) row '"verdict": "fail", "reason": "latent [0, 1] is wrong"'; exit 1;;
6) row '"verdict": "unsupported", "reason": "k is odd"'; exit 3;;
7) exit 0;;
9) echo 'dsakit bench: no such shape' >&2; exit 2;;
10) row '"verdict": "pass", "hot": {"median_us": "fast", "q1_us": 1, "q3_us": 2}'; exit 0;;
11) row '"hot": {"median_us": 1, "q1_us": 1, "q3_us": 1}'; exit 0;;
12) echo 'dsakit bench: cuda: no GPU' >&2; exit 77;;
esac
[ -z "$STAND_IN_NAP" ] || sleep "$STAND_IN_NAP"
row "\"verdict\": \"pass\", \"problem_class\": \"tokens=1\", \"ran\": {\"splits\": $splits},
  \"hot\": {\"median_us\": $((100 + splits)), \"q1_us\": $((99 + splits)), \"q3_us\": $((101 + splits)),
  \"min_us\": 90, \"samples\": [1, 2, 3]}"
)";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

} // namespace dsakit::testing
