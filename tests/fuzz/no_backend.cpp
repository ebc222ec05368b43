// The fuzzers read files and compute nothing: a tensor that would need memory is an Error. Weak:
// the one of the viewer has pictures, and a backend for them.
#include "core/backend.h"
#include "core/check.h"

namespace qkv {

[[gnu::weak]] Backend& backend(Device device) { fail("no backend for {} in a fuzzer", device); }

}  // namespace qkv
