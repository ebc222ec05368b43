// The instructions of Arm for int8, for the files that use them: SDOT (FEAT_DotProd) and SMMLA
// (FEAT_I8MM). Functions carry their target as an attribute, not the file as a flag, so that
// machines without these instructions run the rest of the program.
#pragma once

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#if defined(__clang__)  // the file has the flag (cmake/QkvCpuTargets.cmake)
#define QKV_DOT
#define QKV_I8MM
#else
#define QKV_DOT __attribute__((target("arch=armv8.2-a+dotprod")))
#define QKV_I8MM __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#endif
