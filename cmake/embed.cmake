# cmake -D OUTPUT=file.cpp -D ASSETS=a;b -P embed.cmake: text files as one C++ source. A compiler may
# take no string literal longer than 64 KiB; none of ours is near that.
set(source "#include \"viewer/assets.h\"\n\n#include \"core/check.h\"\n\nnamespace qkv::viewer {\n\n")
string(APPEND source "std::string_view asset(std::string_view name) {\n")
foreach(file IN LISTS ASSETS)
  get_filename_component(name ${file} NAME)
  file(READ ${file} text)
  string(APPEND source "  if (name == \"${name}\") return R\"~asset~(${text})~asset~\";\n")
endforeach()
string(APPEND source "  fail(\"viewer: there is no asset '{}'\", name);\n}\n\n}  // namespace qkv::viewer\n")
file(WRITE ${OUTPUT} "${source}")
