#include "runtime/blas_lt.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "dsakit/optimized/device.hpp"

namespace dsakit::optimized {
namespace {

using BlasLtError = int; // 0 is success in both
constexpr std::size_t kWorkspace = std::size_t{32} << 20;

// What is used of the libraries, without their prefix. Handles and descriptors are pointers.
#define DSAKIT_BLAS_LT_FUNCTIONS(X)                                                                \
  X(Create, BlasLtError(void** handle))                                                            \
  X(Destroy, BlasLtError(void* handle))                                                            \
  X(MatmulDescCreate, BlasLtError(void** desc, int compute, int scale))                            \
  X(MatmulDescDestroy, BlasLtError(void* desc))                                                    \
  X(MatmulDescSetAttribute, BlasLtError(void* desc, int key, const void* value, std::size_t size)) \
  X(MatrixLayoutCreate, BlasLtError(void** layout, int dtype, std::uint64_t rows,                  \
                                    std::uint64_t columns, std::int64_t leading))                  \
  X(MatrixLayoutDestroy, BlasLtError(void* layout))                                                \
  X(MatrixLayoutSetAttribute,                                                                      \
    BlasLtError(void* layout, int key, const void* value, std::size_t size))                       \
  X(MatmulPreferenceCreate, BlasLtError(void** preference))                                        \
  X(MatmulPreferenceDestroy, BlasLtError(void* preference))                                        \
  X(MatmulPreferenceSetAttribute,                                                                  \
    BlasLtError(void* preference, int key, const void* value, std::size_t size))                   \
  X(MatmulAlgoGetHeuristic,                                                                        \
    BlasLtError(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference,    \
                int wanted, void* results, int* found))                                            \
  X(Matmul, BlasLtError(void* handle, void* desc, const void* alpha, const void* a,                \
                        void* a_layout, const void* b, void* b_layout, const void* beta,           \
                        const void* c, void* c_layout, void* d, void* d_layout, const void* algo,  \
                        void* workspace, std::size_t workspace_bytes, void* stream))

/// Destroys what was created with it.
class Object {
public:
  explicit Object(BlasLtError (*destroy)(void*)) : destroy_(destroy) {}
  ~Object() {
    if (object_) destroy_(object_);
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  void** out() { return &object_; }
  void* get() const { return object_; }

private:
  BlasLtError (*destroy_)(void*);
  void* object_ = nullptr;
};

Status check(BlasLtError error, const std::string& call) {
  if (error == 0) return {};
  return {Code::device_error, call + ": status " + std::to_string(error)};
}

} // namespace

struct BlasLt::Functions {
#define DSAKIT_MEMBER(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  DSAKIT_BLAS_LT_FUNCTIONS(DSAKIT_MEMBER)
#undef DSAKIT_MEMBER
};

Status BlasLt::open(Device& device) {
  if (functions_) return {};
  void* library = nullptr;
  for (const char* file : library_.files)
    if (!library) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  const std::string prefix = library_.prefix;
  if (!library)
    return unsupported("projections need " + prefix + ": " + library_.files[0] + " and " +
                       library_.files[1] + " do not load");
  auto functions = std::make_unique<Functions>();
#define DSAKIT_LOAD(name, ...)                                                                     \
  functions->name =                                                                                \
      reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(dlsym(library, (prefix + #name).c_str())); \
  if (!functions->name) return unsupported(prefix + " has no " + #name);
  DSAKIT_BLAS_LT_FUNCTIONS(DSAKIT_LOAD)
#undef DSAKIT_LOAD
  if (!workspace_) {
    const auto workspace = device.allocate(kWorkspace);
    DSAKIT_TRY(workspace);
    workspace_ = *workspace;
  }
  DSAKIT_TRY(check(functions->Create(&handle_), prefix + "Create"));
  functions_ = std::move(functions);
  return {};
}

BlasLt::BlasLt(const BlasLtLibrary& library) : library_(library) {}
BlasLt::~BlasLt() = default;

void BlasLt::close(Device& device) {
  if (functions_) functions_->Destroy(handle_);
  if (workspace_) device.release(workspace_);
}

/// The libraries' matrices are column-major: a row-major one is its transpose there. So
/// D [out, rows] = op(A) B, with A the weight and B = x [in, rows].
Status BlasLt::project(Device& device, const ProjectionParams& p, void* stream) {
  DSAKIT_TRY(check_projection(p));
  DSAKIT_TRY(open(device));
  if (p.rows == 0) return {};
  const Functions& lt = *functions_;
  const std::string prefix = library_.prefix;

  Object desc(lt.MatmulDescDestroy);
  DSAKIT_TRY(check(lt.MatmulDescCreate(desc.out(), library_.compute_fp32, library_.fp32),
                   prefix + "MatmulDescCreate"));
  const bool as_out_in = weight_rows_are_outputs(p);
  const std::int32_t op = as_out_in ? library_.op_t : library_.op_n;
  DSAKIT_TRY(check(lt.MatmulDescSetAttribute(desc.get(), library_.desc_trans_a, &op, sizeof op),
                   prefix + "MatmulDescSetAttribute"));

  const auto batch = static_cast<std::int32_t>(p.batch);
  const auto layout = [&](Object& object, std::int64_t rows, std::int64_t columns,
                          std::int64_t leading, std::int64_t batch_stride) -> Status {
    DSAKIT_TRY(
        check(lt.MatrixLayoutCreate(object.out(), library_.bf16, static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(columns), leading),
              prefix + "MatrixLayoutCreate"));
    DSAKIT_TRY(check(lt.MatrixLayoutSetAttribute(object.get(), library_.layout_batch_count, &batch,
                                                 sizeof batch),
                     prefix + "MatrixLayoutSetAttribute"));
    return check(lt.MatrixLayoutSetAttribute(object.get(), library_.layout_batch_stride,
                                             &batch_stride, sizeof batch_stride),
                 prefix + "MatrixLayoutSetAttribute");
  };
  Object a(lt.MatrixLayoutDestroy), b(lt.MatrixLayoutDestroy), d(lt.MatrixLayoutDestroy);
  DSAKIT_TRY(as_out_in ? layout(a, p.in, p.out, p.weight_out_stride, p.weight_batch_stride)
                       : layout(a, p.out, p.in, p.weight_in_stride, p.weight_batch_stride));
  DSAKIT_TRY(layout(b, p.in, p.rows, p.x_row_stride, p.x_batch_stride));
  DSAKIT_TRY(layout(d, p.out, p.rows, p.y_row_stride, p.y_batch_stride));

  Object preference(lt.MatmulPreferenceDestroy);
  DSAKIT_TRY(check(lt.MatmulPreferenceCreate(preference.out()), prefix + "MatmulPreferenceCreate"));
  const std::uint64_t workspace_bytes = kWorkspace;
  DSAKIT_TRY(check(lt.MatmulPreferenceSetAttribute(preference.get(), library_.preference_workspace,
                                                   &workspace_bytes, sizeof workspace_bytes),
                   prefix + "MatmulPreferenceSetAttribute"));
  // Columns of a wider tensor start anywhere: the largest power of two that divides all of them.
  const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  const auto strides = static_cast<std::uint64_t>(
      p.x_batch_stride | p.x_row_stride | p.y_batch_stride | p.y_row_stride |
      p.weight_batch_stride | p.weight_out_stride * p.weight_in_stride);
  const std::uint64_t together =
      address(p.x) | address(p.weight) | address(p.y) | 2 * strides | 256;
  const auto alignment = static_cast<std::uint32_t>(together & (~together + 1));
  for (int matrix = 0; library_.preference_alignment >= 0 && matrix < 4; ++matrix)
    DSAKIT_TRY(check(lt.MatmulPreferenceSetAttribute(preference.get(),
                                                     library_.preference_alignment + matrix,
                                                     &alignment, sizeof alignment),
                     prefix + "MatmulPreferenceSetAttribute"));

  // A result begins with its algorithm and has 96 bytes at most in any version of both.
  alignas(16) std::array<std::byte, 512> result{};
  int found = 0;
  const BlasLtError status =
      lt.MatmulAlgoGetHeuristic(handle_, desc.get(), a.get(), b.get(), d.get(), d.get(),
                                preference.get(), 1, result.data(), &found);
  if (status != 0 || found == 0)
    return unsupported(prefix + " has no algorithm for " + std::to_string(p.batch) + " x [" +
                       std::to_string(p.rows) + ", " + std::to_string(p.in) + "] x [" +
                       std::to_string(p.in) + ", " + std::to_string(p.out) + "]: status " +
                       std::to_string(status));
  const float alpha = 1, beta = 0;
  return check(lt.Matmul(handle_, desc.get(), &alpha, p.weight, a.get(), p.x, b.get(), &beta, p.y,
                         d.get(), p.y, d.get(), result.data(), workspace_, kWorkspace, stream),
               prefix + "Matmul");
}

} // namespace dsakit::optimized
