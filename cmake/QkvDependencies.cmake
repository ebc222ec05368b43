# What the library needs, each named with its remedy when it is missing or too old.
macro(qkv_find package debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    string(REGEX MATCH "[0-9.]+" qkv_needed "${ARGN}")
    message(FATAL_ERROR
            "qkv needs ${package} ${qkv_needed}: apt-get install ${debian} (or run `make deps`)")
  endif()
endmacro()

set(THREADS_PREFER_PTHREAD_FLAG ON)
qkv_find(Threads libc6-dev)
qkv_find(fmt libfmt-dev 9)
qkv_find(nlohmann_json nlohmann-json3-dev)
qkv_find(hwy libhwy-dev 1.0 CONFIG)

# utf8proc comes without a CMake package.
find_path(QKV_UTF8PROC_INCLUDE utf8proc.h)
find_library(QKV_UTF8PROC_LIBRARY utf8proc)
mark_as_advanced(QKV_UTF8PROC_INCLUDE QKV_UTF8PROC_LIBRARY)
if(NOT QKV_UTF8PROC_INCLUDE OR NOT QKV_UTF8PROC_LIBRARY)
  message(FATAL_ERROR "qkv needs utf8proc: apt-get install libutf8proc-dev (or run `make deps`)")
endif()
add_library(qkv_utf8proc UNKNOWN IMPORTED)
set_target_properties(qkv_utf8proc PROPERTIES
                      IMPORTED_LOCATION ${QKV_UTF8PROC_LIBRARY}
                      INTERFACE_INCLUDE_DIRECTORIES ${QKV_UTF8PROC_INCLUDE})
