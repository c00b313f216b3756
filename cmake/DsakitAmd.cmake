# Code objects for AMD GPUs, from the same .hip sources that the host compiler builds.
#
#   dsakit_amd_code_objects(target source.hip...)
#       compiles every source for every arch that has a compiler, embeds the results into target and lists
#       them in DSAKIT_AMD_CODE_OBJECTS
#
# DSAKIT_GFX942_COMPILER and DSAKIT_GFX950_COMPILER name the compilers. Unset, the first of ROCm's own,
# clang++-19 to -22, and the clang-22 that tools/setup/clang22 unpacked that can build the arch is used;
# an arch without a compiler is left out, loudly, and OFF leaves it out on purpose. No HIP package is
# needed: sources compile against optimized/device/shim, and no device library is linked.

set(DSAKIT_AMD_ARCHS gfx942 gfx950)
set(DSAKIT_AMD_FLAGS -x hip --offload-device-only --no-gpu-bundle-output -nogpulib -nogpuinc -O3
  -std=c++17 -ffp-contract=off -mcode-object-version=5 -fuse-cuid=none -Wall -Wextra)

# Sets ${result}: compiler builds and links device code for arch.
function(dsakit_amd_probe compiler arch result)
  set(source ${CMAKE_BINARY_DIR}/CMakeFiles/dsakit_probe.hip)
  file(WRITE ${source} "__attribute__((global)) void probe(int* p) { *p = 1; }\n")
  execute_process(
    COMMAND ${compiler} ${DSAKIT_AMD_FLAGS} --offload-arch=${arch} -c ${source} -o ${source}.${arch}
    RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  if(status EQUAL 0)
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# Sets the cache variable DSAKIT_<ARCH>_COMPILER, left empty where nothing builds the arch.
function(dsakit_find_amd_compiler arch)
  string(TOUPPER ${arch} upper)
  set(variable DSAKIT_${upper}_COMPILER)
  if("${${variable}}" STREQUAL OFF)
    return()
  elseif(${variable})
    dsakit_amd_probe(${${variable}} ${arch} works)
    if(NOT works)
      message(FATAL_ERROR "${variable}: ${${variable}} does not build device code for ${arch}")
    endif()
  else()
    foreach(name amdclang++ clang++-19 clang++-20 clang++-21 clang++-22
            ${PROJECT_SOURCE_DIR}/build/toolchains/clang22/bin/clang++)
      unset(candidate)
      find_program(candidate NAMES ${name} NO_CACHE
        HINTS $ENV{ROCM_PATH}/llvm/bin $ENV{ROCM_PATH}/bin /opt/rocm/llvm/bin)
      if(candidate)
        dsakit_amd_probe(${candidate} ${arch} works)
        if(works)
          set(${variable} ${candidate})
          break()
        endif()
      endif()
    endforeach()
    set(${variable} "${${variable}}" CACHE FILEPATH "Compiler of the ${arch} code objects" FORCE)
  endif()
  if(${variable})
    message(STATUS "${arch} code objects: ${${variable}}")
  else()
    message(WARNING "${arch} IS LEFT OUT: no compiler for it was found. "
      "Install clang-19 and lld-19 (gfx942), run tools/setup/clang22 build/toolchains/clang22 (gfx942 "
      "and gfx950), or set ${variable}.")
  endif()
endfunction()

foreach(arch ${DSAKIT_AMD_ARCHS})
  dsakit_find_amd_compiler(${arch})
endforeach()

# The include directories are the target's own, so that host and device builds read the same headers.
# amd_commands.json lists the commands, in the form of compile_commands.json.
function(dsakit_amd_code_objects target)
  set(folder ${CMAKE_BINARY_DIR}/code_objects)
  file(MAKE_DIRECTORY ${folder})
  set(includes "$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>")
  set(objects)
  set(table)
  set(commands)
  foreach(arch ${DSAKIT_AMD_ARCHS})
    string(TOUPPER ${arch} upper)
    set(compiler ${DSAKIT_${upper}_COMPILER})
    if(NOT compiler)
      continue()
    endif()
    foreach(source ${ARGN})
      get_filename_component(source ${source} ABSOLUTE)
      get_filename_component(operation ${source} NAME_WE)
      set(object ${folder}/${operation}.${arch}.hsaco)
      # clang-22 ignores -MD in a device-only compile that also links, hence -Xclang.
      set(command ${compiler} ${DSAKIT_AMD_FLAGS} --offload-arch=${arch}
        "-I$<JOIN:${includes},$<SEMICOLON>-I>"
        -Xclang -dependency-file -Xclang ${object}.d -Xclang -MT -Xclang ${object}
        -c ${source} -o ${object})
      add_custom_command(OUTPUT ${object} COMMAND ${command} COMMAND_EXPAND_LISTS VERBATIM
        DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building ${operation}.${arch}.hsaco")
      list(APPEND objects ${object})
      string(APPEND table "DSAKIT_CODE_OBJECT(${arch}, ${operation}, \"${object}\")\n")
      string(REGEX REPLACE ";|\\$<SEMICOLON>" "\", \"" arguments "${command}")
      list(APPEND commands "{\"arch\": \"${arch}\", \"directory\": \"${CMAKE_CURRENT_BINARY_DIR}\", \"file\": \"${source}\", \"output\": \"${object}\", \"arguments\": [\"${arguments}\"]}")
    endforeach()
  endforeach()

  list(JOIN commands ",\n" commands)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/amd_commands.json CONTENT "[${commands}]\n")
  file(CONFIGURE OUTPUT ${folder}/include/code_objects.inc CONTENT "${table}" @ONLY)
  # runtime/code_objects.cpp reads the list and takes each file in by .incbin.
  set(embedder ${CMAKE_CURRENT_SOURCE_DIR}/runtime/code_objects.cpp)
  set_source_files_properties(${embedder} PROPERTIES
    OBJECT_DEPENDS "${objects}" INCLUDE_DIRECTORIES ${folder}/include)
  set(DSAKIT_AMD_CODE_OBJECTS ${objects} PARENT_SCOPE)
endfunction()
