# SIMD targets: one source for all, compiled once per instruction set (Highway), and a few files
# for instructions that decide (AMX, AVX512-BF16, BFMMLA), each compiled with its own flag.
#
# Kept out: SSSE3 and AVX3_DL (no kernel gains from them over their neighbours), and SVE (a
# Neoverse-V1 has four 128-bit pipes for NEON or two 256-bit ones for SVE: the same peak, and NEON
# has multiply-by-lane, which a tile product is made of).
set(qkv_disabled HWY_SSSE3|HWY_AVX3_DL|HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)
if(QKV_SANITIZE)
  # All targets are one source: what a sanitizer finds, it finds in the widest that this machine has
  # (and in the baseline), in a third of the time to build and to test.
  set(qkv_machine)
  if(EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo qkv_machine REGEX "^flags" LIMIT_COUNT 1)
  endif()
  string(APPEND qkv_disabled |HWY_SSE4)
  if(qkv_machine MATCHES "avx512bw" AND qkv_machine MATCHES "avx512vl")
    string(APPEND qkv_disabled |HWY_AVX2)
  else()
    string(APPEND qkv_disabled |HWY_AVX3)
  endif()
  # The same of a loop's body for its last vector and for the others (cpu/lanes-inl.h): compiled once.
  target_compile_definitions(qkv PRIVATE "QKV_LANES_BODY=HWY_ATTR __attribute__((noinline))")
endif()
target_compile_definitions(qkv PRIVATE HWY_DISABLED_TARGETS=\(${qkv_disabled}\))

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  # A tile product fills the register file: it spills when loads are moved up before registers are
  # assigned. The machine reorders them better anyway.
  target_compile_options(qkv PRIVATE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fno-schedule-insns>)
  set_source_files_properties(src/cpu/bf16_neon.cpp src/cpu/bf16_neon_decode.cpp PROPERTIES
    COMPILE_OPTIONS -march=armv8.2-a+bf16)
  set_source_files_properties(src/cpu/f16_neon_decode.cpp PROPERTIES
    COMPILE_OPTIONS -march=armv8.2-a+fp16fml)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")  # before 16 it knows no attribute for single functions
    set_source_files_properties(src/cpu/int8_neon.cpp src/cpu/int8_neon_decode.cpp PROPERTIES
      COMPILE_OPTIONS -march=armv8.2-a+dotprod+i8mm)
  endif()
endif()

# The AVX-512 headers of GCC 12 initialise a variable with itself on purpose and are warned about
# for it, in whatever file they are inlined (GCC bug 105593).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set_source_files_properties(src/cpu/bf16_x86.cpp src/cpu/engine_f32.cpp
                              src/cpu/gemm_engine.cpp PROPERTIES
    COMPILE_OPTIONS -Wno-maybe-uninitialized)
endif()

# A kernel's loops are lambdas within lambdas, each with a scope of its own for what it keeps in
# registers. To watch the ends of those scopes keeps it in memory instead: products took five times
# as long under the sanitizer, and the largest files twice as long to compile.
if(QKV_SANITIZE MATCHES "address")
  file(GLOB qkv_kernels src/cpu/*.cpp)
  set_property(SOURCE ${qkv_kernels} APPEND PROPERTY COMPILE_OPTIONS
               -fno-sanitize-address-use-after-scope -fno-sanitize=bounds)
endif()
