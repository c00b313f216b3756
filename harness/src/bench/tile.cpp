// Recorded problems, and more rows out of them.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>

#include "../recording/text.hpp"
#include "../replay/files.hpp"
#include "../replay/names.hpp"
#include "../replay/sample_rows.hpp"
#include "problem.hpp"

namespace dsakit::harness {
namespace {

/// What the ids of a tensor count, so that a repetition can have its own.
enum class IdKind : std::uint8_t { none, pages, slots, requests, gathered };

IdKind id_kind_of(const std::string& tensor) {
  if (tensor == "block_table") return IdKind::pages;
  if (tensor == "slots" || tensor == "compact_slots" || tensor == "slot_mapping")
    return IdKind::slots;
  if (tensor == "row_request") return IdKind::requests;
  if (tensor == "cu_seq_lens") return IdKind::gathered;
  return IdKind::none;
}

/// Rows of a gather.
bool repeats_rows(const std::string& tensor) {
  return tensor.starts_with("k_");
}

/// Tensors that are whole pages, requests or tokens, which every repetition brings along.
bool repeats(const std::string& operation, const std::string& tensor) {
  if (tensor == "index_cache" || tensor == "mla_cache" || tensor == "block_table") return true;
  if (operation == "index_cache_gather") return repeats_rows(tensor);
  return (operation == "index_cache_write" || operation == "mla_cache_write") &&
         (tensor == "index_k" || tensor == "kv_c" || tensor == "k_pe" || tensor == "slot_mapping");
}

/// `count` times the whole tensor, one after the other along its first axis.
Tensor repeated(const Tensor& tensor, std::int64_t count) {
  Shape shape = tensor.shape;
  shape[0] *= count;
  Tensor result(tensor.dtype, std::move(shape));
  for (std::int64_t i = 0; i < count; ++i)
    std::copy(tensor.bytes.begin(), tensor.bytes.end(),
              result.bytes.begin() + i * std::ssize(tensor.bytes));
  return result;
}

/// What one repetition moves ids by; of the second twice as much.
struct Steps {
  std::int64_t pages = 0, slots = 0, requests = 0, gathered = 0;

  std::int64_t of(IdKind ids) const {
    switch (ids) {
    case IdKind::pages:
      return pages;
    case IdKind::slots:
      return slots;
    case IdKind::requests:
      return requests;
    case IdKind::gathered:
      return gathered;
    case IdKind::none:
      break;
    }
    return 0;
  }
};

/// Ids that are not negative move by `step` for each `of_one` elements. False where one leaves Int.
template <class Int>
bool rebase(Tensor& tensor, std::int64_t of_one, std::int64_t step) {
  Int* ids = tensor.as<Int>();
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    if (ids[i] < 0) continue;
    const std::int64_t moved = ids[i] + i / of_one * step;
    if (moved > std::numeric_limits<Int>::max()) return false;
    ids[i] = static_cast<Int>(moved);
  }
  return true;
}

class Tiler {
public:
  Tiler(BenchProblem& problem, std::int64_t rows)
      : problem_(problem), operation_(problem.data().operation()), rows_(rows) {}

  Status run() {
    const std::int64_t recorded = recorded_rows();
    if (recorded == 0)
      return bad_input(problem_.id.operation + ": found no row to tile to " +
                       std::to_string(rows_));
    count_ = (rows_ + recorded - 1) / recorded;
    double bytes = 0;
    for (const auto* side : {&problem_.tensors.inputs, &problem_.tensors.outputs})
      for (const auto& [name, tensor] : *side)
        bytes += static_cast<double>(tensor.tensor.bytes.size()) * static_cast<double>(count_);
    DSAKIT_TRY(
        check_memory(problem_.id.operation + ": --tile rows=" + std::to_string(rows_), bytes));
    DSAKIT_TRY(name_requests(recorded));
    cut_spare_rows();
    find_steps();
    for (auto* side : {&problem_.tensors.inputs, &problem_.tensors.outputs})
      for (auto& [name, tensor] : *side)
        DSAKIT_TRY(tile_tensor(output_of(name, tensor.attributes), tensor.tensor));
    return {};
  }

private:
  std::int64_t recorded_rows() const {
    if (const auto rows = independent_rows(problem_.tensors, operation_); rows > 0) return rows;
    if (const auto tokens = problem_.tensors.inputs.find("slot_mapping");
        tokens != problem_.tensors.inputs.end())
      return tokens->second.tensor.shape[0];
    return problem_.tensors.outputs.begin()->second.tensor.shape[0];
  }

