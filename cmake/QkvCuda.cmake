# The CUDA backend is other source files, never an #ifdef: without it absent.cpp is compiled, whose
# every call is an Error. QKV_CUDA = AUTO takes what the machine has, ON insists, OFF declines.
set(qkv_cuda "off")
set(qkv_cuda_sources src/cuda/absent.cpp)
set(qkv_with_cuda OFF)
if(QKV_CUDA)  # AUTO or ON
  # NVIDIA's own packages leave nvcc off the PATH.
  find_program(QKV_NVCC nvcc PATHS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
  if(QKV_NVCC)
    set(CMAKE_CUDA_COMPILER ${QKV_NVCC})
    # Device code for Hopper, and for other GPUs from Ampere on what the driver compiles when it
    # first runs. One architecture per file keeps the build short.
    set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90-real)
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc speaks C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    find_package(CUDAToolkit QUIET)
  endif()
  if(QKV_NVCC AND TARGET CUDA::cublasLt)
    set(qkv_with_cuda ON)
    set(qkv_cuda "${CUDAToolkit_VERSION}")
    file(GLOB qkv_cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/*.cpp)
    list(REMOVE_ITEM qkv_cuda_sources ${PROJECT_SOURCE_DIR}/src/cuda/absent.cpp)
  elseif(NOT QKV_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "QKV_CUDA=ON needs nvcc and cuBLAS: install the CUDA toolkit and put its "
                        "bin on PATH, or configure with -DQKV_CUDA=OFF")
  elseif(QKV_NVCC)
    set(qkv_cuda "off (${QKV_NVCC} without cuBLAS)")
  else()
    set(qkv_cuda "off (no nvcc)")
  endif()
endif()
message(STATUS "CUDA: ${qkv_cuda}")

# Libraries of their own, so that `make cuda` compiles what CUDA changes and nothing else.
function(qkv_cuda_library name)
  add_library(${name} OBJECT ${ARGN})
  qkv_target(${name})
  set_target_properties(${name} PROPERTIES CXX_STANDARD 20 CUDA_STANDARD 20)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE fmt::fmt)
  # constexpr functions of core/ run on the device too.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  if(QKV_RACECHECK)
    target_compile_definitions(${name} PRIVATE QKV_RACECHECK)
  endif()
  if(BUILD_SHARED_LIBS)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
  if(qkv_with_cuda)
    target_link_libraries(${name} PRIVATE CUDA::cudart_static CUDA::cublasLt)
  endif()
  target_sources(qkv PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()

# Kernels made of one architecture's own instructions are chosen at run time.
set(qkv_sm90_sources ${qkv_cuda_sources})
list(FILTER qkv_sm90_sources INCLUDE REGEX "_sm90\\.cu$")
list(FILTER qkv_cuda_sources EXCLUDE REGEX "_sm90\\.cu$")
qkv_cuda_library(qkv-cuda ${qkv_cuda_sources})
# Four products that add to the same registers: optimised further, the assembler puts them one after
# the other to save registers, and each waits for the one before.
set_source_files_properties(src/cuda/attention_mma_exact.cu PROPERTIES COMPILE_OPTIONS -Xptxas=-O1)
if(qkv_sm90_sources)
  qkv_cuda_library(qkv-cuda-sm90 ${qkv_sm90_sources})
  set_target_properties(qkv-cuda-sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
endif()
if(qkv_with_cuda)
  # cuBLAS is needed where a program is linked; the run time of CUDA is in the objects.
  target_link_libraries(qkv PRIVATE CUDA::cudart_static CUDA::cublasLt)
  set(qkv_cuda_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcublasLt -lcudart_static -ldl -lrt")
endif()
