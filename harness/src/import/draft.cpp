#include "draft.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "../recording/names.hpp"
#include "../recording/structure.hpp"
#include "../recording/text.hpp"
#include "dsakit/core/operations.hpp"

namespace dsakit::harness {
namespace {

/// Which axes become one where a file has more; of queries, also one head where it has no axis of
/// heads.
enum class Merge { none, leading, trailing, query };

struct CanonicalTensor {
  std::string_view name;
  std::string_view axes;
  Merge merge;
  bool bytes = false; ///< only where an element has one byte: MXFP4's scales, a group each, and
                      ///< fp8_ds_mla, whose dense rival has bf16
};

constexpr CanonicalTensor kCanonical[] = {
    {"attn_gated", "tokens,dim", Merge::none},
    {"attn_value", "tokens,dim", Merge::none},
    {"block_table", "requests,columns", Merge::none},
    {"column_origin", "rows", Merge::leading},
    {"compact_slots", "rows,columns", Merge::leading},
    {"corrected", "ranks,rows,heads,dim", Merge::none},
    {"counts", "rows", Merge::leading},
    {"cu_seq_lens", "bounds", Merge::none},
    {"dcp_scores", "rows,columns", Merge::leading},
    {"gate", "tokens,dim", Merge::none},
    {"hidden_states", "tokens,dim", Merge::none},
    {"index_cache", "pages,bytes", Merge::trailing},
    {"index_k", "tokens,dim", Merge::leading},
    {"index_k_raw", "tokens,dim", Merge::none},
    {"index_q", "rows,heads,dim", Merge::query},
    {"index_q_fp8", "rows,heads,dim", Merge::query},
    {"index_q_scale", "rows,heads,groups", Merge::query, true},
    {"index_q_scale", "rows,heads", Merge::none},
    {"index_q_input", "tokens,dim", Merge::none},
    {"index_q_packed", "rows,heads,bytes", Merge::query},
    {"index_weights", "rows,heads", Merge::leading},
    {"index_weights_folded", "rows,heads", Merge::leading},
    {"k_fp8", "rows,dim", Merge::leading},
    {"k_packed", "rows,bytes", Merge::leading},
    {"k_pe", "tokens,dim", Merge::none},
    {"k_scale", "rows,groups", Merge::leading, true},
    {"k_scale", "rows", Merge::leading},
    {"ke", "rows", Merge::leading},
    {"ks", "rows", Merge::leading},
    {"kv_c", "tokens,dim", Merge::none},
    {"kv_c_raw", "tokens,dim", Merge::none},
    {"latent", "rows,heads,dim", Merge::leading},
    {"logits", "rows,keys", Merge::leading},
    {"lse", "rows,heads", Merge::leading},
    {"mla_cache", "pages,tokens,bytes", Merge::none, true},
    {"mla_cache", "cached,dim", Merge::leading},
    {"mla_query", "rows,heads,dim", Merge::leading},
    {"norm_bias", "dim", Merge::none},
    {"norm_weight", "dim", Merge::none},
    {"output", "tokens,dim", Merge::none},
    {"q", "tokens,heads,dim", Merge::none},
    {"q_c_raw", "tokens,dim", Merge::none},
    {"qkv_a", "tokens,dim", Merge::none},
    {"rank_indices", "ranks,rows,columns", Merge::none},
    {"rank_latent", "ranks,rows,heads,dim", Merge::none},
    {"rank_lse", "ranks,rows,heads", Merge::none},
    {"rank_scores", "ranks,rows,columns", Merge::none},
    {"row_lens", "rows", Merge::leading},
    {"row_request", "rows", Merge::leading},
    {"slot_mapping", "tokens", Merge::leading},
    {"slots", "rows,columns", Merge::leading},
    {"topk_indices", "rows,columns", Merge::none},
    {"weight", "outputs,inputs", Merge::none},
};

const CanonicalTensor* find_canonical(std::string_view name, Dtype dtype) {
  for (const CanonicalTensor& known : kCanonical)
    if (known.name == name && (!known.bytes || size_of(dtype) == 1)) return &known;
  return nullptr;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

/// "rows,heads,dim" for a canonical tensor name, "axis0,..." for others.
std::vector<std::string> axis_names(std::string_view name, Dtype dtype, std::size_t rank) {
  if (const CanonicalTensor* known = find_canonical(name, dtype))
    if (auto axes = split(known->axes); axes.size() == rank) return axes;
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < rank; ++i)
    axes.push_back("axis" + std::to_string(i));
  return axes;
}

Shape canonical_shape(std::string_view name, Dtype dtype, Shape shape) {
  const CanonicalTensor* known = find_canonical(name, dtype);
  if (!known || known->merge == Merge::none) return shape;
  const std::size_t rank = split(known->axes).size();
  while (shape.size() > rank) {
    const auto merged = known->merge == Merge::trailing ? shape.end() - 2 : shape.begin();
    merged[0] *= merged[1];
    shape.erase(merged + 1);
  }
  if (known->merge == Merge::query && shape.size() + 1 == rank) shape.insert(shape.end() - 1, 1);
  return shape;
}

/// Where an object comes in a recording: steps, operations in causal order, inputs first, names.
auto order_of(const std::string& object) {
  const auto parts = [&] {
    std::vector<std::string> out(1);
    for (char c : object.substr(1)) {
      if (c == '/')
        out.emplace_back();
      else
        out.back() += c;
    }
    return out;
  }();
  if (parts[0] == "weights") return std::tuple(std::int64_t{-1}, std::size_t{0}, object);
  return std::tuple(parse_step(parts[1]).value_or(0), causal_position(parts[2]).value_or(0),
                    object.substr(object.find('/', 8))); // "/inputs" sorts before "/outputs"
}

bool earlier(const std::string& a, const std::string& b) {
  return order_of(a) < order_of(b);
}

/// Neither wants another value for an attribute than the other.
bool agree(const Attributes& a, const Attributes& b) {
  return std::all_of(a.begin(), a.end(), [&](const auto& attribute) {
    const auto other = b.find(attribute.first);
    return other == b.end() || other->second == attribute.second;
  });
}

OperationId id_of(const std::string& object) {
  const std::size_t step = std::strlen("/steps/");
  const std::size_t operation = object.find('/', step) + 1;
  return {parse_step(object.substr(step, operation - 1 - step)).value_or(0),
          object.substr(operation, object.find('/', operation) - operation)};
}

} // namespace

std::string Draft::metadata(std::string_view key) const {
  const auto found = file_.metadata().find(std::string(key));
  return found == file_.metadata().end() ? "" : found->second;
}

ContractValues Draft::contract_of(std::int64_t step) const {
  ContractValues values = contract;
  if (const auto found = step_contracts.find(step); found != step_contracts.end())
    for (const auto& [key, value] : found->second)
      values[key] = value;
  return values;
}

void Draft::place(const OperationId& id, Side side, std::string_view name, std::string_view tensor,
                  const Attributes& attributes) {
  const std::string in_file(tensor);
  if (!has(in_file)) return;
  const std::string object = object_path(id, side, name);
  if (find(object)) {
    if (problem_)
      problem_ = bad_input(file_.path() + ": " + escaped(object) + ": found a second tensor " +
                           in_quotes(tensor) + ", want one");
    return;
  }
  const auto [first, is_new] = placed_.try_emplace(in_file, object);
  if (!is_new) {
    Attributes& shared = tensors_.at(first->second).info.attributes;
    if (agree(shared, attributes)) {
      links_[object] = first->second;
      shared.insert(attributes.begin(), attributes.end());
      return;
    }
  }
  const auto& entry = file_.tensors().at(in_file);
  const auto retyped = dtypes_.find(in_file);
  TensorInfo info;
  info.object = object;
  info.dtype = retyped == dtypes_.end() ? entry.dtype : retyped->second;
  info.attributes = attributes;
  const std::string canonical = info.output();
  info.shape = canonical_shape(canonical, info.dtype, entry.shape);
  info.axes = axis_names(canonical, info.dtype, info.shape.size());
  tensors_[object] = {std::move(info), in_file};
}

void Draft::weight(std::string_view name, std::string_view tensor) {
  const std::string in_file(tensor);
  const auto& entry = file_.tensors().at(in_file);
  const std::string object = weight_path(name);
  TensorInfo info;
  info.object = object;
  info.dtype = entry.dtype;
  info.shape = entry.shape;
  info.axes = axis_names("", info.dtype, info.shape.size());
  placed_.emplace(in_file, object);
  tensors_[object] = {std::move(info), in_file};
}

void Draft::retype(std::string_view tensor, Dtype dtype) {
  const auto entry = file_.tensors().find(std::string(tensor));
  if (entry == file_.tensors().end()) return;
  const Dtype found = entry->second.dtype;
  if (size_of(found) != size_of(dtype)) {
    if (problem_)
      problem_ = bad_input(file_.path() + ": " + in_quotes(tensor) + ": found dtype " +
                           std::string(name(found)) + ", want " + std::string(name(dtype)));
    return;
  }
  dtypes_[entry->first] = dtype;
}

void Draft::rest(const OperationId& id) {
  for (const std::string& tensor : unplaced())
    output(id, tensor, tensor);
}

std::vector<std::string> Draft::unplaced() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : file_.tensors())
    if (!placed_.count(name)) names.push_back(name);
  return names;
}

