#include "dsakit/harness/compare_paths.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "compare_tensors.hpp"
#include "tensor_file.hpp"

namespace dsakit::harness {
namespace {

namespace fs = std::filesystem;

/// Relative names of the recordings and .safetensors files of a folder, in order.
Result<std::set<std::string>> list(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error))
    if (const auto extension = item->path().extension();
        extension == ".h5" || extension == ".safetensors")
      names.insert(item->path().lexically_relative(folder).string());
  if (error) return bad_input(folder + ": " + error.message());
  if (names.empty()) return bad_input(folder + ": found no .h5 or .safetensors file, want one");
  return names;
}

Result<Report> compare_files(const CompareOptions& options, Rules& rules) {
  const bool recordings = !is_safetensors(options.got) && !is_safetensors(options.want);
  return recordings ? compare_recordings(options, rules) : compare_tensors(options, rules);
}

/// bad_input for a map that matches no tensor of any of the files. Those that cannot be read are
/// left to the comparison.
Status check_maps(const std::vector<NameMap>& maps, const std::vector<std::string>& files) {
  if (maps.empty()) return {};
  std::vector<char> used(maps.size());
  for (const std::string& path : files) {
    const auto file = TensorFile::open(path);
    if (!file) return {};
    for (const auto& [name, entry] : file->tensors())
      mapped(name, maps, used);
  }
  const auto unused = std::find(used.begin(), used.end(), 0) - used.begin();
  if (unused == std::ssize(used)) return {};
  return bad_input("--map: found '" + maps[static_cast<std::size_t>(unused)].text +
                   "', which matches no tensor name of want, want one that does");
}

class CompareFolders {
public:
  CompareFolders(const CompareOptions& options, Rules& rules) : options_(options), rules_(rules) {}

  Result<Report> run() {
    DSAKIT_TRY(match());
    report_.verb = "compare";
    report_.against = options_.want;
    report_.environment = capture_environment();
    for (const std::string& name : names_) {
      if (options_.interrupted && *options_.interrupted) {
        report_.partial = true;
        break;
      }
      compare(name);
    }
    report_.files_left_out =
        std::max<std::int64_t>(0, std::ssize(names_) + missing_ - std::ssize(report_.files));
    if (report_.files.empty()) return Status(Code::interrupted, "interrupted");
    report_.warnings = rules_.unused();
    return std::move(report_);
  }

private:
  static std::string in(const std::string& folder, const std::string& name) {
    return (fs::path(folder) / name).string();
  }

  Status match() {
    const auto got = list(options_.got);
    DSAKIT_TRY(got);
    const auto want = list(options_.want);
    DSAKIT_TRY(want);
    std::vector<std::string> of_want;
    for (const std::string& name : *got) {
      if (!want->contains(name)) {
        DSAKIT_TRY(missing(name, options_.want));
        continue;
      }
      names_.push_back(name);
      of_want.push_back(in(options_.want, name));
      std::error_code unknown; // then it counts for nothing in the progress
      const auto size = fs::file_size(in(options_.got, name), unknown);
      bytes_.push_back(unknown ? 0 : static_cast<double>(size));
      all_bytes_ += bytes_.back();
    }
    for (const std::string& name : *want)
      if (!got->contains(name)) DSAKIT_TRY(missing(name, options_.got));
    return check_maps(options_.maps, of_want);
  }

  Status missing(const std::string& name, const std::string& folder) {
    const std::string what = folder + ": has no file " + name;
    if (!options_.allow_missing)
      return bad_input(what + ", want it on both sides (--allow-missing skips it)");
    ++missing_;
    report_.files.push_back({in(options_.got, name), Verdict::skipped, false, what, {}, {}});
    return {};
  }

  void compare(const std::string& name) {
    CompareOptions options = options_;
    options.got = in(options_.got, name);
    options.want = in(options_.want, name);
    const double share = all_bytes_ > 0 ? bytes_[compared_] / all_bytes_ : 0;
    if (options_.progress)
      options.progress = [&](double done, const std::string& what) {
        options_.progress(done_ + share * done, what);
      };
    auto report = compare_files(options, rules_);
    ++compared_;
    done_ += share;
    if (!report) {
      report_.files.push_back({options.got, Verdict::error, true, report.status().what(), {}, {}});
      return;
    }
    report_.partial = report_.partial || report->partial;
    std::move(report->files.begin(), report->files.end(), std::back_inserter(report_.files));
    std::move(report->lines.begin(), report->lines.end(), std::back_inserter(report_.lines));
  }

  const CompareOptions& options_;
  Rules& rules_;
  std::vector<std::string> names_; ///< on both sides
  std::vector<double> bytes_;      ///< of each
  double all_bytes_ = 0;
  double done_ = 0; ///< share of them
  std::size_t compared_ = 0;
  std::int64_t missing_ = 0; ///< files on one side, which lead the report
  Report report_;
};

} // namespace

Result<Report> compare_paths(const CompareOptions& options, Rules& rules) {
  std::error_code none; // what is not there is told by its reader
  const bool got = fs::is_directory(options.got, none);
  const bool want = fs::is_directory(options.want, none);
  if (got && want) return CompareFolders(options, rules).run();
  if (got != want && fs::exists(options.got, none) && fs::exists(options.want, none))
    return bad_input(options.got + " and " + options.want +
                     ": found a folder and a file, want two of a kind");
  DSAKIT_TRY(check_maps(options.maps, {options.want}));
  return compare_files(options, rules);
}

} // namespace dsakit::harness
