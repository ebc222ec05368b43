# Everything a program needs to use qkv through find_package(qkv) or pkg-config; tools/check-install
# builds one against an installed copy both ways.
include(CMakePackageConfigHelpers)
set(qkv_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qkv)

install(TARGETS qkv EXPORT qkv-targets)
install(DIRECTORY include/qkv TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE TYPE DOC)

get_target_property(qkv_type qkv TYPE)
configure_package_config_file(cmake/qkv-config.cmake.in qkv-config.cmake
                              INSTALL_DESTINATION ${qkv_package_dir})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(qkv-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT qkv-targets NAMESPACE qkv:: DESTINATION ${qkv_package_dir})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/qkv-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/qkv-config-version.cmake
        DESTINATION ${qkv_package_dir})

# Relative to the .pc file, so that an installed copy may be moved.
set(qkv_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH qkv_pc_prefix /prefix/${qkv_pc_dir} /prefix)
set(qkv_pc_requires)
if(qkv_type STREQUAL "STATIC_LIBRARY")  # a shared one has them in it
  set(qkv_pc_requires "Requires.private: libhwy fmt libutf8proc\n")
endif()
configure_file(cmake/qkv.pc.in qkv.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/qkv.pc DESTINATION ${qkv_pc_dir})
