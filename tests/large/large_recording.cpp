// Writes a recording of many gigabytes whose operations are quick to replay:
// large_recording OUT GIB [OPERATION]
// Caches, logits and activations as a step of a large batch has them; outputs are the reference's.
// With OPERATION (index_cache_write, topk, mla_cache_write, output_gate): that one alone, whose
// tensors have GIB.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/reference/formats.hpp"

namespace {

using namespace dsakit;
using namespace dsakit::harness;

const ContractValues kContract = {{"index_fp8_encoding", "e4m3fn"},
                                  {"index_page_layout", "block_flat"},
                                  {"page_size", "64"},
                                  {"activation_dtype", "bf16"},
                                  {"scale_kind", "ue8m0"},
                                  {"index_k_floor", "1e-4"},
                                  {"qmax", "448"},
                                  {"mla_fp8_encoding", "e4m3fn"},
                                  {"mla_record", "fp8_ds_mla"},
                                  {"tie_rule", "smaller_index"},
                                  {"topk_order", "rank"},
                                  {"gate_rounding", "one"}};

class Step {
public:
  /// `times` as large as an operation of some ten megabytes.
  Step(std::int64_t number, std::int64_t times)
      : number_(number), times_(times), random_(static_cast<unsigned>(number + 1)) {}

  RecordedOperation mla_cache_write() {
    RecordedOperation op;
    op.inputs["kv_c"] = activations({kTokens, 512});
    op.inputs["k_pe"] = activations({kTokens, 64});
    op.inputs["slot_mapping"] = slots(kMlaPages * times_ * 64);
    op.inputs["mla_cache"] = bytes({kMlaPages * times_, 64, 656});
    op.outputs["mla_cache"] = op.inputs["mla_cache"];
    return op;
  }
  RecordedOperation index_cache_write() {
    RecordedOperation op;
    op.inputs["index_k"] = activations({kTokens, 128});
    op.inputs["slot_mapping"] = slots(kIndexPages * times_ * 64);
    op.inputs["index_cache"] = bytes({kIndexPages * times_, std::int64_t{64} * 132});
    op.outputs["index_cache"] = op.inputs["index_cache"];
    return op;
  }
  /// Wide rows of which little is used, as a batch with one long request has them.
  RecordedOperation topk() {
    RecordedOperation op;
    const std::int64_t rows = 256 * times_;
    op.inputs["logits"] = of(Dtype::float32, {rows, 32768});
    for (std::int64_t i = 0; i < op.inputs["logits"].tensor.elements(); ++i)
      op.inputs["logits"].tensor.as<float>()[i] = normal_(random_);
    op.inputs["row_lens"] = of(Dtype::int32, {rows});
    std::fill_n(op.inputs["row_lens"].tensor.as<std::int32_t>(), rows, 512);
    op.outputs["topk_indices"] = of(Dtype::int32, {rows, 64});
    return op;
  }
  RecordedOperation output_gate() {
    RecordedOperation op;
    const Shape shape = {512 * times_, 8192};
    op.inputs["attn_value"] = activations(shape);
    op.inputs["gate"] = activations(shape);
    op.outputs["attn_gated"] = of(Dtype::bfloat16, shape);
    return op;
  }

  /// Fills the outputs and writes all; returns how many bytes that were.
  Result<std::int64_t> write(RecordingWriter& writer, const std::string& name,
                             RecordedOperation op) const {
    const OperationId id{number_, name};
    const auto expected = find_adapter(name)->reference({id, kContract, op});
    DSAKIT_TRY(expected);
    for (const Expected& output : *expected)
      op.outputs.at(output.output).tensor = output.value.tensor;
    std::int64_t written = 0;
    for (const Side side : {Side::inputs, Side::outputs})
      for (const auto& [tensor, recorded] : side == Side::inputs ? op.inputs : op.outputs) {
        DSAKIT_TRY(writer.add(object_path(id, side, tensor), recorded));
        written += std::ssize(recorded.tensor.bytes);
      }
    return written;
  }

private:
  static constexpr std::int64_t kTokens = 64, kMlaPages = 1024, kIndexPages = 4096;

  static RecordedTensor of(Dtype dtype, Shape shape) {
    RecordedTensor recorded{Tensor(dtype, std::move(shape)), {}, {}};
    for (std::size_t axis = 0; axis < recorded.tensor.shape.size(); ++axis)
      recorded.axes.push_back("axis" + std::to_string(axis));
    return recorded;
  }
  RecordedTensor bytes(Shape shape) {
    RecordedTensor recorded = of(Dtype::uint8, std::move(shape));
    for (std::byte& byte : recorded.tensor.bytes)
      byte = static_cast<std::byte>(random_());
    return recorded;
  }
  RecordedTensor activations(Shape shape) {
    RecordedTensor recorded = of(Dtype::bfloat16, std::move(shape));
    for (std::int64_t i = 0; i < recorded.tensor.elements(); ++i)
      recorded.tensor.as<std::uint16_t>()[i] = reference::float_to_bf16(normal_(random_));
    return recorded;
  }
  static RecordedTensor slots(std::int64_t pool) {
    RecordedTensor recorded = of(Dtype::int64, {kTokens});
    for (std::int64_t i = 0; i < kTokens; ++i)
      recorded.tensor.as<std::int64_t>()[i] = i * 997 % pool;
    return recorded;
  }

  std::int64_t number_;
  std::int64_t times_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

Status write(const std::string& path, std::int64_t wanted, const std::string& only) {
  auto writer = RecordingWriter::create(path);
  DSAKIT_TRY(writer);
  DSAKIT_TRY(writer->contract(kContract));
  struct Made {
    const char* name;
    RecordedOperation (Step::*op)();
    std::int64_t bytes; ///< of its tensors, about
  };
  constexpr std::int64_t kMiB = 1 << 20;
  const Made all[] = {{"index_cache_write", &Step::index_cache_write, 66 * kMiB},
                      {"topk", &Step::topk, 32 * kMiB},
                      {"mla_cache_write", &Step::mla_cache_write, 82 * kMiB},
                      {"output_gate", &Step::output_gate, 24 * kMiB}};
  std::int64_t number = 0;
  for (std::int64_t written = 0; written < wanted; ++number) {
    for (const auto& [name, op, size] : all) {
      if (!only.empty() && only != name) continue;
      Step step(number, only.empty() ? 1 : std::max<std::int64_t>(wanted / size, 1));
      const auto bytes = step.write(*writer, name, (step.*op)());
      DSAKIT_TRY(bytes);
      written += *bytes;
    }
    if (!only.empty()) break;
  }
  return writer->commit();
}

} // namespace

int main(int count, char** arguments) try {
  if (count < 3 || count > 4) {
    std::fputs("large_recording OUT GIB [OPERATION]\n", stderr);
    return 2;
  }
  const Status status =
      write(arguments[1], static_cast<std::int64_t>(std::atof(arguments[2]) * 0x1p30),
            count == 4 ? arguments[3] : "");
  if (!status) std::fprintf(stderr, "%s\n", status.what().c_str());
  return status ? 0 : 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "large_recording: %s\n", error.what());
  return 2;
}
