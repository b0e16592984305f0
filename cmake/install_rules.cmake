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
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
