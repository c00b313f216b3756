#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "../recording/names.hpp"
#include "../recording/text.hpp"
#include "dsakit/harness/compare.hpp"
#include "dsakit/harness/golden.hpp"
#include "dsakit/harness/output.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/report.hpp"
#include "manifest.hpp"

namespace dsakit::harness {
namespace {

namespace fs = std::filesystem;

std::string proposal_of(const std::string& folder, const std::string& id, const char* ending) {
  return (fs::path(folder) / "proposed" / (id + ending)).string();
}

/// Lines "what: old -> new".
class Differences {
public:
  Differences(const RecordingReader& old, const RecordingReader& candidate)
      : old_(old), new_(candidate) {}

  Result<std::string> text() {
    values("contract ", old_.contract(), new_.contract());
    values("config ", old_.config(), new_.config());
    values("provenance ", old_.provenance(), new_.provenance());
    std::set<std::int64_t> steps;
    for (const RecordingReader* reader : {&old_, &new_})
      for (const OperationId& id : reader->operations())
        steps.insert(id.step);
    for (const std::int64_t step : steps)
      values("contract of step " + std::to_string(step) + " ", old_.contract(step),
             new_.contract(step));
    const auto before = tensors(old_);
    const auto after = tensors(new_);
    for (const auto& [object, info] : before)
      if (!after.contains(object)) add(object, describe(info), "nothing");
    for (const auto& [object, info] : after) {
      const auto other = before.find(object);
      if (other == before.end())
        add(object, "nothing", describe(info));
      else
        DSAKIT_TRY(tensor(other->second, info));
    }
    return text_.empty() ? std::string("nothing that it says changes\n") : text_;
  }

private:
  void add(const std::string& what, const std::string& before, const std::string& after) {
    text_ += what + ": " + before + " -> " + after + "\n";
  }

  static std::string describe(const TensorInfo& info) {
    return std::string(name(info.dtype)) + " " + to_string(info.shape);
  }

  static std::string joined(const TensorInfo& info) {
    std::string text;
    for (const std::string& axis : info.axes)
      text += (text.empty() ? "" : ",") + axis;
    return text;
  }

  void values(const std::string& what, const Attributes& before, const Attributes& after) {
    for (const auto& [key, value] : before) {
      const auto other = after.find(key);
      if (other == after.end())
        add(what + key, value, "nothing");
      else if (other->second != value)
        add(what + key, value, other->second);
    }
    for (const auto& [key, value] : after)
      if (!before.contains(key)) add(what + key, "nothing", value);
  }

  static std::map<std::string, TensorInfo> tensors(const RecordingReader& reader) {
    std::map<std::string, TensorInfo> all;
    for (const OperationId& id : reader.operations())
      for (const Side side : {Side::inputs, Side::outputs})
        for (const TensorInfo& info : reader.tensors(id, side))
          all.emplace(info.object, info);
    for (const TensorInfo& info : reader.weights())
      all.emplace(info.object, info);
    return all;
  }

  Status tensor(const TensorInfo& before, const TensorInfo& after) {
    values(after.object + " attribute ", before.attributes, after.attributes);
    if (before.axes != after.axes) add(after.object + " axes", joined(before), joined(after));
    if (before.dtype != after.dtype || before.shape != after.shape) {
      add(after.object, describe(before), describe(after));
      return {};
    }
    const auto a = old_.read(before);
    DSAKIT_TRY(a);
    const auto b = new_.read(after);
    DSAKIT_TRY(b);
    if (a->tensor.bytes == b->tensor.bytes) return {};
    const Comparison c = compare_exact(Elements(b->tensor), Elements(a->tensor), {});
    char worst[32];
    std::snprintf(worst, sizeof worst, "%.3g", c.worst_abs);
    text_ += after.object + ": " + std::to_string(c.mismatches) + " of " +
             std::to_string(c.elements) + " elements change, at most by " + worst + "; first " +
             to_string(coordinates(after.shape, *c.first)) + " " + hex(a->tensor, *c.first) +
             " -> " + hex(b->tensor, *c.first) + "\n";
    return {};
  }

