// The step once more in other arrangements: which rows share a launch may change no selected
// position (spec 2.7, 2.9), and rows of padding are cleared.
#include <algorithm>
#include <utility>

#include "../operations/launch.hpp"
#include "layer_run.hpp"

namespace dsakit::harness {
namespace {

/// Same rows, other launches.
struct Arrangement {
  std::string name;
  optimized::LayerConfig config;
  std::vector<std::int32_t> query_lens;
  std::int64_t padding; ///< rows at the end that are of no request
};

/// Small chunks, in which the last of several requests has become padding; of decode rows also as
/// [requests, next_n]. `whole`: all rows in one launch.
std::vector<Arrangement> arrangements_of(const optimized::LayerConfig& whole,
                                         const std::vector<std::int32_t>& query_lens, bool decode) {
  if (query_lens.empty()) return {};
  const std::int64_t most = *std::max_element(query_lens.begin(), query_lens.end());
  // Half of a prefill's rows: the other half meets keys that are already gathered.
  const std::int64_t rows = std::max<std::int64_t>(decode ? most : (most + 1) / 2, 1);
  Arrangement cut{"in smaller chunks", whole, query_lens, 0};
  cut.config.max_total_seq_len = whole.max_model_len;
  cut.config.max_logits_bytes =
      rows * whole.max_model_len * static_cast<std::int64_t>(sizeof(float));
  Arrangement native = cut;
  native.name = "in smaller chunks, decode as [requests, next_n]";
  native.config.native_decode = true;
  if (query_lens.size() > 1) cut.padding = std::exchange(cut.query_lens.back(), 0);
  if (!decode) return {cut};
  return {native, cut}; // what becomes padding is lost
}

/// The first element of rows [first, last) that is not as wanted.
template <class T, class Want>
void note_first(KernelRun& run, const std::string& output, const Tensor& got, std::int64_t first,
                std::int64_t last, const std::string& why, Want want) {
  const std::int64_t width = got.shape[1];
  for (std::int64_t i = first * width; i < last * width && !run.stray; ++i)
    if (got.as<T>()[i] != want(i)) run.stray = StrayWrite{output, coordinates(got.shape, i), why};
}

} // namespace

Status RecordedLayer::rearrange(optimized::Device& device, const optimized::LayerStep& step,
                                std::uint16_t* hidden, KernelRun& run) const {
  const optimized::LayerConfig whole = config();
  for (const Arrangement& arrangement :
       arrangements_of(whole, int32s("query_lens"), logits() == "index_logits_decode")) {
    auto layer =
        optimized::KimiK3DSAAttention::create(device, arrangement.config, contract_, weights());
    DSAKIT_TRY(layer);
    DSAKIT_TRY(layer->prepare(whole.max_tokens, arrangement.query_lens, int32s("seq_lens")));
    const std::int64_t rows = whole.max_tokens - arrangement.padding;
    const Tensor garbage = poisoned(Dtype::bfloat16, {arrangement.padding, whole.hidden_size});
    DSAKIT_TRY(device.upload(hidden + rows * whole.hidden_size, garbage.bytes.data(),
                             garbage.bytes.size()));
    Tensor topk = poisoned(Dtype::int32, {whole.max_tokens, whole.index_topk});
    DSAKIT_TRY(device.upload(step.topk_indices, topk.bytes.data(), topk.bytes.size()));
    DSAKIT_TRY(layer->run(step));
    DSAKIT_TRY(device.synchronize());
    Tensor output(Dtype::bfloat16, {whole.max_tokens, whole.hidden_size});
    DSAKIT_TRY(device.download(topk.bytes.data(), step.topk_indices, topk.bytes.size()));
    DSAKIT_TRY(device.download(output.bytes.data(), step.output, output.bytes.size()));

    const auto* at_once = run.outputs.at("topk_indices").as<std::int32_t>();
    note_first<std::int32_t>(run, "topk_indices", topk, 0, rows,
                             "selects otherwise " + arrangement.name,
                             [&](std::int64_t i) { return at_once[i]; });
    note_first<std::int32_t>(run, "topk_indices", topk, rows, whole.max_tokens,
                             "a row of padding is not -1", [](std::int64_t) { return -1; });
    note_first<std::uint16_t>(run, "output", output, rows, whole.max_tokens,
                              "a row of padding is not 0", [](std::int64_t) { return 0; });
  }
  return {};
}

} // namespace dsakit::harness
