// A stand-in for hipBLASLt that multiplies bf16 matrices on the streams of the stand-in HIP
// runtime. It refuses what the real one does not take: matrices that do not fit, memory that is not
// the device's, a workspace or an algorithm that it did not ask for.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>

extern "C" int fake_hip_enqueue(void* stream, const std::function<int()>& work);
extern "C" bool fake_hip_is_device_memory(const void* memory, std::size_t bytes);

namespace {

constexpr int kInvalidValue = 3; // HIPBLAS_STATUS_INVALID_VALUE
constexpr int kFp32 = 0;         // HIP_R_32F
constexpr int kBf16 = 14;        // HIP_R_16BF
constexpr int kComputeFp32 = 2;  // HIPBLAS_COMPUTE_32F
constexpr int kNoTranspose = 111, kTranspose = 112;
constexpr std::uint64_t kAlgorithm = 0x5EED;

struct Desc {
  std::int32_t op_a = kNoTranspose;
};
/// Column-major.
struct Layout {
  std::int64_t rows, columns, leading;
  std::int32_t batch = 1;
  std::int64_t stride = 0;

  std::int64_t at(std::int64_t b, std::int64_t row, std::int64_t column) const {
    return b * stride + column * leading + row;
  }
  std::size_t bytes() const {
    return static_cast<std::size_t>(at(batch - 1, rows - 1, columns - 1) + 1) * 2;
  }
};
struct Preference {
  std::uint64_t workspace = 0;
};

int refuse(const char* why) {
  std::fprintf(stderr, "fake hipBLASLt: %s\n", why);
  return kInvalidValue;
}

template <class T>
int set(T& member, const void* value, std::size_t size) {
  if (size != sizeof(T)) return refuse("an attribute of another size");
  std::memcpy(&member, value, sizeof(T));
  return 0;
}

float widened(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
std::uint16_t narrowed(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return 0x7FC0;
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// op(A) B, with D's form.
bool fits(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  const bool transposed = desc.op_a == kTranspose;
  return (transposed ? a.columns : a.rows) == d.rows && b.columns == d.columns &&
         (transposed ? a.rows : a.columns) == b.rows && a.batch == d.batch && b.batch == d.batch &&
         a.leading >= a.rows && b.leading >= b.rows && d.leading >= d.rows;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int hipblasLtCreate(void** handle) {
  *handle = new int(0);
  return 0;
}
EXPORT int hipblasLtDestroy(void* handle) {
  delete static_cast<int*>(handle);
  return 0;
}

EXPORT int hipblasLtMatmulDescCreate(Desc** desc, int compute, int scale) {
  if (compute != kComputeFp32 || scale != kFp32) return refuse("sums in another type than fp32");
  *desc = new Desc;
  return 0;
}
EXPORT int hipblasLtMatmulDescDestroy(Desc* desc) {
  delete desc;
  return 0;
}
EXPORT int hipblasLtMatmulDescSetAttribute(Desc* desc, int key, const void* value,
                                           std::size_t size) {
  return key == 0 ? set(desc->op_a, value, size) : refuse("an unknown attribute of a product");
}

EXPORT int hipblasLtMatrixLayoutCreate(Layout** layout, int dtype, std::uint64_t rows,
                                       std::uint64_t columns, std::int64_t leading) {
  if (dtype != kBf16) return refuse("a matrix of another type than bf16");
  *layout =
      new Layout{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), leading};
  return 0;
}
EXPORT int hipblasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return 0;
}
EXPORT int hipblasLtMatrixLayoutSetAttribute(Layout* layout, int key, const void* value,
                                             std::size_t size) {
  if (key == 0) return set(layout->batch, value, size);
  if (key == 1) return set(layout->stride, value, size);
  return refuse("an unknown attribute of a matrix");
}

EXPORT int hipblasLtMatmulPreferenceCreate(Preference** preference) {
  *preference = new Preference;
  return 0;
}
EXPORT int hipblasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return 0;
}
EXPORT int hipblasLtMatmulPreferenceSetAttribute(Preference* preference, int key, const void* value,
                                                 std::size_t size) {
  return key == 1 ? set(preference->workspace, value, size) : refuse("an unknown preference");
}

EXPORT int hipblasLtMatmulAlgoGetHeuristic(void*, const Desc* desc, const Layout* a,
                                           const Layout* b, const Layout*, const Layout* d,
                                           const Preference*, int wanted, void* results,
                                           int* found) {
  *found = 0;
  if (!fits(*desc, *a, *b, *d)) return refuse("matrices that do not fit");
  if (wanted < 1) return 0;
  std::memcpy(results, &kAlgorithm, sizeof kAlgorithm);
  *found = 1;
  return 0;
}

EXPORT int hipblasLtMatmul(void*, const Desc* desc, const float* alpha, const std::uint16_t* a,
                           const Layout* a_layout, const std::uint16_t* b, const Layout* b_layout,
                           const float* beta, const std::uint16_t*, const Layout*, std::uint16_t* d,
                           const Layout* d_layout, const void* algorithm, void* workspace,
                           std::size_t workspace_bytes, void* stream) {
  if (!fits(*desc, *a_layout, *b_layout, *d_layout)) return refuse("matrices that do not fit");
  if (*alpha != 1 || *beta != 0) return refuse("other factors than 1 and 0");
  if (std::memcmp(algorithm, &kAlgorithm, sizeof kAlgorithm) != 0)
    return refuse("an algorithm that no heuristic gave");
  if (!fake_hip_is_device_memory(a, a_layout->bytes()) ||
      !fake_hip_is_device_memory(b, b_layout->bytes()) ||
      !fake_hip_is_device_memory(d, d_layout->bytes()) ||
      !fake_hip_is_device_memory(workspace, workspace_bytes))
    return refuse("a matrix or a workspace that leaves its allocation");
  return fake_hip_enqueue(stream, [=, x = *desc, la = *a_layout, lb = *b_layout, ld = *d_layout] {
    for (std::int64_t batch = 0; batch < ld.batch; ++batch)
      for (std::int64_t column = 0; column < ld.columns; ++column)
        for (std::int64_t row = 0; row < ld.rows; ++row) {
          float sum = 0;
          for (std::int64_t k = 0; k < lb.rows; ++k)
            sum += widened(a[x.op_a == kTranspose ? la.at(batch, k, row) : la.at(batch, row, k)]) *
                   widened(b[lb.at(batch, k, column)]);
          d[ld.at(batch, row, column)] = narrowed(sum);
        }
    return 0;
  });
}
