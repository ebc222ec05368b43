# What the library needs, each named with its remedy when it is missing.
macro(qkv_find package debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "qkv needs ${package}: apt-get install ${debian} (or run `make deps`)")
  endif()
endmacro()

set(THREADS_PREFER_PTHREAD_FLAG ON)
qkv_find(Threads libc6-dev)
qkv_find(fmt libfmt-dev)
qkv_find(nlohmann_json nlohmann-json3-dev)
qkv_find(hwy libhwy-dev CONFIG)
