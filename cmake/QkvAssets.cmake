# The files of src/viewer/assets become strings of the library, so that a page needs no file beside
# the program. cmake/embed.cmake writes them whenever one has changed.
file(GLOB qkv_assets CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/viewer/assets/*)
set(qkv_assets_source ${PROJECT_BINARY_DIR}/viewer_assets.cpp)
add_custom_command(OUTPUT ${qkv_assets_source}
                   COMMAND ${CMAKE_COMMAND} -D OUTPUT=${qkv_assets_source}
                           -D "ASSETS=${qkv_assets}" -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
                   DEPENDS ${qkv_assets} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
                   COMMENT "Embedding the assets of the viewer" VERBATIM)
target_sources(qkv PRIVATE ${qkv_assets_source})