void Draft::add(const OperationId& id, Side side, std::string_view name, Tensor tensor,
                const Attributes& attributes) {
  TensorInfo info;
  info.object = object_path(id, side, name);
  info.dtype = tensor.dtype;
  info.shape = tensor.shape;
  info.axes = axis_names(name, tensor.dtype, tensor.shape.size());
  info.attributes = attributes;
  tensors_[info.object] = {info, std::move(tensor)};
}

void Draft::add_exact(TensorInfo info, const std::string& tensor, const std::string& same_as) {
  placed_.emplace(tensor, info.object);
  if (!same_as.empty()) {
    links_[info.object] = same_as;
    return;
  }
  const std::string object = info.object;
  tensors_[object] = {std::move(info), tensor};
}

const DraftTensor* Draft::find(const std::string& object) const {
  const auto link = links_.find(object);
  const auto found = tensors_.find(link == links_.end() ? object : link->second);
  return found == tensors_.end() ? nullptr : &found->second;
}

DraftTensor* Draft::find(const std::string& object) {
  return const_cast<DraftTensor*>(std::as_const(*this).find(object));
}

Result<Tensor> Draft::read(const DraftTensor& tensor) const {
  if (const Tensor* computed = std::get_if<Tensor>(&tensor.payload)) return *computed;
  auto read = file_.read(std::get<std::string>(tensor.payload));
  if (!read) return read.status();
  read->dtype = tensor.info.dtype;
  read->shape = tensor.info.shape;
  return read;
}

