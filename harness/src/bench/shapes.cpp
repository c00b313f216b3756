// Dimensions of problems by shape, and how they are written.
#include <algorithm>
#include <charconv>
#include <regex>
#include <set>
#include <sstream>

#include "../import/json.hpp"
#include "../recording/text.hpp"
#include "problem.hpp"
#include "report_json.hpp"

namespace dsakit::harness {
namespace {

/// `values`: a number > 0 is the default, else the texts that it may be, the default first.
struct Dimension {
  std::string_view operation, name, values;
};

constexpr std::string_view kFormats = "fp8|mxfp4";

constexpr Dimension kDimensions[] = {
    {"qkv_a_proj", "rows", "64"},
    {"qkv_a_proj", "in", "7168"},
    {"qkv_a_proj", "out", "2112"},
    {"q_norm", "rows", "64"},
    {"q_norm", "dim", "1536"},
    {"q_b_proj", "rows", "64"},
    {"q_b_proj", "heads", "64"},
    {"q_b_proj", "in", "1536"},
    {"kv_norm", "rows", "64"},
    {"kv_norm", "dim", "512"},
    {"index_q_proj", "rows", "64"},
    {"index_q_proj", "heads", "32"},
    {"index_q_proj", "in", "1536"},
    {"index_k_proj", "rows", "64"},
    {"index_k_proj", "in", "7168"},
    {"index_w_proj", "rows", "64"},
    {"index_w_proj", "heads", "32"},
    {"index_w_proj", "in", "7168"},
    {"index_query_quant", "rows", "64"},
    {"index_query_quant", "heads", "32"},
    {"index_query_quant", "format", kFormats},
    {"index_weights_fold", "rows", "64"},
    {"index_weights_fold", "heads", "32"},
    {"index_key_norm", "tokens", "64"},
    {"index_cache_write", "tokens", "64"},
    {"index_cache_write", "format", kFormats},
    {"index_cache_gather", "requests", "1"},
    {"index_cache_gather", "context", "32768"},
    {"index_cache_gather", "format", kFormats},
    {"index_logits_prefill", "rows", "4096"},
    {"index_logits_prefill", "keys", "32768"},
    {"index_logits_prefill", "heads", "32"},
    {"index_logits_prefill", "format", kFormats},
    {"index_logits_decode", "requests", "64"},
    {"index_logits_decode", "context", "32768"},
    {"index_logits_decode", "next_n", "1"},
    {"index_logits_decode", "heads", "32"},
    {"index_logits_decode", "lengths", "even|uneven"},
    {"index_logits_decode", "format", kFormats},
    {"topk", "rows", "64"},
    {"topk", "keys", "32768"},
    {"topk", "k", "2048"},
    {"topk", "input", "normal|narrow|constant|huge|sparse|inf_tail|sorted"},
    {"dcp_topk_merge", "ranks", "8"},
    {"dcp_topk_merge", "rows", "64"},
    {"dcp_topk_merge", "k", "2048"},
    {"mla_cache_write", "tokens", "64"},
    {"topk_slots", "rows", "64"},
    {"topk_slots", "requests", "1"},
    {"topk_slots", "context", "32768"},
    {"topk_slots", "k", "2048"},
    {"topk_slots", "sets", "random|sorted|shared|local"},
    {"absorb_q", "rows", "64"},
    {"absorb_q", "heads", "64"},
    {"sparse_attention", "rows", "64"},
    {"sparse_attention", "requests", "1"},
    {"sparse_attention", "context", "32768"},
    {"sparse_attention", "heads", "64"},
    {"sparse_attention", "k", "2048"},
    {"sparse_attention", "sets", "random|sorted|shared|local"},
    {"dcp_attention_merge", "ranks", "8"},
    {"dcp_attention_merge", "rows", "64"},
    {"dcp_attention_merge", "heads", "64"},
    {"absorb_v", "rows", "64"},
    {"absorb_v", "heads", "64"},
    {"gate_proj", "rows", "64"},
    {"gate_proj", "in", "7168"},
    {"gate_proj", "out", "8192"},
    {"output_gate", "rows", "64"},
    {"output_gate", "dim", "8192"},
    {"o_proj", "rows", "64"},
    {"o_proj", "in", "8192"},
    {"o_proj", "out", "7168"},
};

bool is_number_rule(std::string_view values) {
  return values.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<std::string> alternatives(std::string_view values) {
  std::vector<std::string> list;
  std::istringstream in{std::string(values)};
  for (std::string one; std::getline(in, one, '|');)
    list.push_back(one);
  return list;
}

Status check_value(const Dimension& dimension, const std::string& value) {
  const std::string what = std::string(dimension.operation) + ": " + std::string(dimension.name);
  if (!is_number_rule(dimension.values)) {
    const auto known = alternatives(dimension.values);
    if (std::find(known.begin(), known.end(), value) != known.end()) return {};
    return bad_input(what + ": found " + in_quotes(value) + ", want " +
                     std::string(dimension.values));
  }
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < 1 ||
      number > (std::int64_t{1} << 30))
    return bad_input(what + ": found " + in_quotes(value) + ", want a whole number from 1 to 2^30");
  return {};
}

/// Whether REGEX matches the whole name; "" matches all. bad_input for what is no regex.
Result<std::function<bool(const std::string&)>> matcher(const std::string& regex) {
  if (regex.empty()) return std::function([](const std::string&) { return true; });
  if (regex.size() > 1000)
    return bad_input("--op: found a pattern of " + std::to_string(regex.size()) +
                     " bytes, want at most 1000");
  try {
    return std::function([pattern = std::regex(regex)](const std::string& name) {
      return std::regex_match(name, pattern);
    });
  } catch (const std::regex_error& error) {
    return bad_input("--op: found " + in_quotes(regex) +
                     ", want a regular expression: " + error.what());
  }
}

std::vector<std::string> benchable_operations() {
  std::vector<std::string> names;
  for (const Dimension& dimension : kDimensions)
    if (names.empty() || names.back() != dimension.operation)
      names.emplace_back(dimension.operation);
  return names;
}

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words)
    text += (text.empty() ? "" : ", ") + word;
  return text;
}

