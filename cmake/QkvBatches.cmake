# The files of a folder, compiled as one: the headers that they share are read and instantiated
# once, in a fifth of the time. What a folder names within itself has one meaning there.
function(qkv_batches target)
  if(NOT QKV_BATCHES)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # GCC minds a struct of a .cpp that holds what is local to it, unless it compiles that file itself.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME folder)
    if(NOT folder STREQUAL "cpu") # each of them compiled once per SIMD target
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder})
    endif()
  endforeach()
endfunction()

# The same of CUDA, which CMake does not do by itself: of the files in the list `sources` only one is
# left, <name>.cu, which includes them.
function(qkv_cuda_batch name sources)
  if(NOT QKV_BATCHES)
    return()
  endif()
  list(TRANSFORM ${sources} REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE lines)
  string(CONCAT lines ${lines})
  set(batch ${PROJECT_BINARY_DIR}/batches/${name}.cu)
  file(CONFIGURE OUTPUT ${batch} CONTENT "${lines}" @ONLY)
  set(${sources} ${batch} PARENT_SCOPE)
endfunction()
