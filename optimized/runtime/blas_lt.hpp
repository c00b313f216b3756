// Projections on a GPU, through hipBLASLt or cuBLASLt, which are loaded when one is asked for.
// Both have the same calls under other names and numbers. hipBLASLt has never run here: no AMD
// hardware so far.
#pragma once

#include <memory>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/projection.hpp"

namespace dsakit::optimized {

class Device;

/// What differs between the two libraries. The numbers are their headers' enumerators.
struct BlasLtLibrary {
  const char* files[2]; ///< tried in order
  const char* prefix;   ///< of its functions
  int bf16, fp32;       ///< hipDataType, cudaDataType
  int compute_fp32;
  int op_n, op_t;
  int desc_trans_a;
  int layout_batch_count, layout_batch_stride;
  int preference_workspace;
  int preference_alignment; ///< of A; B, C and D follow. -1: there is none
};

inline constexpr BlasLtLibrary kHipBlasLt = {
    {"libhipblaslt.so.1", "libhipblaslt.so.0"}, "hipblasLt", 14, 0, 2, 111, 112, 0, 0, 1, 1, -1};
inline constexpr BlasLtLibrary kCublasLt = {
    {"libcublasLt.so.13", "libcublasLt.so.12"}, "cublasLt", 14, 0, 68, 0, 1, 3, 5, 6, 1, 5};

/// One library on one device.
class BlasLt {
public:
  explicit BlasLt(const BlasLtLibrary& library);
  ~BlasLt();
  BlasLt(const BlasLt&) = delete;
  BlasLt& operator=(const BlasLt&) = delete;

  /// Enqueues on `stream`, a hipStream_t or cudaStream_t of `device`. unsupported: the library does
  /// not load, or has no algorithm for the problem; device_error: a call of it failed.
  Status project(Device& device, const ProjectionParams& params, void* stream);
  /// Gives back what project allocated; `device` is still whole.
  void close(Device& device);

private:
  struct Functions;

  Status open(Device& device);

  const BlasLtLibrary& library_;
  std::unique_ptr<Functions> functions_; ///< of a library that stays loaded
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
};

} // namespace dsakit::optimized
