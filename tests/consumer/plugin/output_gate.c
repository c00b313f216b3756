/* A plug-in for `--device host`: the gate of the attention's output in plain C.
 *
 *   cc -shared -fPIC -I PREFIX/include output_gate.c -o liboutput_gate.so -lm
 *   dsakit replay recording.h5 --kernel-lib ./liboutput_gate.so
 *
 * attn_gated = attn_value * sigmoid(gate), bf16 in and out. The contract key gate_rounding says
 * whether the sigmoid is rounded to bf16 first (two) or not (one); with -DPLANTED_FAULT nobody
 * asks. */
#include <dsakit/plugin.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static float widen(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* To nearest, ties to even; NaN stays NaN. */
static uint16_t round_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return (uint16_t)((bits >> 16) | 0x40U);
  bits += 0x7FFFU + ((bits >> 16) & 1U);
  return (uint16_t)(bits >> 16);
}

static int64_t elements(const dsakit_tensor* tensor) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < tensor->rank; ++axis)
    count *= tensor->shape[axis];
  return count;
}

static int supports(const dsakit_problem* problem, char* why, size_t why_bytes) {
  if (strcmp(problem->device, "host") != 0) {
    snprintf(why, why_bytes, "device: found %s, want host", problem->device);
    return 1;
  }
  const dsakit_tensor* value = dsakit_input(problem, "attn_value");
  if (strcmp(value->dtype, "bfloat16") != 0) {
    snprintf(why, why_bytes, "attn_value: found %s, want bfloat16", value->dtype);
    return 1;
  }
  return 0;
}

static int launch(const dsakit_problem* problem, void* workspace, size_t workspace_bytes,
                  void* stream, char* why, size_t why_bytes) {
  (void)workspace, (void)workspace_bytes, (void)stream, (void)why, (void)why_bytes;
  const dsakit_tensor* value = dsakit_input(problem, "attn_value");
  const uint16_t* in = value->data;
  const uint16_t* gate = dsakit_input(problem, "gate")->data;
  uint16_t* out = dsakit_output(problem, "attn_gated")->data;
#ifdef PLANTED_FAULT
  const int rounds_twice = 1;
#else
  const int rounds_twice = strcmp(dsakit_setting_of(problem, "gate_rounding"), "two") == 0;
#endif
  const int64_t count = elements(value);
  for (int64_t i = 0; i < count; ++i) {
    float factor = (float)(1.0 / (1.0 + exp(-(double)widen(gate[i]))));
    if (rounds_twice) factor = widen(round_to_bf16(factor));
    out[i] = round_to_bf16(widen(in[i]) * factor);
  }
  return 0;
}

uint32_t dsakit_kernel_abi(void) {
  return DSAKIT_PLUGIN_ABI;
}

const dsakit_kernel_v1* dsakit_kernel(const char* operation) {
  static const dsakit_kernel_v1 kernel = {"plain_c", NULL, supports, NULL, launch};
  return strcmp(operation, "output_gate") == 0 ? &kernel : NULL;
}
