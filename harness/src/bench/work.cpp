#include "work.hpp"

#include <algorithm>
#include <cstdio>
#include <set>

#include "../replay/names.hpp"

namespace dsakit::harness {
namespace {

constexpr double kHeadDim = 128, kMlaQuery = 576, kMlaLatent = 512, kMlaRecord = 656;

/// Terms of a sum, as a number and as it was counted.
class Sum {
public:
  void add(const std::string& what, double count, double each) {
    total_ += count * each;
    char text[160];
    std::snprintf(text, sizeof text, "%s%s %.0f x %.0f", formula_.empty() ? "" : " + ",
                  what.c_str(), count, each);
    formula_ += text;
  }
  void add(const std::string& what, const Tensor& tensor) {
    add(what, static_cast<double>(tensor.elements()), static_cast<double>(size_of(tensor.dtype)));
  }

  double total() const { return total_; }
  std::string formula(const char* unit) const {
    char text[64];
    std::snprintf(text, sizeof text, " = %.4g %s", total_, unit);
    return formula_.empty() ? "none" : formula_ + text;
  }

private:
  double total_ = 0;
  std::string formula_;
};

double positive(const Tensor& lengths) {
  double sum = 0;
  for (std::int64_t i = 0; i < lengths.elements(); ++i)
    sum += std::max(lengths.as<std::int32_t>()[i], 0);
  return sum;
}

double valid(const Tensor& ids) {
  double count = 0;
  for (std::int64_t i = 0; i < ids.elements(); ++i)
    count +=
        ids.dtype == Dtype::int64 ? ids.as<std::int64_t>()[i] >= 0 : ids.as<std::int32_t>()[i] >= 0;
  return count;
}

/// Rows of logits times the keys in their windows.
double scored(const BenchProblem& problem) {
  const auto& inputs = problem.tensors.inputs;
  if (problem.id.operation != "index_logits_prefill") return positive(inputs.at("row_lens").tensor);
  const auto* ks = inputs.at("ks").tensor.as<std::int32_t>();
  const auto* ke = inputs.at("ke").tensor.as<std::int32_t>();
  double sum = 0;
  for (std::int64_t row = 0; row < inputs.at("ks").tensor.elements(); ++row)
    sum += std::max(ke[row] - std::max(ks[row], 0), 0);
  return sum;
}

/// Keys of all requests: the longest row of each.
double keys_of_requests(const BenchProblem& problem) {
  const auto& inputs = problem.tensors.inputs;
  const Tensor& lens = inputs.at("row_lens").tensor;
  const std::int64_t requests = inputs.at("block_table").tensor.shape[0];
  const auto named = inputs.find("row_request");
  std::vector<double> longest(static_cast<std::size_t>(requests));
  for (std::int64_t row = 0; row < lens.elements(); ++row) {
    const std::int64_t request = named != inputs.end()
                                     ? named->second.tensor.as<std::int32_t>()[row]
                                     : row * requests / lens.elements();
    if (request < 0 || request >= requests) continue;
    auto& most = longest[static_cast<std::size_t>(request)];
    most = std::max<double>(most, lens.as<std::int32_t>()[row]);
  }
  double sum = 0;
  for (const double keys : longest)
    sum += keys;
  return sum;
}

double index_record(const BenchProblem& problem) {
  return problem.data().operation().format == "mxfp4" ? 68 : 132;
}

/// True where a cache or logits are counted by what is touched of them.
bool add_touched(Sum& sum, const BenchProblem& problem, const std::string& name, bool output) {
  const std::string& op = problem.id.operation;
  if (name == "logits") {
    sum.add("logits inside their rows", scored(problem), 4);
  } else if (name == "index_cache" && op == "index_logits_decode") {
    sum.add("keys", keys_of_requests(problem), index_record(problem));
  } else if (name == "index_cache" && op == "index_cache_gather") {
    sum.add("keys", static_cast<double>(problem.tensors.outputs.begin()->second.tensor.shape[0]),
            index_record(problem));
  } else if (name == "mla_cache" && op == "sparse_attention") {
    const Tensor& cache = problem.tensors.inputs.at("mla_cache").tensor;
    sum.add("selected records, none twice in a row",
            valid(problem.tensors.inputs.at("slots").tensor),
            cache.shape.size() == 3 ? kMlaRecord : 2 * kMlaQuery);
  } else if (name == "index_cache" || name == "mla_cache") { // written
    if (output)
      sum.add("records", valid(problem.tensors.inputs.at("slot_mapping").tensor),
              name == "mla_cache" ? kMlaRecord : index_record(problem));
  } else {
    return false;
  }
  return true;
}

double last_extent(const Tensor& tensor) {
  return static_cast<double>(tensor.shape.back());
}

Sum flops_of(const BenchProblem& problem) {
  const auto& inputs = problem.tensors.inputs;
  const std::string& op = problem.id.operation;
  Sum sum;
  if (op == "index_logits_prefill" || op == "index_logits_decode") {
    const auto q = inputs.contains("index_q_fp8") ? "index_q_fp8" : "index_q_packed";
    sum.add("scores times heads",
            scored(problem) * static_cast<double>(inputs.at(q).tensor.shape[1]), 2 * kHeadDim);
  } else if (op == "sparse_attention") {
    sum.add("selected records times heads",
            valid(inputs.at("slots").tensor) *
                static_cast<double>(inputs.at("mla_query").tensor.shape[1]),
            2 * (kMlaQuery + kMlaLatent));
  } else if (op == "absorb_q" || op == "absorb_v") {
    const Tensor& x = inputs.at(op == "absorb_q" ? "q" : "latent").tensor;
    const Tensor& weight = inputs.at("weight").tensor;
    // Half of the rows of kv_b_proj are this product's.
    sum.add("rows", static_cast<double>(x.shape[0]),
            static_cast<double>(weight.shape[0]) * last_extent(weight));
  } else if (const auto weight = inputs.find("weight"); weight != inputs.end()) {
    const Tensor& y = problem.tensors.outputs.begin()->second.tensor;
    sum.add("outputs", static_cast<double>(y.elements()), 2 * last_extent(weight->second.tensor));
  }
  return sum;
}

/// Rates of one device: GB/s, and TFLOP/s of its matrix units; 0: it has none of that kind.
struct KnownDevice {
  std::string_view part; ///< of its description
  std::string_view source;
  double GBps, bf16, fp8, fp4;
};

// Measured: docs/bench.md says how. Datasheet: dense peaks, which no kernel reaches.
constexpr KnownDevice kKnownDevices[] = {
    {"H200", "H200, measured", 4210, 747, 1303, 0},
    {"MI300X", "MI300X, datasheet", 5300, 1307, 2615, 0},
    {"MI355X", "MI355X, datasheet", 8000, 2517, 5033, 10066},
};

/// The matrix rate that the operation's operands run at.
std::pair<std::string, double> matrix_rate(const BenchProblem& problem, const KnownDevice& device) {
  const bool logits = problem.id.operation.starts_with("index_logits");
  if (!logits) return {"bf16", device.bf16};
  if (problem.data().operation().format == "mxfp4" && device.fp4 > 0) return {"fp4", device.fp4};
  return {"fp8", device.fp8};
}

} // namespace

BenchWork work_of(const BenchProblem& problem) {
  Sum bytes;
  for (const auto& [name, recorded] : problem.tensors.inputs)
    if (!add_touched(bytes, problem, name, false)) bytes.add(name, recorded.tensor);
  std::set<std::string> counted; // of several producers one
  for (const auto& [tensor, recorded] : problem.tensors.outputs)
    if (const std::string name = output_of(tensor, recorded.attributes);
        counted.insert(name).second && !add_touched(bytes, problem, name, true))
      bytes.add(name, recorded.tensor);
  const Sum flops = flops_of(problem);
  return {bytes.total(), flops.total(), bytes.formula("B"), flops.formula("FLOP")};
}

std::optional<BenchLimit> limit_of(const BenchProblem& problem, const BenchWork& work,
                                   const std::string& device) {
  for (const KnownDevice& known : kKnownDevices) {
    if (device.find(known.part) == std::string::npos) continue;
    const auto [matrix, rate] = matrix_rate(problem, known);
    const double copy_us = work.bytes / known.GBps * 1e-3;
    const double matrix_us = rate > 0 ? work.flops / rate * 1e-6 : 0;
    const std::string source(known.source);
    if (matrix_us > copy_us) return BenchLimit{source + " " + matrix, true, rate, matrix_us};
    return BenchLimit{source + " copy", false, known.GBps, copy_us};
  }
  return std::nullopt;
}

} // namespace dsakit::harness
