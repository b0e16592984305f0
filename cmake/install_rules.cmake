# What `cmake --install` puts in place: the library, its headers, and a package that find_package(shortlist) reads.
include(CMakePackageConfigHelpers)

set(shortlist_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shortlist)
install(TARGETS shortlist EXPORT shortlist_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/shortlist DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(EXPORT shortlist_targets NAMESPACE shortlist:: FILE shortlist-targets.cmake DESTINATION ${shortlist_package_dir})
configure_package_config_file(cmake/shortlist-config.cmake.in ${CMAKE_BINARY_DIR}/shortlist-config.cmake
                              INSTALL_DESTINATION ${shortlist_package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/shortlist-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/shortlist-config.cmake ${CMAKE_BINARY_DIR}/shortlist-config-version.cmake
        DESTINATION ${shortlist_package_dir})
# Tests and benchmarks go along only when asked for: cmake --install ... --component measure.
set(shortlist_measure_targets)
foreach(folder tests benchmarks)
  if(IS_DIRECTORY ${CMAKE_BINARY_DIR}/${folder})
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    list(APPEND shortlist_measure_targets ${targets})
  endif()
endforeach()
foreach(target ${shortlist_measure_targets})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT measure EXCLUDE_FROM_ALL)
  endif()
endforeach()

install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
