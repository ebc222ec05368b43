# The CUDA backend is other source files, never an #ifdef: without it absent.cpp is compiled, whose
# every call is an Error. QKV_CUDA = AUTO takes what the machine has, ON insists, OFF declines.
set(qkv_cuda "off")
if(QKV_CUDA)  # AUTO or ON
  # NVIDIA's own packages leave nvcc off the PATH.
  find_program(QKV_NVCC nvcc PATHS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
  if(QKV_NVCC)
    set(qkv_cuda "no CUDA sources yet: CPU only, although ${QKV_NVCC} was found")
  elseif(QKV_CUDA STREQUAL "AUTO")
    set(qkv_cuda "off (no nvcc)")
  else()
    message(FATAL_ERROR "QKV_CUDA=ON needs nvcc: install the CUDA toolkit and put its bin on PATH, "
                        "or configure with -DQKV_CUDA=OFF")
  endif()
endif()
message(STATUS "CUDA: ${qkv_cuda}")
# A library of its own, so that `make cuda` compiles what CUDA changes and nothing else.
add_library(qkv-cuda OBJECT src/cuda/absent.cpp)
qkv_target(qkv-cuda)
target_compile_features(qkv-cuda PUBLIC cxx_std_20)
target_include_directories(qkv-cuda PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(qkv-cuda PRIVATE fmt::fmt)
if(BUILD_SHARED_LIBS)
  set_target_properties(qkv-cuda PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()
target_sources(qkv PRIVATE $<TARGET_OBJECTS:qkv-cuda>)
