# dsakit_flags(target): the flags of all our own code.
# x86-64-v3 is the baseline; wider vectors only by run-time dispatch. Contraction is off everywhere:
# an exact gate must not depend on which compiler fused a multiply and an add (spec 11).
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}") # assertions stay on

set(dsakit_warnings -Wall -Wextra -Wconversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees each inside std::string where there is none (its bugs 105651, 105562 and 105329).
  list(APPEND dsakit_warnings -Wno-restrict -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds)
endif()

set(dsakit_compiler)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # In 1 GiB it collects no garbage: a tenth less time for a sixth more memory.
  set(dsakit_compiler --param=ggc-min-heapsize=1048576)
endif()

function(dsakit_flags target)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3;-ffp-contract=off;${dsakit_warnings};${dsakit_compiler}>")
  if(DSAKIT_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()

# The headers of the standard library that most of the harness, the tools and the tests read.
set(dsakit_precompiled <algorithm> <cmath> <cstdint> <cstring> <filesystem> <fstream> <functional> <limits> <map>
  <memory> <optional> <regex> <span> <sstream> <string> <string_view> <vector>)

# dsakit_embed_json(variable folder): lines of a C++ table that holds each FOLDER/*.json of the tree, name and text.
function(dsakit_embed_json variable folder)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.json)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  foreach(file IN LISTS files)
    file(READ ${file} json)
    cmake_path(GET file FILENAME name)
    string(APPEND table "    {\"${folder}/${name}\", R\"json(${json})json\"},\n")
  endforeach()
  set(${variable} "${table}" PARENT_SCOPE)
endfunction()

# Two files of such a target cannot give different things one name, not even in unnamed namespaces.
function(dsakit_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${DSAKIT_UNITY} UNITY_BUILD_BATCH_SIZE 12
    UNITY_BUILD_CODE_BEFORE_INCLUDE "// NOLINTNEXTLINE(bugprone-suspicious-include): that is what a batch is")
endfunction()
