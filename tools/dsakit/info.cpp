// dsakit info: what a recording holds. Payloads are not read.
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <sstream>

#include "complain.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/text.hpp"
#include "exit_codes.hpp"
#include "verbs.hpp"

namespace {

using dsakit::harness::Attributes;
using dsakit::harness::escaped;
using dsakit::harness::OperationId;
using dsakit::harness::RecordingReader;
using dsakit::harness::Side;
using dsakit::harness::TensorInfo;

/// "label  word word ..." broken before column 100, later lines indented under the first word.
void print_wrapped(const std::string& label, const std::vector<std::string>& words) {
  constexpr std::size_t kColumns = 100, kIndent = 23;
  std::string line = "  " + label;
  line.resize(std::max(line.size() + 1, kIndent), ' ');
  bool fresh = true;
  for (const std::string& word : words) {
    if (!fresh && line.size() + 1 + word.size() > kColumns) {
      std::printf("%s\n", line.c_str());
      line.assign(kIndent, ' ');
      fresh = true;
    }
    line += (fresh ? "" : " ") + word;
    fresh = false;
  }
  std::printf("%s\n", line.c_str());
}

std::vector<std::string> pairs(const Attributes& values) {
  std::vector<std::string> words;
  for (const auto& [key, value] : values)
    words.push_back(escaped(key + "=" + value));
  if (words.empty()) words.emplace_back("-");
  return words;
}

/// Each value from a line of its own on: provenance holds sentences, and a command to be repeated.
void print_lines(const std::string& label, const Attributes& values) {
  std::string shown = label;
  for (const std::string& pair : pairs(values)) {
    std::istringstream in(pair);
    print_wrapped(shown, {std::istream_iterator<std::string>(in), {}});
    shown.clear();
  }
}

std::string describe(const TensorInfo& info) {
  std::string text = info.name() + " " + std::string(dsakit::name(info.dtype)) + " " +
                     dsakit::to_string(info.shape);
  for (const char* statistic : {"minimum", "mean", "maximum", "nan", "inf"}) // of level stats
    if (const auto found = info.attributes.find(statistic); found != info.attributes.end())
      text += " " + escaped(std::string(statistic) + "=" + found->second);
  return text;
}

void append(std::vector<std::string>& words, const std::vector<TensorInfo>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    words.push_back(describe(tensors[i]) + (i + 1 < tensors.size() ? "," : ""));
}

void print_recording(const RecordingReader& reader) {
  std::error_code ignored;
  std::printf("%s: %s, %ju bytes\n", escaped(reader.path()).c_str(),
              std::string(dsakit::harness::kRecordingFormat).c_str(),
              static_cast<std::uintmax_t>(std::filesystem::file_size(reader.path(), ignored)));
  if (reader.level() != "full") print_wrapped("level", {reader.level() + ", without values"});
  print_wrapped("contract", pairs(reader.contract()));
  print_wrapped("config", pairs(reader.config()));
  print_lines("provenance", reader.provenance());
  std::int64_t step = -1;
  for (const OperationId& id : reader.operations()) {
    if (id.step != step) {
      step = id.step;
      Attributes differs;
      for (const auto& [key, value] : reader.contract(step))
        if (const auto same = reader.contract().find(key);
            same == reader.contract().end() || same->second != value)
          differs[key] = value;
      std::printf("step %jd%s", static_cast<std::intmax_t>(step), differs.empty() ? "\n" : ":");
      for (const auto& [key, value] : differs)
        std::printf(" %s", escaped(key + "=" + value).c_str());
      if (!differs.empty()) std::printf("\n");
    }
    std::vector<std::string> words;
    append(words, reader.tensors(id, Side::inputs));
    words.emplace_back("->");
    append(words, reader.tensors(id, Side::outputs));
    print_wrapped(id.operation, words);
  }
  if (!reader.weights().empty()) {
    std::vector<std::string> words;
    append(words, reader.weights());
    print_wrapped("weights", words);
  }
}

/// The worst exit code: one bad file does not hide the others.
int run_info(const std::vector<std::string>& files) {
  int worst = kExitPass;
  for (const std::string& file : files) {
    auto reader = RecordingReader::open(file, dsakit::harness::Levels::any);
    if (reader) {
      print_recording(*reader);
      continue;
    }
    complain(reader.status().what(), "info");
    worst = exit_code(reader.status().code());
  }
  return worst;
}

} // namespace

void add_info(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("info", "Show what recordings hold, without reading payloads");
  auto files = std::make_shared<std::vector<std::string>>();
  verb->add_option("FILE", *files, "Recordings")->required();
  verb->callback([files, &exit_code] { exit_code = run_info(*files); });
}
