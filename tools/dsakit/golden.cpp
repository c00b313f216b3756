// dsakit golden: the recordings that must not change unnoticed.
#include <cstdio>
#include <memory>

#include "complain.hpp"
#include "device_options.hpp"
#include "dsakit/harness/golden.hpp"
#include "dsakit/harness/replay.hpp"
#include "dsakit/harness/rules.hpp"
#include "exit_codes.hpp"
#include "run_report.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

struct GoldenArguments {
  std::string folder = "golden";
  std::string id;
  std::string candidate;
  harness::GoldenAcceptance acceptance;
};

int failed(const Status& status) {
  complain(status.what(), "golden");
  return exit_code(status.code());
}

/// Replays on host lanes; says in one line what does not pass.
int replay(const std::vector<std::string>& files) {
  if (const Status status = check_dispatch(); !status) return failed(status);
  harness::ReplayOptions options;
  options.paths = files;
  options.keep_going = true;
  auto rules = harness::Rules::built_in();
  const auto report = harness::replay(options, rules);
  if (!report) return failed(report.status());
  for (const harness::ReportFile& file : report->files)
    if (file.bad_input)
      complain(file.reason, "golden");
    else if (file.verdict != harness::Verdict::pass)
      complain(file.file + ": " + std::string(harness::name(file.verdict)) +
                   ", want pass (dsakit replay " + harness::shell_word(file.file) + " says more)",
               "golden");
  return exit_code_of(*report);
}

int verify(const GoldenArguments& o) {
  if (const Status status = harness::check_golden(o.folder); !status) return failed(status);
  const auto entries = harness::read_golden(o.folder);
  if (!entries) return failed(entries.status());
  std::vector<std::string> files;
  for (const harness::GoldenEntry& entry : *entries)
    files.push_back(entry.file);
  const int code = replay(files);
  if (code == kExitPass)
    std::printf("%zu golden recordings are as %s/manifest.json says and pass\n", files.size(),
                o.folder.c_str());
  return code;
}

int propose(const GoldenArguments& o) {
  const auto changes = harness::propose_golden(o.folder, o.id, o.candidate);
  if (!changes) return failed(changes.status());
  std::printf("%sto take it: dsakit golden --folder %s accept --id %s --reason WHY --reviewer WHO "
              "--what TEXT --made-by COMMAND\n",
              changes->c_str(), harness::shell_word(o.folder).c_str(), o.id.c_str());
  return kExitPass;
}

int accept(const GoldenArguments& o) {
  const auto proposed = harness::proposed_golden(o.folder, o.acceptance.id);
  if (!proposed) return failed(proposed.status());
  if (const int code = replay({*proposed}); code != kExitPass) return code;
  if (const Status status = harness::accept_golden(o.folder, o.acceptance); !status)
    return failed(status);
  std::printf("%s is accepted\n", o.acceptance.id.c_str());
  return kExitPass;
}

} // namespace

void add_golden(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("golden", "the recordings that must not change unnoticed");
  auto options = std::make_shared<GoldenArguments>();
  verb->add_option("--folder", options->folder, "with manifest.json and data/")
      ->type_name("DIR")
      ->capture_default_str();
  verb->require_subcommand(1);
  verb->fallthrough();
  verb->footer(kExitCodesHelp);

  CLI::App* verified =
      verb->add_subcommand("verify", "every file has its SHA-256 and passes replay on host lanes");
  verified->callback([options, &exit_code] { exit_code = verify(*options); });

  CLI::App* proposed = verb->add_subcommand(
      "propose", "copy a candidate to proposed/ and say what accepting it would change");
  proposed->add_option("--id", options->id, "entry to replace, or a new one")->required();
  proposed->add_option("candidate", options->candidate, "a recording")
      ->required()
      ->type_name("FILE");
  proposed->callback([options, &exit_code] { exit_code = propose(*options); });

  CLI::App* accepted = verb->add_subcommand(
      "accept", "put one proposal in place, if it passes replay; never touches a gate");
  auto& a = options->acceptance;
  accepted->add_option("--id", a.id, "entry whose proposal to take")->required();
  accepted->add_option("--reason", a.reason, "why it may change")->required();
  accepted->add_option("--reviewer", a.reviewer, "who looked at the changes")->required();
  accepted->add_option("--what", a.what, "what it holds")->required();
  accepted->add_option("--made-by", a.made_by, "command that makes it")->required();
  accepted->callback([options, &exit_code] { exit_code = accept(*options); });
}
