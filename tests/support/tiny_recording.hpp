// A small recording of the three index operations, made by the reference, to be changed and
// written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "dsakit/core/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/index_logits.hpp"

namespace dsakit::testing {

/// Tensors in memory; change them, then write(). One step, number 0, and the operations of another.
struct TinyRecording {
  ContractValues contract = {{"index_fp8_encoding", "e4m3fn"},
                             {"index_page_layout", "block_flat"},
                             {"page_size", "2"},
                             {"activation_dtype", "bf16"},
                             {"scale_kind", "ue8m0"},
                             {"index_k_floor", "1e-4"},
                             {"qmax", "448"}};
  harness::Attributes config = {};
  harness::Attributes provenance = {};
  std::map<std::string, harness::RecordedOperation> operations;

  Tensor& input(const std::string& operation, const std::string& name) {
    return operations.at(operation).inputs.at(name).tensor;
  }
  Tensor& output(const std::string& operation, const std::string& name) {
    return operations.at(operation).outputs.at(name).tensor;
  }

  void write(const std::string& path, const TinyRecording* next = nullptr) const {
    const auto check = [](const Status& status) { ASSERT_TRUE(status) << status.what(); };
    auto writer = harness::RecordingWriter::create(path);
    ASSERT_TRUE(writer) << writer.status().what();
    check(writer->contract(contract));
    if (!config.empty()) check(writer->config(config));
    if (!provenance.empty()) check(writer->provenance(provenance));
    add_step(*writer, 0);
    if (next) next->add_step(*writer, 1);
    check(writer->commit());
  }

private:
  void add_step(harness::RecordingWriter& writer, std::int64_t step) const {
    const auto check = [](const Status& status) { ASSERT_TRUE(status) << status.what(); };
    for (const Operation& known : kOperations) { // in causal order
      const auto operation = operations.find(std::string(known.name));
      if (operation == operations.end() || find_operation(known.name) != &known) continue;
      const harness::OperationId id{step, operation->first};
      for (const auto& [name, tensor] : operation->second.inputs)
        check(writer.add(harness::object_path(id, harness::Side::inputs, name), tensor));
      for (const auto& [name, tensor] : operation->second.outputs)
        check(writer.add(harness::object_path(id, harness::Side::outputs, name), tensor));
    }
  }
};

namespace tiny {

template <class T>
harness::RecordedTensor tensor(Dtype dtype, Shape shape, const std::vector<T>& values) {
  harness::RecordedTensor recorded;
  recorded.tensor = Tensor(dtype, std::move(shape));
  std::copy(values.begin(), values.end(), recorded.tensor.as<T>());
  for (std::size_t axis = 0; axis < recorded.tensor.shape.size(); ++axis)
    recorded.axes.push_back("axis" + std::to_string(axis));
  return recorded;
}

template <class T, class Draw>
std::vector<T> draw(std::int64_t n, Draw one) {
  std::vector<T> values(static_cast<std::size_t>(n));
  std::generate(values.begin(), values.end(), one);
  return values;
}

inline constexpr std::int64_t kPages = 4;
inline constexpr std::int64_t kPageBytes = 2 * 132;

} // namespace tiny

/// 5 keys written into 4 pages of 2 tokens; 2 requests of 2 and 3 keys gathered; 3 rows scored with
/// 3 heads. `encoding` is what the bytes really are; the contract says so too.
inline TinyRecording tiny_recording(Fp8Encoding encoding = Fp8Encoding::e4m3fn) {
  using namespace tiny;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  TinyRecording r;
  const bool fnuz = encoding == Fp8Encoding::e4m3fnuz;
  if (fnuz) r.contract["index_fp8_encoding"] = "e4m3fnuz", r.contract["qmax"] = "224";
  const Dtype fp8 = fnuz ? Dtype::float8_e4m3fnuz : Dtype::float8_e4m3fn;
  const IndexKeyQuant quant = *parse_index_key_quant(r.contract);
  const IndexPages& pages = quant.pages;

  harness::RecordedOperation& write = r.operations["index_cache_write"];
  const auto index_k = draw<std::uint16_t>(
      6 * 128, [&] { return reference::float_to_bf16(normal(random)); }); // one row past the slots
  const std::vector<std::int64_t> slots = {6, 0, -1, 3, 2};
  const auto before =
      draw<std::uint8_t>(kPages * kPageBytes, [&] { return static_cast<std::uint8_t>(random()); });
  write.inputs["index_k"] = tensor(Dtype::bfloat16, {6, 128}, index_k);
  write.inputs["slot_mapping"] = tensor(Dtype::int64, {5}, slots);
  write.inputs["index_cache"] = tensor(Dtype::uint8, {kPages, kPageBytes}, before);
  auto cache = before;
  EXPECT_TRUE(reference::index_cache_write(quant, index_k.data(), 6, slots,
                                           {cache.data(), kPages, kPageBytes}));
  // Fill what no slot named with records as well, so that every page can be read below.
  write.outputs["index_cache"] = tensor(Dtype::uint8, {kPages, kPageBytes}, cache);
  auto full = cache;
  const std::vector<std::int64_t> rest = {1, 4, 5, 7};
  EXPECT_TRUE(reference::index_cache_write(quant, index_k.data() + 128, 5, rest,
                                           {full.data(), kPages, kPageBytes}));

  harness::RecordedOperation& gather = r.operations["index_cache_gather"];
  const std::vector<std::int32_t> gather_table = {3, -1, 0, 1};
  const std::vector<std::int32_t> cu_seq_lens = {0, 2, 5};
  std::vector<std::uint8_t> k_fp8(5 * 128);
  std::vector<float> k_scale(5);
  EXPECT_TRUE(reference::index_cache_gather(pages, {full.data(), kPages, kPageBytes},
                                            {gather_table.data(), 2, 2}, cu_seq_lens, {}, 5,
                                            k_fp8.data(), k_scale.data()));
  gather.inputs["index_cache"] = tensor(Dtype::uint8, {kPages, kPageBytes}, full);
  gather.inputs["block_table"] = tensor(Dtype::int32, {2, 2}, gather_table);
  gather.inputs["cu_seq_lens"] = tensor(Dtype::int32, {3}, cu_seq_lens);
  gather.outputs["k_fp8"] = tensor(fp8, {5, 128}, k_fp8);
  gather.outputs["k_scale"] = tensor(Dtype::float32, {5}, k_scale);

  harness::RecordedOperation& decode = r.operations["index_logits_decode"];
  const auto q = draw<std::uint8_t>(
      3 * 3 * 128, [&] { return reference::encode_fp8_saturating(encoding, 8 * normal(random)); });
  const auto weights = draw<float>(3 * 3, [&] { return normal(random); });
  const std::vector<std::int32_t> table = {1, 3, 2, 0};
  const std::vector<std::int32_t> row_lens = {3, 4, 1};
  const std::vector<std::int32_t> row_request = {0, 1, 1};
  const reference::IndexLogitsDecode in{q.data(),
                                        weights.data(),
                                        {full.data(), kPages, kPageBytes},
                                        {table.data(), 2, 2},
                                        row_lens.data(),
                                        row_request.data(),
                                        3,
                                        3,
                                        5};
  std::vector<double> exact(3 * 5, -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(reference::index_logits_decode<reference::Exact>(pages, in, exact.data()));
  decode.inputs["index_q_fp8"] = tensor(fp8, {3, 3, 128}, q);
  decode.inputs["index_cache"] = tensor(Dtype::uint8, {kPages, kPageBytes}, full);
  decode.inputs["index_weights_folded"] = tensor(Dtype::float32, {3, 3}, weights);
  decode.inputs["block_table"] = tensor(Dtype::int32, {2, 2}, table);
  decode.inputs["row_lens"] = tensor(Dtype::int32, {3}, row_lens);
  decode.inputs["row_request"] = tensor(Dtype::int32, {3}, row_request);
  decode.outputs["logits"] =
      tensor(Dtype::float32, {3, 5}, std::vector<float>(exact.begin(), exact.end()));
  decode.outputs["logits"].attributes["accumulation"] = "fp32";
  return r;
}

} // namespace dsakit::testing