std::vector<std::string> Draft::objects() const {
  std::vector<std::string> objects;
  for (const auto& [object, tensor] : tensors_)
    objects.push_back(object);
  for (const auto& [object, stored] : links_)
    objects.push_back(object);
  std::sort(objects.begin(), objects.end(), earlier);
  return objects;
}

std::vector<OperationId> Draft::operations() const {
  std::vector<OperationId> ids;
  for (const std::string& object : objects()) {
    if (object.starts_with("/weights/")) continue;
    OperationId id = id_of(object);
    if (ids.empty() || ids.back().step != id.step || ids.back().operation != id.operation)
      ids.push_back(std::move(id));
  }
  return ids;
}

std::vector<TensorInfo> Draft::tensors(const OperationId& id, Side side) const {
  const std::string folder = object_path(id, side, "");
  std::vector<TensorInfo> infos;
  for (const std::string& object : objects())
    if (object.starts_with(folder)) {
      infos.push_back(find(object)->info);
      infos.back().object = object;
    }
  return infos;
}

Status Draft::check() const {
  for (const std::string& object : objects()) {
    TensorInfo info = find(object)->info;
    info.object = object;
    DSAKIT_TRY(check_writable(file_.path(), info));
  }
  if (operations().empty())
    return bad_input(file_.path() + ": found no tensor of a step, want at least one");
  for (const OperationId& id : operations()) {
    const auto inputs = tensors(id, Side::inputs);
    const auto outputs = tensors(id, Side::outputs);
    const OperationTensors operation{file_.path(), id, inputs, outputs, config};
    const ContractValues values = contract_of(id.step);
    DSAKIT_TRY(check_structure(operation, values));
    if (!find_operation(id.operation) || !check_replayable(operation, values)) continue;
    DSAKIT_TRY(check_ids(operation, values, [&](const TensorInfo& info) -> Result<Tensor> {
      return read(*find(info.object));
    }));
  }
  return {};
}

Status Draft::write(const std::string& path, bool deflate) const {
  auto writer = RecordingWriter::create(path, {deflate});
  if (!writer) return writer.status();
  DSAKIT_TRY(writer->contract(contract));
  DSAKIT_TRY(writer->config(config));
  DSAKIT_TRY(writer->provenance(provenance));
  for (const auto& [step, values] : step_contracts)
    DSAKIT_TRY(writer->step_contract(step, values));

  // Whatever order the tensors were placed in, the first object of each is the one that is stored.
  std::map<std::string, std::string> stored; // payload's own object -> first object
  for (const std::string& object : objects()) {
    const DraftTensor& tensor = *find(object);
    const auto [first, is_new] = stored.try_emplace(tensor.info.object, object);
    if (!is_new) {
      DSAKIT_TRY(writer->link(first->second, object));
      continue;
    }
    TensorInfo info = tensor.info;
    info.object = object;
    if (const auto* name = std::get_if<std::string>(&tensor.payload)) {
      DSAKIT_TRY(writer->add(info, file_.source(*name)));
    } else {
      const Tensor& computed = std::get<Tensor>(tensor.payload);
      DSAKIT_TRY(writer->add(object, {computed, info.axes, info.attributes}));
    }
  }
  return writer->commit();
}

} // namespace dsakit::harness
