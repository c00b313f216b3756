// Replays a recording, from installed headers.
#include <cstdio>

#include <dsakit/harness/replay.hpp>

int main(int count, char** arguments) {
  if (count != 2) return 2;
  dsakit::harness::ReplayOptions options;
  options.paths = {arguments[1]};
  dsakit::harness::Rules rules = dsakit::harness::Rules::built_in();
  const auto report = dsakit::harness::replay(options, rules);
  if (!report) {
    std::fprintf(stderr, "%s\n", report.status().what().c_str());
    return 1;
  }
  std::fputs(to_text(*report, {}).c_str(), stdout);
  return report->verdict() == dsakit::harness::Verdict::pass ? 0 : 1;
}
