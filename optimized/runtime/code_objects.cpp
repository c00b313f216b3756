// Embeds the code objects. code_objects.inc, written while configuring, has a line for each:
// DSAKIT_CODE_OBJECT(arch, operation, "file").
#include "dsakit/optimized/code_objects.hpp"

#define DSAKIT_CODE_OBJECT(arch, operation, file)                                                  \
  asm(".pushsection .rodata.dsakit_code_objects, \"a\", @progbits\n"                               \
      ".balign 4096\n"                                                                             \
      "dsakit_" #arch "_" #operation ":\n"                                                         \
      ".incbin \"" file "\"\n"                                                                     \
      "dsakit_" #arch "_" #operation "_end:\n"                                                     \
      ".byte 0\n"                                                                                  \
      ".popsection\n");                                                                            \
  extern "C" const std::byte dsakit_##arch##_##operation[];                                        \
  extern "C" const std::byte dsakit_##arch##_##operation##_end[];
#include "code_objects.inc"
#undef DSAKIT_CODE_OBJECT

namespace dsakit::optimized {

const std::vector<CodeObject>& code_objects() {
#define DSAKIT_CODE_OBJECT(arch, operation, file)                                                  \
  {Arch::arch, #operation, dsakit_##arch##_##operation,                                            \
   static_cast<std::size_t>(dsakit_##arch##_##operation##_end - dsakit_##arch##_##operation)},
  static const std::vector<CodeObject> all = {
#include "code_objects.inc"
  };
#undef DSAKIT_CODE_OBJECT
  return all;
}

} // namespace dsakit::optimized
