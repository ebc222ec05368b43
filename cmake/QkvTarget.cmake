# Warnings and sanitizers, the same for every target of the project.
function(qkv_target target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
    -Woverloaded-virtual $<$<BOOL:${QKV_WERROR}>:-Werror>>)
  # a * b + c rounds once or twice as written, never as the optimiser likes: the same source gives
  # the same bits whatever was inlined.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
  if(QKV_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${QKV_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
    target_link_options(${target} PRIVATE -fsanitize=${QKV_SANITIZE})
    if(QKV_SANITIZE MATCHES "address")
      # Where addresses are watched as they are used, pointers need no second look when they are
      # made, which is a third of the code (and of the time to compile it).
      target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,alignment,object-size,vptr>)
    endif()
  endif()
endfunction()
