/* Kernels of others behind --kernel-lib: a shared library that exports two functions, in plain C.
 *
 *   uint32_t dsakit_kernel_abi(void);                            returns DSAKIT_PLUGIN_ABI
 *   const dsakit_kernel_v1* dsakit_kernel(const char* operation); NULL: it has none for it
 *
 * Operations, tensors and contract keys have the names of docs/recordings.md. Tensors are row-major
 * and contiguous. Everything a problem points to lives until the call returns; what dsakit_kernel
 * returns lives as long as the library. docs/plugins.md says what is checked, and shows examples.
 */
#ifndef DSAKIT_PLUGIN_H
#define DSAKIT_PLUGIN_H

/* NOLINTBEGIN(modernize-deprecated-headers): this is C */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* NOLINTEND(modernize-deprecated-headers) */

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a struct below does. */
#define DSAKIT_PLUGIN_ABI 1

#if defined(_WIN32)
#define DSAKIT_PLUGIN_EXPORT __declspec(dllexport)
#else
#define DSAKIT_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

typedef struct dsakit_tensor {
  const char* name;     /* "index_cache" */
  const char* dtype;    /* as recorded: "bfloat16", "float8_e4m3fn", "uint8", ... */
  const int64_t* shape; /* fp4 counts bytes */
  int32_t rank;
  void* data; /* device memory, 256-byte aligned; on device "host" memory of the process */
} dsakit_tensor;

/* A contract key ("page_size"), a number of /config ("config.softmax_scale"), an attribute of a
 * tensor ("index_cache.page_offset") or what bench and sweep want tuned ("configuration.lanes", a
 * whole number above 0; missing: as the kernel likes), as text. */
typedef struct dsakit_setting {
  const char* key;
  const char* value;
} dsakit_setting;

typedef struct dsakit_problem {
  const char* operation; /* "topk" */
  const char* device;    /* "host" | "hip" | "cuda" */
  const char* arch;      /* "gfx942" | "gfx950" | "sm_90"; of host: whose lanes are modelled */
  const dsakit_tensor* inputs;  /* without those that an output holds, too */
  const dsakit_tensor* outputs; /* full of poison; one whose name is an input's (a cache that is
                                   written in place) starts as that input */
  const dsakit_setting* settings;
  int32_t input_count;
  int32_t output_count;
  int32_t setting_count;
} dsakit_problem;

/* `why` receives one line, cut to why_bytes with its 0. */
typedef struct dsakit_kernel_v1 {
  const char* name;         /* for reports */
  const char* accumulation; /* of its logits, latent and lse: "fp32" (NULL), "sm90_wgmma_fp8" */
  /* 0: it takes the problem. NULL: it takes all. */
  int (*supports)(const dsakit_problem* problem, char* why, size_t why_bytes);
  /* Bytes of device memory that launch may use, of unspecified content. NULL: none. */
  size_t (*workspace_bytes)(const dsakit_problem* problem);
  /* Puts the work on `stream` (a hipStream_t or cudaStream_t; NULL on device "host", where the work
   * is done on return) and returns 0. It does not wait; it may be called again. */
  int (*launch)(const dsakit_problem* problem, void* workspace, size_t workspace_bytes,
                void* stream, char* why, size_t why_bytes);
} dsakit_kernel_v1;

DSAKIT_PLUGIN_EXPORT uint32_t dsakit_kernel_abi(void);
DSAKIT_PLUGIN_EXPORT const dsakit_kernel_v1* dsakit_kernel(const char* operation);

/* NOLINTBEGIN(modernize-use-nullptr): this is C */
/* NULL where the problem has no input of that name. */
static inline const dsakit_tensor* dsakit_input(const dsakit_problem* problem, const char* name) {
  for (int32_t i = 0; i < problem->input_count; ++i)
    if (strcmp(problem->inputs[i].name, name) == 0) return &problem->inputs[i];
  return NULL;
}

/* NULL where the problem does not ask for that output. */
static inline const dsakit_tensor* dsakit_output(const dsakit_problem* problem, const char* name) {
  for (int32_t i = 0; i < problem->output_count; ++i)
    if (strcmp(problem->outputs[i].name, name) == 0) return &problem->outputs[i];
  return NULL;
}

/* NULL where nothing says so. */
static inline const char* dsakit_setting_of(const dsakit_problem* problem, const char* key) {
  for (int32_t i = 0; i < problem->setting_count; ++i)
    if (strcmp(problem->settings[i].key, key) == 0) return problem->settings[i].value;
  return NULL;
}

/* NOLINTEND(modernize-use-nullptr) */

#ifdef __cplusplus
}
#endif

#endif