  const RecordingReader& old_;
  const RecordingReader& new_;
  std::string text_;
};

} // namespace

Result<std::string> propose_golden(const std::string& folder, const std::string& id,
                                   const std::string& candidate) {
  DSAKIT_TRY(check_golden_id(id));
  auto manifest = GoldenManifest::read(folder);
  DSAKIT_TRY(manifest);
  const auto reader = RecordingReader::open(candidate);
  DSAKIT_TRY(reader);
  DSAKIT_TRY(reader->verify());

  std::string text = "golden/" + id + ", proposed:\n";
  if (manifest->find(id) == nullptr) {
    text += "a new entry\n";
  } else {
    const auto old = RecordingReader::open((fs::path(folder) / "data" / (id + ".h5")).string());
    DSAKIT_TRY(old);
    const auto differences = Differences(*old, *reader).text();
    DSAKIT_TRY(differences);
    text += *differences;
  }

  const auto bytes = read_text_file(candidate);
  DSAKIT_TRY(bytes);
  std::error_code error;
  fs::create_directories(fs::path(folder) / "proposed", error);
  if (error) return bad_input((fs::path(folder) / "proposed").string() + ": " + error.message());
  DSAKIT_TRY(check_not_input(proposal_of(folder, id, ".h5"), candidate));
  DSAKIT_TRY(write_report(proposal_of(folder, id, ".h5"), *bytes));
  DSAKIT_TRY(write_report(proposal_of(folder, id, ".txt"), text));
  return text;
}

Result<std::string> proposed_golden(const std::string& folder, const std::string& id) {
  DSAKIT_TRY(check_golden_id(id));
  const std::string path = proposal_of(folder, id, ".h5");
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored))
    return bad_input(path + ": no such file; golden propose writes it");
  return path;
}

Status accept_golden(const std::string& folder, const GoldenAcceptance& acceptance) {
  const auto proposed = proposed_golden(folder, acceptance.id);
  DSAKIT_TRY(proposed);
  // Those of the old recording may not fit the new one.
  for (const auto& [option, text] :
       {std::pair{"--reason", acceptance.reason}, std::pair{"--reviewer", acceptance.reviewer},
        std::pair{"--what", acceptance.what}, std::pair{"--made-by", acceptance.made_by}})
    if (text.empty())
      return bad_input("golden accept: " + acceptance.id + ": found no " + option + ", want one");
  auto manifest = GoldenManifest::read(folder);
  DSAKIT_TRY(manifest);
  const auto sha256 = sha256_of(*proposed);
  DSAKIT_TRY(sha256);

  OrderedJson* entry = manifest->find(acceptance.id);
  if (entry == nullptr) {
    manifest->json["entries"].push_back(
        {{"id", acceptance.id}, {"file", "data/" + acceptance.id + ".h5"}, {"sha256", ""}});
    entry = manifest->find(acceptance.id);
  }
  (*entry)["sha256"] = *sha256;
  (*entry)["what"] = acceptance.what;
  (*entry)["made_by"] = acceptance.made_by;
  char date[sizeof "2026-01-31"];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(date, sizeof date, "%Y-%m-%d", ::gmtime_r(&now, &utc));
  (*entry)["accepted"] = {
      {"reason", acceptance.reason}, {"reviewer", acceptance.reviewer}, {"date", date}};

  std::error_code error;
  fs::rename(*proposed, fs::path(folder) / "data" / (acceptance.id + ".h5"), error);
  if (error) return bad_input(*proposed + ": " + error.message());
  DSAKIT_TRY(manifest->write());
  fs::remove(proposal_of(folder, acceptance.id, ".txt"), error);
  return {};
}

} // namespace dsakit::harness
