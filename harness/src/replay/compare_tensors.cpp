#include "compare_tensors.hpp"

#include <algorithm>
#include <cstring>

#include "../recording/text.hpp"
#include "judge.hpp"
#include "tensor_file.hpp"

namespace dsakit::harness {
namespace {

using Entry = TensorFile::Entry;
using Bytes = std::span<const std::byte>;

/// One tensor of both files.
struct Pair {
  std::string name;
  const Entry* got;
  const Entry* want;
  const Rule* rule;
};

double bytes_of(const Entry& entry) {
  return static_cast<double>(element_count(entry.shape)) *
         static_cast<double>(size_of(entry.dtype));
}

std::string describe(const Entry& entry) {
  return std::string(name(entry.dtype)) + " " + to_string(entry.shape);
}

/// "'a' (and 2 more)"
std::string first_of(const std::vector<std::string>& names) {
  return in_quotes(names.front()) +
         (names.size() > 1 ? " (and " + std::to_string(names.size() - 1) + " more)" : "");
}

/// An exact comparison of a tensor, piece by piece, and its first mismatches.
class ExactFold {
public:
  ExactFold(Dtype dtype, const Shape& shape)
      : dtype_(dtype), shape_(shape), comparer_(Gate::exact, dtype, shape) {}

  void add(Bytes got, Bytes want) {
    const std::size_t size = size_of(dtype_);
    const auto elements = static_cast<std::int64_t>(got.size() / size);
    comparer_.add({got.data(), want.data(), elements});
    if (std::memcmp(got.data(), want.data(), got.size()) != 0)
      for (std::size_t at = 0; at < got.size() && samples_.size() < ReportLine::kSamples;
           at += size)
        keep(got.subspan(at, size), want.subspan(at, size),
             before_ + static_cast<std::int64_t>(at / size));
    before_ += elements;
  }

  Comparison finish() { return comparer_.finish(); }
  const std::vector<SamplePair>& samples() const { return samples_; }

private:
  void keep(Bytes got, Bytes want, std::int64_t at) {
    if (std::memcmp(got.data(), want.data(), got.size()) != 0)
      samples_.push_back({coordinates(shape_, at), sample(got), sample(want)});
  }

  Sample sample(Bytes bytes) const {
    Tensor one(dtype_, {1});
    std::memcpy(one.bytes.data(), bytes.data(), bytes.size());
    return {element(one, 0), hex(one, 0)};
  }

  Dtype dtype_;
  const Shape& shape_;
  Comparer comparer_;
  std::vector<SamplePair> samples_;
  std::int64_t before_ = 0; ///< elements
};

class CompareTensors {
public:
  CompareTensors(const CompareOptions& options, Rules& rules, TensorFile got, TensorFile want)
      : options_(options), rules_(rules), got_(std::move(got)), want_(std::move(want)) {}

  Result<Report> run() {
    report_.verb = "compare";
    report_.against = options_.want;
    report_.environment = capture_environment();
    report_.files.push_back({options_.got, Verdict::skipped, false, {}, {}, {}});
    DSAKIT_TRY(match());
    for (const Pair& pair : pairs_) {
      if (interrupted()) break;
      DSAKIT_TRY(compare(pair));
    }
    report_.partial = interrupted();
    report_.files[0].verdict = report_.verdict();
    if (report_.files[0].verdict == Verdict::skipped)
      report_.files[0].reason = report_.partial ? "interrupted before anything of it was compared"
                                                : "no tensor is on both sides";
    report_.warnings = rules_.unused();
    return std::move(report_);
  }

private:
  bool interrupted() const { return options_.interrupted && *options_.interrupted; }

  ReportLine line_of(const std::string& tensor) const {
    ReportLine line;
    line.file = options_.got;
    line.operation = kTensors;
    line.tensor = tensor;
    line.subject = name(Producer::Kind::recorded);
    line.against = name(Producer::Kind::recorded);
    return line;
  }

  /// Before any payload is read: the tensors of both sides, and what keeps them from being
  /// compared.
  Status match() {
    std::vector<std::string> other_kind;
    DSAKIT_TRY(missing(got_, want_));
    DSAKIT_TRY(missing(want_, got_));
    for (const auto& [name, got] : got_.tensors()) {
      const auto found = want_.tensors().find(name);
      if (found == want_.tensors().end()) continue;
      const Entry& want = found->second;
      const auto rule = rule_of(name);
      DSAKIT_TRY(rule);
      if (got.dtype != want.dtype || got.shape != want.shape) other_kind.push_back(name);
      pairs_.push_back({name, &got, &want, *rule});
      bytes_ += bytes_of(got);
    }
    if (other_kind.empty()) return {};
    const Entry& got = got_.tensors().at(other_kind.front());
    const Entry& want = want_.tensors().at(other_kind.front());
    return bad_input(options_.got + " and " + options_.want + ": tensor " + first_of(other_kind) +
                     ": found " + describe(got) + " and " + describe(want) + ", want the same");
  }

