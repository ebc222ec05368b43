# What no compiler checks, as tests: who may include whom, that no name has two definitions, that the README's code is code that
# runs, and that a recipe prepares the words it says. They read the source tree, and ../shared where it is.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT Python3_FOUND)
  message(FATAL_ERROR "the tests of qkv need python3: apt-get install python3, or run `make deps`")
endif()
function(qkv_check name)
  add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} ${ARGN}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endfunction()

qkv_check(check_levels tools/check-levels)
qkv_check(check_names tools/check-names)
qkv_check(check_readme tools/check-readme)
qkv_check(check_tools tools/checks_test.py)
qkv_check(check_multi30k tests/multi30k_test.py)
