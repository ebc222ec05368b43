# The CUDA backend is other source files, never an #ifdef: without it absent.cpp is compiled, whose
# every call is an Error. QKV_CUDA = AUTO takes what the machine has, ON insists, OFF declines.
set(qkv_cuda "off")
set(qkv_cuda_sources src/cuda/absent.cpp)
set(qkv_with_cuda OFF)
if(QKV_CUDA)  # AUTO or ON
  # NVIDIA's own packages leave nvcc off the PATH.
  find_program(QKV_NVCC nvcc PATHS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
  if(QKV_NVCC AND NOT CMAKE_CUDA_COMPILER)
    include(CheckLanguage)
    set(ENV{CUDACXX} ${QKV_NVCC})
    unset(CMAKE_CUDA_COMPILER CACHE)  # it may have been repaired since
    check_language(CUDA)  # one that cannot compile is no reason to fail
  endif()
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # each library says its own
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc speaks C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    find_package(CUDAToolkit QUIET)
  endif()
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublasLt)
    set(qkv_with_cuda ON)
    set(qkv_cuda "${CUDAToolkit_VERSION}")
    file(GLOB qkv_cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/*.cpp)
    list(REMOVE_ITEM qkv_cuda_sources ${PROJECT_SOURCE_DIR}/src/cuda/absent.cpp)
  elseif(NOT QKV_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "QKV_CUDA=ON needs an nvcc that compiles (found: ${QKV_NVCC}) and cuBLAS: "
                        "install the CUDA toolkit and put its bin on PATH, or configure with "
                        "-DQKV_CUDA=OFF. Why it does not compile is in CMakeError.log (or "
                        "CMakeConfigureLog.yaml) of ${PROJECT_BINARY_DIR}/CMakeFiles")
  elseif(QKV_NVCC AND NOT CMAKE_CUDA_COMPILER)
    set(qkv_cuda "off (${QKV_NVCC} does not compile; CMakeFiles/ has a log that says why)")
  elseif(QKV_NVCC)
    set(qkv_cuda "off (${QKV_NVCC} without cuBLAS)")
  else()
    set(qkv_cuda "off (no nvcc)")
  endif()
endif()
message(STATUS "CUDA: ${qkv_cuda}")

# Libraries of their own, so that `make cuda` compiles what CUDA changes and nothing else.
function(qkv_cuda_library name)
  cmake_parse_arguments(PARSE_ARGV 1 library "" "" "CODE;SOURCES")
  add_library(${name} OBJECT ${library_SOURCES})
  qkv_target(${name})
  set_target_properties(${name} PROPERTIES CXX_STANDARD 20 CUDA_STANDARD 20)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE fmt::fmt)
  # constexpr functions of core/ run on the device too.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  foreach(code IN LISTS library_CODE)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--generate-code=${code}>)
  endforeach()
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

# Moves those that match from qkv_cuda_sources to the list `taken`.
function(qkv_take_cuda_sources taken pattern)
  set(matching ${qkv_cuda_sources})
  list(FILTER matching INCLUDE REGEX "${pattern}")
  list(FILTER qkv_cuda_sources EXCLUDE REGEX "${pattern}")
  set(${taken} ${matching} PARENT_SCOPE)
  set(qkv_cuda_sources ${qkv_cuda_sources} PARENT_SCOPE)
endfunction()

if(qkv_with_cuda)
  # What is made of one architecture's own instructions is chosen at run time.
  qkv_take_cuda_sources(qkv_sm90_sources "_sm90[.]cu$")
  qkv_cuda_library(qkv-cuda-sm90 CODE "arch=compute_90a,code=sm_90a" SOURCES ${qkv_sm90_sources})
  # Floats that matrix instructions multiply are rounded by an instruction that only Hopper has. All
  # that makes a score of floats again has to be here, for the same bits.
  qkv_take_cuda_sources(qkv_exact_sources "_mma_exact[.]cu$")
  qkv_take_cuda_sources(qkv_floats_sources "_mma_(floats|rows|tf32)[.]cu$")
  qkv_cuda_batch(cuda_floats qkv_floats_sources)
  qkv_cuda_library(qkv-cuda-floats
    CODE "arch=compute_80,code=compute_80" "arch=compute_90,code=sm_90"
    SOURCES ${qkv_floats_sources} ${qkv_exact_sources})
  # Four products that add to the same registers: optimised further, the assembler puts them one
  # after the other to save registers, and each waits for the one before.
  set_source_files_properties(src/cuda/attention_mma_exact.cu
    PROPERTIES COMPILE_OPTIONS -Xptxas=-O1)
  # All else is compiled once, which keeps the build short: to machine code for Hopper, and to what
  # the driver of any other GPU from Ampere on compiles when it first runs.
  qkv_take_cuda_sources(qkv_long_sources "attention_(mma|short)_|attention_short[.]cu$")
  qkv_take_cuda_sources(qkv_attention_sources "/attention[a-z_]*[.]cu$")
  qkv_take_cuda_sources(qkv_operator_sources "[.]cu$")
  qkv_cuda_batch(cuda_attention qkv_attention_sources)
  qkv_cuda_batch(cuda_operators qkv_operator_sources)
  # cuBLAS is needed where a program is linked; the run time of CUDA is in the objects.
  target_link_libraries(qkv PRIVATE CUDA::cudart_static CUDA::cublasLt)
  set(qkv_cuda_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcublasLt -lcudart_static -ldl -lrt")
endif()
# The longest first, lest one core waits at the end.
qkv_cuda_library(qkv-cuda
  CODE "arch=compute_80,code=[compute_80,sm_90]"
  SOURCES ${qkv_attention_sources} ${qkv_operator_sources} ${qkv_long_sources} ${qkv_cuda_sources})
qkv_batches(qkv-cuda ${qkv_cuda_sources})