  Result<const Rule*> rule_of(const std::string& tensor) {
    const auto rule = rules_.find(kTensors, tensor, name(Producer::Kind::recorded));
    if (rule && (*rule)->gate != Gate::exact)
      return bad_input("rule \"" + (*rule)->match + "\" of " + std::string(kTensors) +
                       ": found gate '" + std::string(name((*rule)->gate)) +
                       "', want exact: no reference derives another");
    return rule;
  }

  Status missing(const TensorFile& there, const TensorFile& here) {
    std::vector<std::string> names;
    for (const auto& [name, entry] : there.tensors())
      if (!here.tensors().contains(name)) names.push_back(name);
    if (!names.empty() && !options_.allow_missing)
      return bad_input(here.path() + ": has no tensor " + first_of(names) +
                       ", want it on both sides (--allow-missing skips it)");
    for (const std::string& name : names) {
      ReportLine line = line_of(name);
      line.verdict = Verdict::skipped;
      line.reason = here.path() + ": has no tensor " + in_quotes(name);
      report_.lines.push_back(std::move(line));
    }
    return {};
  }

  Status compare(const Pair& pair) {
    ExactFold fold(pair.got->dtype, pair.got->shape);
    const Status read = read_both(pair, [&](Bytes got, Bytes want) {
      fold.add(got, want);
      done_ += static_cast<double>(got.size());
      if (options_.progress) options_.progress(done_ / bytes_, pair.name);
    });
    if (read.code() == Code::interrupted) return {}; // half a tensor is no line
    DSAKIT_TRY(read);
    report_.lines.push_back(judged(pair, fold));
    return {};
  }

  /// Calls `compare` with pieces of both payloads, front to back. A recording can only push its
  /// payload, so it leads where there is one.
  template <class Visit>
  Status read_both(const Pair& pair, Visit visit) const {
    const bool want_leads = want_.is_recording();
    const TensorFile& leading = want_leads ? want_ : got_;
    const TensorFile& other = want_leads ? got_ : want_;
    const BlockSource pull = other.source(want_leads ? *pair.got : *pair.want);
    std::vector<std::byte> piece(kPiece);
    return leading.stream(want_leads ? *pair.want : *pair.got, [&](Bytes block) -> Status {
      for (; !block.empty(); block = block.subspan(piece.size())) {
        if (interrupted()) return {Code::interrupted, "interrupted"};
        piece.resize(std::min(kPiece, block.size()));
        DSAKIT_TRY(pull(piece));
        const Bytes led = block.first(piece.size());
        visit(want_leads ? Bytes(piece) : led, want_leads ? led : Bytes(piece));
      }
      return {};
    });
  }

  ReportLine judged(const Pair& pair, ExactFold& fold) {
    const Comparison comparison = fold.finish();
    const Shape& shape = pair.want->shape;
    std::vector<Axis> axes;
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
      axes.push_back({.name = "axis " + std::to_string(axis)});
    ReportLine line = line_of(pair.name);
    fill(line, {pair.rule->gate, pair.rule->limits, comparison, pair.want->dtype, shape, axes});
    line.why = pair.rule->why;
    line.samples = fold.samples();
    if (!line.samples.empty()) {
      line.got = line.samples.front().got;
      line.want = line.samples.front().want;
    }
    if (line.verdict == Verdict::fail) line.tightest_gate = tightest_gate(comparison);
    line.reproduce = compare_command(options_);
    rules_.waivers.apply(line);
    return line;
  }

  static constexpr std::size_t kPiece = 1 << 20; // fits a cache, and is whole elements

  const CompareOptions& options_;
  Rules& rules_;
  TensorFile got_;
  TensorFile want_;
  std::vector<Pair> pairs_;
  double bytes_ = 0;
  double done_ = 0;
  Report report_;
};

} // namespace

Result<Report> compare_tensors(const CompareOptions& options, Rules& rules) {
  auto got = TensorFile::open(options.got);
  DSAKIT_TRY(got);
  auto want = TensorFile::open(options.want);
  DSAKIT_TRY(want);
  std::vector<char> used(options.maps.size());
  DSAKIT_TRY(want->rename(options.maps, used));
  return CompareTensors(options, rules, std::move(*got), std::move(*want)).run();
}

} // namespace dsakit::harness