  /// A recording may say the requests of its rows by their order, which tiling would break.
  Status name_requests(std::int64_t recorded) {
    if (problem_.id.operation != "index_logits_decode") return {};
    std::vector<std::int64_t> all(static_cast<std::size_t>(recorded));
    std::iota(all.begin(), all.end(), 0);
    auto named = keep_rows(problem_.tensors, operation_, all);
    DSAKIT_TRY(named);
    problem_.tensors = std::move(*named);
    return {};
  }

  static void cut(Tensor& tensor, std::int64_t rows) {
    if (tensor.shape[0] <= rows) return;
    tensor.bytes.resize(tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]) *
                        static_cast<std::size_t>(rows));
    tensor.shape[0] = rows;
  }

  /// Keys behind the last token, and rows behind the last request of a gather, belong to none, and
  /// would shift those of the next repetition.
  void cut_spare_rows() {
    auto& inputs = problem_.tensors.inputs;
    if (const auto mapping = inputs.find("slot_mapping"); mapping != inputs.end())
      for (const char* name : {"index_k", "kv_c", "k_pe"})
        if (const auto keys = inputs.find(name); keys != inputs.end())
          cut(keys->second.tensor, mapping->second.tensor.shape[0]);
    const auto lens = inputs.find("cu_seq_lens");
    if (lens == inputs.end()) return;
    const Tensor& ends = lens->second.tensor;
    for (auto* side : {&inputs, &problem_.tensors.outputs})
      for (auto& [name, recorded] : *side)
        if (name == "row_request" || repeats_rows(output_of(name, recorded.attributes)))
          cut(recorded.tensor, ends.as<std::int32_t>()[ends.elements() - 1]);
  }

  void find_steps() {
    const auto& inputs = problem_.tensors.inputs;
    const auto page_size = problem_.contract.find("page_size");
    const std::int64_t size = page_size == problem_.contract.end()
                                  ? 1
                                  : std::strtoll(page_size->second.c_str(), nullptr, 10);
    for (const char* cache : {"index_cache", "mla_cache"})
      if (const auto found = inputs.find(cache); found != inputs.end()) {
        steps_.pages = found->second.tensor.shape[0];
        steps_.slots =
            steps_.pages *
            (found->second.tensor.shape.size() == 3 ? found->second.tensor.shape[1] : size);
      }
    if (const auto table = inputs.find("block_table"); table != inputs.end())
      steps_.requests = table->second.tensor.shape[0];
    if (const auto lens = inputs.find("cu_seq_lens"); lens != inputs.end())
      steps_.gathered = problem_.tensors.outputs.begin()->second.tensor.shape[0];
    if (problem_.id.operation == "topk_slots") find_table_steps();
  }

  /// topk_slots has no cache: its pages are those that its table names.
  void find_table_steps() {
    const Tensor& table = problem_.tensors.inputs.at("block_table").tensor;
    const auto* ids = table.as<std::int32_t>();
    for (std::int64_t i = 0; i < table.elements(); ++i)
      steps_.pages = std::max<std::int64_t>(steps_.pages, ids[i] + 1);
  }

  Status tile_tensor(const std::string& name, Tensor& tensor) {
    const IdKind ids = id_kind_of(name);
    if (name == "cu_seq_lens") return tile_lengths(tensor);
    if (const auto axis = row_axis(operation_, name)) {
      const std::int64_t recorded = tensor.shape[*axis];
      std::vector<std::int64_t> rows(static_cast<std::size_t>(rows_));
      for (std::int64_t i = 0; i < rows_; ++i)
        rows[static_cast<std::size_t>(i)] = i % recorded;
      tensor = of_axis(tensor, *axis, rows);
      return move(name, ids, tensor, tensor.elements() / rows_ * recorded);
    }
    if (!repeats(problem_.id.operation, name) && name != "row_request") return {};
    const std::int64_t of_one = tensor.elements();
    tensor = repeated(tensor, count_);
    return move(name, ids, tensor, of_one);
  }

  Status move(const std::string& name, IdKind ids, Tensor& tensor, std::int64_t of_one) const {
    if (ids == IdKind::none || of_one == 0) return {};
    const bool fits = tensor.dtype == Dtype::int64
                          ? rebase<std::int64_t>(tensor, of_one, steps_.of(ids))
                          : rebase<std::int32_t>(tensor, of_one, steps_.of(ids));
    if (fits) return {};
    return bad_input(problem_.id.operation + ": --tile rows=" + std::to_string(rows_) + ": " +
                     name + " would leave int32, want fewer rows");
  }

  /// [requests + 1]: the ends of each repetition behind those of the one before.
  Status tile_lengths(Tensor& tensor) const {
    const std::vector<std::int32_t> once(tensor.as<std::int32_t>(),
                                         tensor.as<std::int32_t>() + tensor.elements());
    const std::int64_t requests = std::ssize(once) - 1;
    if (once.back() != steps_.gathered) // fewer rows than tokens
      return bad_input(problem_.id.operation + ": --tile: found " +
                       std::to_string(steps_.gathered) + " gathered rows of " +
                       std::to_string(once.back()) + " tokens, want as many");
    if (steps_.gathered * count_ > std::numeric_limits<std::int32_t>::max())
      return bad_input(problem_.id.operation + ": --tile rows=" + std::to_string(rows_) +
                       ": cu_seq_lens would leave int32, want fewer rows");
    tensor = Tensor(Dtype::int32, {requests * count_ + 1});
    for (std::int64_t i = 0; i < tensor.elements(); ++i)
      tensor.as<std::int32_t>()[i] = static_cast<std::int32_t>(
          once[static_cast<std::size_t>(i % requests)] + i / requests * steps_.gathered);
    return {};
  }

  BenchProblem& problem_;
  const Operation& operation_;
  std::int64_t rows_;
  std::int64_t count_ = 1;
  Steps steps_;
};

