# Nothing exists alone: an operation with a kernel or a comparison rule has all that is listed here, or
# configuring fails and names what is missing. A kernel <operation>_mxfp4.hip beside <operation>.hip has
# its own reference, parity test and benchmark, and shares the rest.
file(GLOB kernels CONFIGURE_DEPENDS optimized/kernels/*/*.hip)
file(GLOB rules CONFIGURE_DEPENDS golden/rules/*.json)
file(GLOB reference_headers CONFIGURE_DEPENDS reference/include/dsakit/reference/*.hpp)
set(reference)
foreach(header ${reference_headers})
  file(READ ${header} text)
  string(APPEND reference "${text}")
endforeach()

set(variants) # kernels, and operations with a rule
foreach(path ${kernels} ${rules})
  get_filename_component(variant ${path} NAME_WE)
  list(APPEND variants ${variant})
endforeach()
list(REMOVE_DUPLICATES variants)

set(missing)
foreach(variant ${variants})
  string(REGEX REPLACE "_mxfp4$" "" operation ${variant})
  foreach(path
      optimized/include/dsakit/optimized/${operation}.hpp
      optimized/kernels/${operation}/${operation}.hip
      optimized/kernels/${operation}/audit.json
      optimized/kernels/${operation}/README.md
      tests/parity/${variant}_test.cpp
      bench/${variant}_bench.cpp
      golden/rules/${operation}.json)
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${path})
      string(APPEND missing "\n  ${variant}: ${path}")
    endif()
  endforeach()
  if(NOT reference MATCHES "[^a-z0-9_]${variant}\\(")
    string(APPEND missing "\n  ${variant}: a function of that name in reference/include/dsakit/reference")
  endif()
endforeach()
if(missing)
  message(FATAL_ERROR "An operation is not complete. Missing:${missing}")
endif()
