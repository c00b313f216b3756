# dsakit_flags(target): the flags of all our own code.
# x86-64-v3 is the baseline; wider vectors only by run-time dispatch. Contraction is off everywhere:
# an exact gate must not depend on which compiler fused a multiply and an add (spec 11).
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3")

function(dsakit_flags target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3 -ffp-contract=off -Wall -Wextra -Wconversion>)
  if(DSAKIT_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()
