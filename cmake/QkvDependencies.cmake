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