Status no_such_operation(const std::string& regex) {
  return bad_input("--op: " + in_quotes(regex) + " matches no operation, want one of " +
                   listed(benchable_operations()));
}

/// "rows=64,k=2048"
Result<BenchDims> parse_shape(const std::string& text) {
  BenchDims shape;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const auto equals = item.find('=');
    if (equals == 0 || equals == std::string::npos)
      return bad_input("--shape: found " + in_quotes(item) + ", want KEY=VALUE[,KEY=VALUE...]");
    if (!shape.emplace(item.substr(0, equals), item.substr(equals + 1)).second)
      return bad_input("--shape: found " + in_quotes(item.substr(0, equals)) + " twice, want once");
  }
  return shape;
}

/// A value of an axes file as the text of a dimension.
Result<std::string> axis_value(const std::string& where, const nlohmann::json& value) {
  if (value.is_number_integer()) return value.dump();
  if (value.is_string()) return value.get<std::string>();
  return bad_input(where + ": found " + value.dump().substr(0, 40) +
                   ", want a whole number, a text or a list of them");
}

/// Appends every combination of the lists in `shape`.
Status multiply_out(const std::string& where, const std::string& operation,
                    const nlohmann::json& shape, std::vector<BenchRequest>& requests) {
  std::vector<BenchDims> all = {{}};
  for (const auto& [name, values] : shape.items()) {
    const auto list = values.is_array() ? values : nlohmann::json::array({values});
    if (list.empty()) return bad_input(where + ": " + name + ": found [], want a value");
    std::vector<BenchDims> more;
    for (const BenchDims& dims : all)
      for (const auto& value : list) {
        const auto text = axis_value(where + ": " + name, value);
        DSAKIT_TRY(text);
        more.push_back(dims);
        more.back()[name] = *text;
        if (more.size() > 10000)
          return bad_input(where + ": found more than 10000 problems, want at most 10000");
      }
    all = std::move(more);
  }
  for (BenchDims& dims : all) {
    auto complete = complete_shape(operation, dims);
    if (!complete) return bad_input(where + ": " + complete.status().what());
    requests.push_back({operation, std::move(*complete), "", 0, 0});
  }
  return {};
}

} // namespace

std::vector<std::string> shape_help() {
  std::vector<std::string> lines;
  for (const std::string& operation : benchable_operations()) {
    std::string line = operation + ":";
    for (const Dimension& dimension : kDimensions)
      if (dimension.operation == operation)
        line += " " + std::string(dimension.name) + "=" + std::string(dimension.values);
    lines.push_back(std::move(line));
  }
  return lines;
}

