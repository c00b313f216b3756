/* A plug-in for topk_slots that goes wrong as the variable FAULT says, each time it is asked. */
#include <dsakit/plugin.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char* fault) {
  const char* wanted = getenv("FAULT");
  return wanted != NULL && strcmp(wanted, fault) == 0;
}

__attribute__((constructor)) static void on_load(void) {
  if (is("crash_on_load")) abort();
}

static void hang(void) {
  for (;;)
    pause();
}

static void write_at(const dsakit_tensor* tensor, int64_t byte) {
  ((volatile unsigned char*)tensor->data)[byte] ^= 0x55U;
}

static int64_t bytes_of_int32(const dsakit_tensor* tensor) {
  int64_t count = 4;
  for (int32_t axis = 0; axis < tensor->rank; ++axis)
    count *= tensor->shape[axis];
  return count;
}

static int supports(const dsakit_problem* problem, char* why, size_t why_bytes) {
  if (is("refuse")) snprintf(why, why_bytes, "page_size: found 16, want 64");
  if (is("long_answer")) memset(why, 'x', why_bytes);
  const char* tile = dsakit_setting_of(problem, "configuration.tile");
  if (is("configuration")) snprintf(why, why_bytes, "tile is %s", tile != NULL ? tile : "open");
  return is("refuse") || is("long_answer") || is("silent") || is("configuration");
}

static size_t workspace_bytes(const dsakit_problem* problem) {
  (void)problem;
  return 100;
}

static int launch(const dsakit_problem* problem, void* workspace, size_t bytes, void* stream,
                  char* why, size_t why_bytes) {
  (void)stream;
  const dsakit_tensor* slots = dsakit_output(problem, "slots");
  if (is("crash")) raise(SIGSEGV);
  if (is("hang")) hang();
  if (is("exit")) exit(0);
  if (is("print")) printf("noise\n"), fflush(stdout);
  if (is("fail")) snprintf(why, why_bytes, "out of luck");
  if (is("beside_output")) write_at(slots, bytes_of_int32(slots));
  if (is("changes_input")) write_at(dsakit_input(problem, "block_table"), 0);
  if (is("beside_workspace")) ((volatile char*)workspace)[bytes] = 0;
  return is("fail");
}

uint32_t dsakit_kernel_abi(void) {
  return is("abi") ? DSAKIT_PLUGIN_ABI + 1 : DSAKIT_PLUGIN_ABI;
}

#ifndef WITHOUT_ENTRY_POINT
const dsakit_kernel_v1* dsakit_kernel(const char* operation) {
  static const dsakit_kernel_v1 kernel = {"broken", NULL, supports, workspace_bytes, launch};
  static const dsakit_kernel_v1 nameless = {NULL, NULL, NULL, NULL, launch};
  static const dsakit_kernel_v1 strange = {"broken", "fp64", NULL, NULL, launch};
  if (is("empty") || strcmp(operation, "topk_slots") != 0) return NULL;
  return is("nameless") ? &nameless : is("accumulation") ? &strange : &kernel;
}
#endif
