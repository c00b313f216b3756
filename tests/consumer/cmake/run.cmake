# cmake -DBUILD=<build tree of dsakit> -DWORK=<folder> -DSOURCE=<this folder> -DCOMPILER=<c++>
#   -DRECORDING=<a recording with an output_gate> -DPLUGIN=<output_gate.c> -P run.cmake
# Installs dsakit to an empty prefix and moves that, then configures, builds and runs the consumer against it.
file(REMOVE_RECURSE ${WORK})
foreach(step
    "${CMAKE_COMMAND};--install;${BUILD};--prefix;${WORK}/installed"
    "${CMAKE_COMMAND};-E;rename;${WORK}/installed;${WORK}/moved"
    "${CMAKE_COMMAND};-S;${SOURCE};-B;${WORK}/build;-G;Ninja;-DCMAKE_PREFIX_PATH=${WORK}/moved;-DCMAKE_CXX_COMPILER=${COMPILER};-DRECORDING=${RECORDING};-DPLUGIN=${PLUGIN}"
    "${CMAKE_COMMAND};--build;${WORK}/build"
    "${CMAKE_CTEST_COMMAND};--test-dir;${WORK}/build;--output-on-failure;--no-tests=error")
  execute_process(COMMAND ${step} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# What was installed names neither the source nor the build tree.
file(GLOB_RECURSE files ${WORK}/moved/lib*/cmake/dsakit/*.cmake)
if(NOT files)
  message(FATAL_ERROR "${WORK}/moved: found no CMake files")
endif()
foreach(file IN LISTS files)
  file(READ ${file} text)
  foreach(path ${BUILD} ${SOURCE} ${WORK}/installed)
    string(FIND "${text}" "${path}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${file}: found ${path}, want no path of the machine that built")
    endif()
  endforeach()
endforeach()
