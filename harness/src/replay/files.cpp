#include "files.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "../recording/formats.hpp"
#include "dsakit/core/operations.hpp"
#include "dsakit/harness/operations.hpp"
#include "judge.hpp"
#include "names.hpp"

namespace dsakit::harness {
namespace {

namespace fs = std::filesystem;

Result<std::vector<std::string>> expand(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path); // a missing file is told by the reader
      continue;
    }
    std::vector<std::string> found;
    for (fs::directory_iterator item(path, error), end; !error && item != end;
         item.increment(error))
      if (item->path().extension() == ".h5") found.push_back(item->path().string());
    if (error) return bad_input(path + ": " + error.message());
    if (found.empty()) return bad_input(path + ": found no .h5 file in the folder");
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

/// Lines of the report belong to a file by its name: named twice, it is replayed once.
std::vector<std::string> each_once(std::vector<std::string> files) {
  std::set<std::string> seen;
  std::erase_if(files, [&](const std::string& file) { return !seen.insert(file).second; });
  return files;
}

/// A rule for every tensor that is compared.
Status check_rules(const RecordingReader& reader, const FileChecks& checks) {
  for (const OperationId& id : reader.operations()) {
    const Operation* operation =
        find_recorded(id.operation, checks.overrides.contract(reader, id.step),
                      reader.tensors(id, Side::inputs), reader.tensors(id, Side::outputs));
    if (!operation || !checks.wanted(id)) continue;
    auto outputs = split_names(operation->outputs);
    for (const std::string& output : outputs)
      DSAKIT_TRY(checks.rules.find(id.operation, output, name(Producer::Kind::kernel)));
    for (std::string& output : split_names(operation->optional_outputs))
      outputs.push_back(std::move(output));
    for (const TensorInfo& info : reader.tensors(id, Side::outputs))
      if (std::find(outputs.begin(), outputs.end(), info.output()) != outputs.end())
        for (const auto subject : {Producer::Kind::kernel, Producer::Kind::reference})
          DSAKIT_TRY(checks.rules.find(id.operation, info.name(), name(subject)));
  }
  return {};
}

} // namespace

void ReplayFile::bad(const Status& status) {
  report.verdict = Verdict::error;
  report.bad_input = true;
  report.reason =
      status.what().starts_with(report.file) ? status.what() : report.file + ": " + status.what();
  reader.reset();
}

Result<std::vector<std::string>> files_of(const std::vector<std::string>& paths) {
  auto files = expand(paths);
  DSAKIT_TRY(files);
  return each_once(std::move(*files));
}

ReplayFile open_file(const std::string& file, const FileChecks& checks) {
  ReplayFile entry;
  entry.report.file = file;
  auto reader = RecordingReader::open(file, Levels::any);
  if (!reader) {
    entry.bad(reader.status());
  } else if (const Status damage = reader->verify(); !damage) {
    entry.bad(damage);
  } else if (const Status rules = check_rules(*reader, checks); !rules) {
    entry.bad(rules);
  } else {
    entry.reader = std::move(*reader);
    checks.overrides.note(*entry.reader, checks.operation, entry.report);
  }
  return entry;
}

void check_payload(ReplayFile& entry, const FileChecks& checks) {
  if (!entry.reader || entry.reader->level() != "full") return;
  const RecordingReader& reader = *entry.reader;
  for (const OperationId& id : reader.operations()) {
    if (!find_adapter(id.operation) || !checks.wanted(id)) continue;
    const auto tensors = reader.read(id, checks.overrides.contract(reader, id.step));
    if (!tensors && tensors.status().code() == Code::bad_input) return entry.bad(tensors.status());
  }
}

double bytes_of(const RecordingReader& reader, const OperationId& id) {
  double bytes = 0;
  for (const Side side : {Side::inputs, Side::outputs})
    for (const TensorInfo& info : reader.tensors(id, side))
      bytes +=
          static_cast<double>(element_count(info.shape)) * static_cast<double>(size_of(info.dtype));
  return bytes;
}

void summarise(ReplayFile& entry, const Report& report, const std::string& operation) {
  Report of_file;
  for (const ReportLine& line : report.lines)
    if (line.file == entry.report.file) of_file.lines.push_back(line);
  entry.report.verdict = of_file.verdict();
  if (entry.report.verdict == Verdict::skipped)
    entry.report.reason = report.partial ? "interrupted before anything of it was compared"
                          : entry.reader && entry.reader->level() != "full"
                              ? "recorded at level " + entry.reader->level() + ", without values"
                          : operation.empty() ? "holds no operation that this version replays"
                                              : "holds no operation " + operation;
}

} // namespace dsakit::harness
