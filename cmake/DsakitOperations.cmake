# Nothing exists alone: an operation with a kernel or a comparison rule has all that is listed here, or
# configuring fails and names what is missing.
file(GLOB kernels CONFIGURE_DEPENDS optimized/kernels/*/*.hip)
file(GLOB rules CONFIGURE_DEPENDS golden/rules/*.json)
file(GLOB reference_headers CONFIGURE_DEPENDS reference/include/dsakit/reference/*.hpp)
set(reference)
foreach(header ${reference_headers})
  file(READ ${header} text)
  string(APPEND reference "${text}")
endforeach()

set(operations)
foreach(path ${kernels} ${rules})
  get_filename_component(operation ${path} NAME_WE)
  list(APPEND operations ${operation})
endforeach()
list(REMOVE_DUPLICATES operations)

set(missing)
foreach(operation ${operations})
  foreach(path
      optimized/include/dsakit/optimized/${operation}.hpp
      optimized/kernels/${operation}/${operation}.hip
      optimized/kernels/${operation}/audit.json
      optimized/kernels/${operation}/README.md
      tests/parity/${operation}_test.cpp
      bench/${operation}_bench.cpp
      golden/rules/${operation}.json)
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${path})
      string(APPEND missing "\n  ${operation}: ${path}")
    endif()
  endforeach()
  if(NOT reference MATCHES "[^a-z_]${operation}\\(")
    string(APPEND missing "\n  ${operation}: a function of that name in reference/include/dsakit/reference")
  endif()
endforeach()
if(missing)
  message(FATAL_ERROR "An operation is not complete. Missing:${missing}")
endif()