double available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (line.starts_with("MemAvailable:")) return 1024 * std::strtod(line.c_str() + 13, nullptr);
  return 8e9;
}

/// What --contract puts in the place of recorded values of outputs.
void override_outputs(BenchProblem& problem, const std::vector<ContractOverride>& overrides) {
  for (const ContractOverride& o : overrides) {
    for (auto& [name, output] : problem.tensors.outputs)
      if (output.attributes.contains(o.key) &&
          (o.tensor.empty() || o.tensor == name || o.tensor == output_of(name, output.attributes)))
        output.attributes[o.key] = o.value;
  }
}

Result<BenchProblem> read_problem(const BenchRequest& request,
                                  const std::vector<ContractOverride>& overrides) {
  const auto reader = RecordingReader::open(request.recording);
  DSAKIT_TRY(reader);
  BenchProblem problem;
  problem.id = {request.step, request.operation};
  problem.contract = reader->contract(request.step);
  problem.config = reader->config();
  problem.recorded = true;
  DSAKIT_TRY(
      check_memory(request.recording + ": " + request.operation, bytes_of(*reader, problem.id)));
  for (const ContractOverride& o : overrides)
    if (problem.contract.contains(o.key)) problem.contract[o.key] = o.value;
  auto tensors = reader->read(problem.id, problem.contract);
  DSAKIT_TRY(tensors);
  problem.tensors = std::move(*tensors);
  override_outputs(problem, overrides);
  for (const auto& [name, output] : problem.tensors.outputs) // several: the first one's
    if (output.attributes.contains("mla_scale_read"))
      problem.contract.emplace("mla_scale_read", output.attributes.at("mla_scale_read"));
  problem.dims = dims_of(request);
  return problem;
}

} // namespace

Status check_memory(const std::string& what, double bytes) {
  // The tensors, their copy on the way to the device, and what the gate needs.
  const double room = available_bytes() / 3;
  if (bytes <= room) return {};
  char text[80];
  std::snprintf(text, sizeof text, ": found tensors of %.1f GB, want at most %.1f GB here",
                bytes * 1e-9, room * 1e-9);
  return unsupported(what + text);
}

BenchDims dims_of(const BenchRequest& request) {
  BenchDims dims = request.shape;
  if (request.recording.empty()) return dims;
  dims["recording"] = request.recording.substr(request.recording.rfind('/') + 1);
  if (request.step != 0) dims["step"] = std::to_string(request.step);
  if (request.tile > 0) dims["tile"] = std::to_string(request.tile);
  return dims;
}

Status tile(BenchProblem& problem, std::int64_t rows) {
  return Tiler(problem, rows).run();
}

Status check_problem(const BenchRequest& request, const BenchOptions& options) {
  const auto problem =
      generate(request.operation, request.shape, options.overrides, options.seed, false);
  return problem || problem.status().code() != Code::bad_input ? Status{} : problem.status();
}

Result<BenchProblem> make_problem(const BenchRequest& request, const BenchOptions& options) {
  auto problem = request.recording.empty()
                     ? generate(request.operation, request.shape, options.overrides, options.seed)
                     : read_problem(request, options.overrides);
  DSAKIT_TRY(problem);
  if (request.tile > 0) DSAKIT_TRY(tile(*problem, request.tile));
  const auto of_outputs = split_names(problem->data().operation().output_attributes);
  for (const ContractOverride& o : options.overrides) // one that it has no key for is another's
    if (problem->contract.contains(o.key) ||
        std::find(of_outputs.begin(), of_outputs.end(), o.key) != of_outputs.end())
      problem->dims["contract." + o.key] = o.value;
  return problem;
}

} // namespace dsakit::harness
