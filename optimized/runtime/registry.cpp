// The kernels that this program holds, per arch.
#include "dsakit/optimized/kernel.hpp"

#include "dsakit/optimized/index_cache_gather.hpp"
#include "dsakit/optimized/index_cache_write.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"

namespace dsakit::optimized {

// Each arch's build of a kernel defines one of these (DSAKIT_REGISTER_KERNELS).
#define DSAKIT_DECLARE(arch)                                                                       \
  namespace arch {                                                                                 \
  const std::vector<Kernel<IndexCacheWriteParams>>& registered(const IndexCacheWriteParams*);      \
  const std::vector<Kernel<IndexCacheGatherParams>>& registered(const IndexCacheGatherParams*);    \
  const std::vector<Kernel<IndexLogitsDecodeParams>>& registered(const IndexLogitsDecodeParams*);  \
  }
DSAKIT_DECLARE(gfx942)
DSAKIT_DECLARE(gfx950)
DSAKIT_DECLARE(sm_90)

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

template const std::vector<Kernel<IndexCacheWriteParams>>& kernels(Arch);
template const std::vector<Kernel<IndexCacheGatherParams>>& kernels(Arch);
template const std::vector<Kernel<IndexLogitsDecodeParams>>& kernels(Arch);

} // namespace dsakit::optimized
