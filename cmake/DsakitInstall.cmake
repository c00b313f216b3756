# Installs the libraries, headers, CLI and code objects, and what find_package(dsakit) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

foreach(library core reference optimized harness)
  set_target_properties(dsakit_${library} PROPERTIES EXPORT_NAME ${library})
endforeach()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/dsakit)
install(TARGETS dsakit_core dsakit_reference dsakit_optimized dsakit_harness EXPORT dsakit
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS dsakit RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY reference/include/ optimized/include/ harness/include/
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.hpp PATTERN *.h)
install(DIRECTORY ${CMAKE_BINARY_DIR}/code_objects/ DESTINATION ${CMAKE_INSTALL_LIBDIR}/dsakit
  FILES_MATCHING PATTERN *.hsaco PATTERN *.json PATTERN include EXCLUDE)
install(EXPORT dsakit NAMESPACE dsakit:: DESTINATION ${package_folder} FILE dsakit-targets.cmake)

configure_package_config_file(cmake/dsakit-config.cmake.in ${CMAKE_BINARY_DIR}/dsakit-config.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/dsakit-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/dsakit-config.cmake ${CMAKE_BINARY_DIR}/dsakit-config-version.cmake
  DESTINATION ${package_folder})
