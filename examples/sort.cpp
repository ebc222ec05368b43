// A GPT-2 that has learnt one thing, to sort six digits of 0, 1 and 2: example_sort DIR [DIGITS]
#include <cstdio>

#include "qkv/qkv.h"

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: %s MODEL_FOLDER [DIGITS]\n", argv[0]), 2;
  const std::string digits = argc > 2 ? argv[2] : "201021";
  try {
    const auto model = qkv::load_model(argv[1]);
    std::vector<std::int64_t> prompt;
    for (const char digit : digits) prompt.push_back(digit - '0');
    std::printf("%s sorted: ", digits.c_str());
    const qkv::GenerateOptions options{.max_new_tokens = static_cast<std::int64_t>(prompt.size()),
                                       .on_token = [](std::size_t, std::int64_t token) {
                                         return std::printf("%lld", static_cast<long long>(token)) >
                                                0;
                                       }};
    qkv::generate(*model, {prompt}, options);
    std::printf("\n");
  } catch (const qkv::Error& error) {
    return std::fprintf(stderr, "\n%s\n", error.what()), 1;
  }
}
