// Everything.
#pragma once

#include "qkv/attention.h"
#include "qkv/checkpoint.h"
#include "qkv/cpu.h"
#include "qkv/device.h"
#include "qkv/dtype.h"
#include "qkv/error.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "qkv/study.h"
#include "qkv/tensor.h"
#include "qkv/threads.h"
#include "qkv/version.h"
