/* A plug-in for `--device hip` that wraps a kernel in a code object (.hsaco) by its symbol, here
 * the installed topk_slots of dsakit, as one would wrap one's own:
 *
 *   cc -shared -fPIC -I PREFIX/include code_object.c -o libcode_object.so -ldl
 *   CODE_OBJECT=PREFIX/lib/dsakit/topk_slots.gfx942.hsaco \
 *     dsakit replay recording.h5 --device hip --kernel-lib ./libcode_object.so
 *
 * Symbol, block and the offsets of the arguments are those of the manifest beside the code object,
 * topk_slots.gfx942.json. HIP's few functions are loaded here, so that no ROCm is needed to build;
 * code that has it includes <hip/hip_runtime.h> and links amdhip64 instead. */
#include <dsakit/plugin.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Byte for byte what the kernels take by value. */
typedef struct Arguments {
  const int32_t* topk_indices;
  const int32_t* block_table;
  const int32_t* row_request;
  int32_t* slots;
  int32_t* compact_slots;
  int32_t* counts;
  int64_t rows;
  int64_t table_stride;
  int32_t k;
  int32_t requests;
  int32_t table_columns;
  int32_t page_size;
  int32_t block_stride;
  int32_t dcp_world;
  int32_t dcp_interleave;
  int32_t dcp_rank;
} Arguments;

enum { kBlock = 256 };

typedef int (*LoadData)(void** module, const void* image);
typedef int (*GetFunction)(void** function, void* module, const char* symbol);
typedef int (*LaunchKernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned lds_bytes, void* stream, void** params, void** extra);

static LaunchKernel launch_kernel;

static int say(char* why, size_t why_bytes, const char* what, const char* which) {
  snprintf(why, why_bytes, "%s %s", what, which);
  return 1;
}

/* NULL where it cannot be read. */
static void* read_file(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) return NULL;
  const long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  void* content = bytes > 0 ? malloc((size_t)bytes) : NULL;
  if (content &&
      (fseek(file, 0, SEEK_SET) != 0 || fread(content, 1, (size_t)bytes, file) != (size_t)bytes)) {
    free(content);
    content = NULL;
  }
  fclose(file);
  return content;
}

/* The kernel of that symbol in the file that CODE_OBJECT names. */
static int load(const char* symbol, void** function, char* why, size_t why_bytes) {
  static const char* const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
  static void* hip;
  for (size_t i = 0; !hip && i < sizeof names / sizeof *names; ++i)
    hip = dlopen(names[i], RTLD_NOW);
  if (!hip) return say(why, why_bytes, "cannot load libamdhip64:", dlerror());
  const LoadData load_data = (LoadData)dlsym(hip, "hipModuleLoadData");
  const GetFunction get_function = (GetFunction)dlsym(hip, "hipModuleGetFunction");
  launch_kernel = (LaunchKernel)dlsym(hip, "hipModuleLaunchKernel");

  const char* path = getenv("CODE_OBJECT");
  void* image = path ? read_file(path) : NULL;
  if (!image) return say(why, why_bytes, "cannot read CODE_OBJECT:", path ? path : "it is not set");
  void* module;
  if (load_data(&module, image) != 0)
    return say(why, why_bytes, "not a code object for this GPU:", path);
  if (get_function(function, module, symbol) != 0)
    return say(why, why_bytes, "the code object has no kernel", symbol);
  return 0;
}

static int supports(const dsakit_problem* problem, char* why, size_t why_bytes) {
  if (strcmp(problem->device, "hip") == 0) return 0;
  return say(why, why_bytes, "device: want hip, found", problem->device);
}

static int32_t number(const dsakit_problem* problem, const char* key, int32_t missing) {
  const char* text = dsakit_setting_of(problem, key);
  return text ? (int32_t)strtol(text, NULL, 10) : missing;
}

static void* data_of(const dsakit_tensor* tensor) {
  return tensor ? tensor->data : NULL;
}

static int launch(const dsakit_problem* problem, void* workspace, size_t workspace_bytes,
                  void* stream, char* why, size_t why_bytes) {
  (void)workspace, (void)workspace_bytes;
  const dsakit_tensor* indices = dsakit_input(problem, "topk_indices");
  const dsakit_tensor* table = dsakit_input(problem, "block_table");
  const int32_t page_size = number(problem, "page_size", 0);
  const Arguments arguments = {
      indices->data,
      table->data,
      dsakit_input(problem, "row_request")->data,
      data_of(dsakit_output(problem, "slots")),
      data_of(dsakit_output(problem, "compact_slots")),
      data_of(dsakit_output(problem, "counts")),
      indices->shape[0],
      table->shape[1],
      (int32_t)indices->shape[1],
      (int32_t)table->shape[0],
      (int32_t)table->shape[1],
      page_size,
      number(problem, "slots.block_stride", page_size),
      number(problem, "dcp_world", 1),
      number(problem, "dcp_interleave", 1),
      number(problem, "slots.dcp_rank", 0),
  };

  const int compacts = arguments.compact_slots != NULL || arguments.counts != NULL;
  void* function;
  if (load(compacts ? "dsakit_topk_slots_compact" : "dsakit_topk_slots", &function, why, why_bytes))
    return 1;
  /* The compacting kernel takes a workgroup a row, the other a lane an element. */
  const int64_t grid =
      compacts ? arguments.rows : (arguments.rows * arguments.k + kBlock - 1) / kBlock;
  if (grid == 0) return 0;
  size_t bytes = sizeof arguments;
  /* The tags are HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END. */
  void* extra[] = {(void*)1, (void*)&arguments, (void*)2, &bytes, (void*)3};
  if (launch_kernel(function, (unsigned)grid, 1, 1, kBlock, 1, 1, 0, stream, NULL, extra) != 0)
    return say(why, why_bytes, "hipModuleLaunchKernel refused", problem->operation);
  return 0;
}

uint32_t dsakit_kernel_abi(void) {
  return DSAKIT_PLUGIN_ABI;
}

const dsakit_kernel_v1* dsakit_kernel(const char* operation) {
  static const dsakit_kernel_v1 kernel = {"code_object", NULL, supports, NULL, launch};
  return strcmp(operation, "topk_slots") == 0 ? &kernel : NULL;
}
