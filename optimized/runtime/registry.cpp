// The kernels that this program holds, per arch.
#include "dsakit/optimized/kernel.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "dsakit/optimized/dcp_attention_merge.hpp"
#include "dsakit/optimized/dcp_topk_merge.hpp"
#include "dsakit/optimized/index_cache_gather.hpp"
#include "dsakit/optimized/index_cache_write.hpp"
#include "dsakit/optimized/index_key_norm.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"
#include "dsakit/optimized/index_logits_prefill.hpp"
#include "dsakit/optimized/index_query_quant.hpp"
#include "dsakit/optimized/index_weights_fold.hpp"
#include "dsakit/optimized/mla_cache_write.hpp"
#include "dsakit/optimized/output_gate.hpp"
#include "dsakit/optimized/rms_norm.hpp"
#include "dsakit/optimized/selftest_params.hpp"
#include "dsakit/optimized/sparse_attention.hpp"
#include "dsakit/optimized/topk.hpp"
#include "dsakit/optimized/topk_slots.hpp"
#include "dsakit/optimized/weight_dequant.hpp"

#define DSAKIT_FOR_EACH_PARAMS(X)                                                                  \
  X(IndexQueryQuantParams)                                                                         \
  X(IndexWeightsFoldParams)                                                                        \
  X(IndexKeyNormParams)                                                                            \
  X(IndexCacheWriteParams)                                                                         \
  X(IndexCacheGatherParams)                                                                        \
  X(IndexLogitsPrefillParams)                                                                      \
  X(IndexLogitsDecodeParams)                                                                       \
  X(TopkParams)                                                                                    \
  X(MlaCacheWriteParams)                                                                           \
  X(TopkSlotsParams)                                                                               \
  X(SparseAttentionParams)                                                                         \
  X(IndexQueryQuantMxfp4Params)                                                                    \
  X(IndexCacheWriteMxfp4Params)                                                                    \
  X(IndexCacheGatherMxfp4Params)                                                                   \
  X(IndexLogitsPrefillMxfp4Params)                                                                 \
  X(IndexLogitsDecodeMxfp4Params)                                                                  \
  X(RmsNormParams)                                                                                 \
  X(OutputGateParams)                                                                              \
  X(DcpTopkMergeParams)                                                                            \
  X(DcpAttentionMergeParams)                                                                       \
  X(WeightDequantParams)

namespace dsakit::optimized {

// Each arch's build of a kernel defines one of these (DSAKIT_REGISTER_KERNELS).
#define DSAKIT_DECLARE(Params) const std::vector<Kernel<Params>>& registered(const Params*);
namespace gfx942 {
DSAKIT_FOR_EACH_PARAMS(DSAKIT_DECLARE)
DSAKIT_DECLARE(SelftestParams) // not an operation: no kernel of it can be forced
} // namespace gfx942
namespace gfx950 {
DSAKIT_FOR_EACH_PARAMS(DSAKIT_DECLARE)
DSAKIT_DECLARE(SelftestParams)
} // namespace gfx950
namespace sm_90 {
DSAKIT_FOR_EACH_PARAMS(DSAKIT_DECLARE)
DSAKIT_DECLARE(SelftestParams)
} // namespace sm_90

template <class Params>
const std::vector<Kernel<Params>>& kernels(Arch arch) {
  const auto* which = static_cast<const Params*>(nullptr);
  if (arch == Arch::gfx942) return gfx942::registered(which);
  if (arch == Arch::gfx950) return gfx950::registered(which);
#if DSAKIT_CUDA
  return sm_90::registered(which);
#else
  static const std::vector<Kernel<Params>> none;
  return none;
#endif
}

const std::vector<std::string_view>& kernel_names() {
  static const std::vector<std::string_view> names = [] {
    std::set<std::string_view> all;
    for (const Arch arch : {Arch::gfx942, Arch::gfx950, Arch::sm_90}) {
#define DSAKIT_COLLECT(Params)                                                                     \
  for (const Kernel<Params>& kernel : kernels<Params>(arch))                                       \
    all.insert(kernel.name);
      DSAKIT_FOR_EACH_PARAMS(DSAKIT_COLLECT)
    }
    return std::vector<std::string_view>(all.begin(), all.end());
  }();
  return names;
}

namespace {

template <class Params>
void list_space(std::vector<ConfigurationSpace>& spaces, const Kernel<Params>& kernel) {
  if (!kernel.tuning) return;
  const Tuning<Params>& tuning = *kernel.tuning;
  if (std::any_of(spaces.begin(), spaces.end(), [&](const ConfigurationSpace& listed) {
        return listed.operation == tuning.operation && listed.kernel == kernel.name;
      }))
    return;
  ConfigurationSpace space{tuning.operation, kernel.name, {}};
  for (const Tunable<Params>& tunable : tuning.tunables)
    space.keys.push_back({tunable.key, tunable.meaning, tunable.values});
  spaces.push_back(std::move(space));
}

} // namespace

const std::vector<ConfigurationSpace>& configuration_spaces() {
  static const std::vector<ConfigurationSpace> spaces = [] {
    std::vector<ConfigurationSpace> all;
    for (const Arch arch : {Arch::gfx942, Arch::gfx950, Arch::sm_90}) {
#define DSAKIT_LIST_SPACES(Params)                                                                 \
  for (const Kernel<Params>& kernel : kernels<Params>(arch))                                       \
    list_space(all, kernel);
      DSAKIT_FOR_EACH_PARAMS(DSAKIT_LIST_SPACES)
    }
    return all;
  }();
  return spaces;
}

Result<std::string> forced_kernel() {
  const char* text = std::getenv("DSAKIT_FORCE_KERNEL");
  if (text == nullptr || *text == '\0') return std::string();
  std::string known;
  for (const std::string_view name : kernel_names()) {
    if (name == text) return std::string(text);
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return bad_input("DSAKIT_FORCE_KERNEL: found '" + std::string(text) + "', want one of " + known);
}

#define DSAKIT_INSTANTIATE(Params) template const std::vector<Kernel<Params>>& kernels(Arch);
DSAKIT_FOR_EACH_PARAMS(DSAKIT_INSTANTIATE)
DSAKIT_INSTANTIATE(SelftestParams)

} // namespace dsakit::optimized
