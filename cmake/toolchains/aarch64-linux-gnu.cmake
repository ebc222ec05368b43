# Cross-compiles for 64-bit Arm and runs the tests under emulation:
#   QKV_SYSROOT=<root of an arm64 Debian> cmake -B build-arm --toolchain cmake/toolchains/aarch64-linux-gnu.cmake
# needs g++-12-aarch64-linux-gnu and qemu-user. The sysroot holds arm64 copies of the packages in
# `make deps`; `-cpu max` has BF16, which emulated models of real machines of Debian 12 lack.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc-12)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(QKV_SYSROOT "$ENV{QKV_SYSROOT}" CACHE PATH "Root of an arm64 system with the packages qkv needs")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES QKV_SYSROOT)
if(NOT QKV_SYSROOT)
  message(FATAL_ERROR "set QKV_SYSROOT to the root of an arm64 system with the packages qkv needs")
endif()
set(CMAKE_FIND_ROOT_PATH ${QKV_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${QKV_SYSROOT}/usr/lib/aarch64-linux-gnu:${QKV_SYSROOT}/lib/aarch64-linux-gnu")
set(CMAKE_SHARED_LINKER_FLAGS_INIT ${CMAKE_EXE_LINKER_FLAGS_INIT})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-cpu;max;-L;${QKV_SYSROOT};-E;LD_LIBRARY_PATH=${QKV_SYSROOT}/usr/lib/aarch64-linux-gnu:${QKV_SYSROOT}/lib/aarch64-linux-gnu)
