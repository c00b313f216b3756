# Nothing exists alone: an operation with a kernel or a comparison rule has all that is listed here, or
# configuring fails and names what is missing. A kernel <operation>_mxfp4.hip beside <operation>.hip has
# its own reference, parity test and benchmark, and shares the rest. Where operations share what computes
# them, they are named here: operation, its part in optimized/, and the function of the reference.
set(shared_parts
  "qkv_a_proj   projection project"
  "q_b_proj     projection project"
  "index_q_proj projection project"
  "index_k_proj projection project"
  "index_w_proj projection project"
  "gate_proj    projection project"
  "o_proj       projection project"
  "absorb_q     projection absorb_q"
  "absorb_v     projection absorb_v"
  "q_norm       rms_norm   apply_norm"
  "kv_norm      rms_norm   apply_norm"
  "layer        layer      forward")
# Without a kernel of their own: a library's, and what runs the other operations.
set(library_parts projection layer)
# Kernels that serve operations and are none: recordings hold nothing of them, so that they have no rule.
set(serving_kernels weight_dequant)

file(GLOB kernels CONFIGURE_DEPENDS optimized/kernels/*/*.hip)
file(GLOB rules CONFIGURE_DEPENDS golden/rules/*.json)
file(GLOB reference_headers CONFIGURE_DEPENDS reference/include/dsakit/reference/*.hpp)
set(reference)
foreach(header ${reference_headers})
  file(READ ${header} text)
  string(APPEND reference "${text}")
endforeach()

set(variants)
set(parts)
foreach(shared ${shared_parts})
  string(REGEX REPLACE " +" ";" shared ${shared})
  list(POP_FRONT shared operation)
  list(POP_FRONT shared part_of_${operation} function_of_${operation})
  list(APPEND variants ${operation})
  list(APPEND parts ${part_of_${operation}})
endforeach()
foreach(path ${kernels} ${rules})
  get_filename_component(variant ${path} NAME_WE)
  if(NOT variant IN_LIST parts)
    list(APPEND variants ${variant})
  endif()
endforeach()
list(REMOVE_DUPLICATES variants)

set(missing)
foreach(variant ${variants})
  string(REGEX REPLACE "_mxfp4$" "" operation ${variant})
  set(part ${operation})
  set(test ${variant})
  set(function ${variant})
  if(DEFINED part_of_${operation})
    set(part ${part_of_${operation}})
    set(test ${part})
    set(function ${function_of_${operation}})
  endif()
  set(paths
    optimized/include/dsakit/optimized/${part}.hpp
    tests/parity/${test}_test.cpp
    bench/${test}_bench.cpp)
  if(NOT operation IN_LIST serving_kernels)
    list(APPEND paths golden/rules/${operation}.json)
  endif()
  if(NOT part IN_LIST library_parts)
    list(APPEND paths
      optimized/kernels/${part}/${part}.hip
      optimized/kernels/${part}/audit.json
      optimized/kernels/${part}/README.md)
  endif()
  foreach(path ${paths})
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${path})
      string(APPEND missing "\n  ${variant}: ${path}")
    endif()
  endforeach()
  if(NOT reference MATCHES "[^a-z0-9_]${function}\\(")
    string(APPEND missing "\n  ${variant}: a function ${function} in reference/include/dsakit/reference")
  endif()
endforeach()
if(missing)
  message(FATAL_ERROR "An operation is not complete. Missing:${missing}")
endif()