Result<BenchDims> complete_shape(const std::string& operation, const BenchDims& shape) {
  BenchDims complete;
  std::string known;
  for (const Dimension& dimension : kDimensions) {
    if (dimension.operation != operation) continue;
    const std::string name(dimension.name);
    known += (known.empty() ? "" : ", ") + name;
    const auto given = shape.find(name);
    if (given != shape.end()) DSAKIT_TRY(check_value(dimension, given->second));
    complete[name] = given != shape.end() ? given->second : alternatives(dimension.values).front();
  }
  if (known.empty())
    return bad_input("operation: found " + in_quotes(operation) + ", want one of " +
                     listed(benchable_operations()));
  for (const auto& [name, value] : shape)
    if (!complete.contains(name))
      return bad_input(operation + ": found dimension " + in_quotes(name) + ", want " + known);
  return complete;
}

Result<std::vector<BenchRequest>> requests_by_shape(const std::string& operation,
                                                    const std::string& shape) {
  const auto matches = matcher(operation);
  DSAKIT_TRY(matches);
  const auto dims = parse_shape(shape);
  DSAKIT_TRY(dims);
  std::vector<BenchRequest> requests;
  for (const std::string& name : benchable_operations()) {
    if (!(*matches)(name)) continue;
    auto complete = complete_shape(name, *dims);
    DSAKIT_TRY(complete);
    requests.push_back({name, std::move(*complete), "", 0, 0});
  }
  if (requests.empty()) return no_such_operation(operation);
  return requests;
}

Result<std::vector<BenchRequest>>
requests_of_recording(const std::string& path, const std::string& operation, std::int64_t tile) {
  const auto matches = matcher(operation);
  DSAKIT_TRY(matches);
  const auto reader = RecordingReader::open(path);
  DSAKIT_TRY(reader);
  std::vector<BenchRequest> requests;
  std::vector<std::string> known;
  for (const OperationId& id : reader->operations()) {
    if (!find_adapter(id.operation)) continue;
    known.push_back(id.operation);
    if ((*matches)(id.operation)) requests.push_back({id.operation, {}, path, id.step, tile});
  }
  if (!requests.empty()) return requests;
  if (std::none_of(std::begin(kOperations), std::end(kOperations),
                   [&](const Operation& one) { return (*matches)(std::string(one.name)); }))
    return no_such_operation(operation);
  return Status(Code::no_device, path + ": holds no operation " + in_quotes(operation) + ", but " +
                                     (known.empty() ? "none that has a kernel" : listed(known)));
}

Result<std::vector<BenchRequest>> requests_of_axes(const std::string& path,
                                                   const std::string& operation) {
  const auto matches = matcher(operation);
  DSAKIT_TRY(matches);
  const auto text = read_text_file(path);
  DSAKIT_TRY(text);
  const auto document = parse_json(path, *text, 8);
  DSAKIT_TRY(document);
  if (!document->is_object() || document->value("schema", nlohmann::json()) != "dsakit.axes/1")
    return bad_input(path + R"(: schema: found something else, want "dsakit.axes/1")");
  const auto problems = document->find("problems");
  if (problems == document->end() || !problems->is_array() || problems->empty())
    return bad_input(path + ": problems: found none, want a list of objects");
  std::vector<BenchRequest> requests;
  std::set<std::pair<std::string, BenchDims>> seen; // a row of a benchmark is known by its problem
  for (std::size_t i = 0; i < problems->size(); ++i) {
    const auto& problem = (*problems)[i];
    const std::string where = path + ": problems[" + std::to_string(i) + "]";
    if (!problem.is_object()) return bad_input(where + ": found no object, want one");
    for (const auto& [key, value] : problem.items())
      if (key != "operation" && key != "shape" && key != "why")
        return bad_input(where + ": found key " + in_quotes(key) + ", want operation, shape, why");
    const auto name = problem.find("operation");
    if (name == problem.end() || !name->is_string())
      return bad_input(where + ": operation: found none, want a name");
    const auto shape = problem.value("shape", nlohmann::json::object());
    if (!shape.is_object()) return bad_input(where + ": shape: found no object, want one");
    std::vector<BenchRequest> of_problem;
    DSAKIT_TRY(multiply_out(where, name->get<std::string>(), shape, of_problem));
    for (const BenchRequest& one : of_problem)
      if (!seen.emplace(one.operation, one.shape).second)
        return bad_input(where + ": found " + one.operation + " " + dims_text(one.shape) +
                         " twice, want it once");
    if ((*matches)(name->get<std::string>()))
      requests.insert(requests.end(), of_problem.begin(), of_problem.end());
  }
  if (requests.empty())
    return bad_input(path + ": --op " + in_quotes(operation) + " matches none of its operations");
  return requests;
}

} // namespace dsakit::harness
