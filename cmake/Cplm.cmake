# cplm_library(), cplm_test(): one place for flags, warnings and sanitizers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "g++ 12 or newer is needed, and ${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_VERSION}: set CXX, e.g. CXX=g++-12, in a new build folder")
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")  # -O3 costs build time; kernels ask for it themselves
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)  # the base folder lets clones and build folders share
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

add_library(cplm_flags INTERFACE)
target_include_directories(cplm_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_options(cplm_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror)
target_compile_definitions(cplm_flags INTERFACE CPLM_VERSION="${PROJECT_VERSION}")
# Of our own libraries and the program: a target with CPLM_PLAIN, as tests are, is compiled as in the release
# build, and so comes from the compiler cache.
if(CPLM_SANITIZE)
  # Instrumented, g++ 12 no longer sees that LibTorch's optional generators are initialised.
  # -O1 and lines alone: half the compile time of -O2 -g.
  target_compile_options(cplm_flags INTERFACE
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:CPLM_PLAIN>>>:-fsanitize=${CPLM_SANITIZE};-fno-omit-frame-pointer;-O1;-g1;-Wno-maybe-uninitialized>)
  target_link_options(cplm_flags INTERFACE -fsanitize=${CPLM_SANITIZE})
endif()
if(CPLM_COVERAGE)
  target_compile_options(cplm_flags INTERFACE $<$<NOT:$<BOOL:$<TARGET_PROPERTY:CPLM_PLAIN>>>:--coverage;-g1>)
  target_link_options(cplm_flags INTERFACE --coverage)
endif()

# cplm_library(NAME SOURCES a.cpp ... DEPENDS target ...) makes cplm_NAME.
function(cplm_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  add_library(cplm_${name} STATIC ${arg_SOURCES})
  target_link_libraries(cplm_${name} PUBLIC cplm_flags ${arg_DEPENDS} PRIVATE ${arg_PRIVATE})
endfunction()

# cplm_test(NAME SOURCES a.cpp ... DEPENDS target ... LABELS l ...): a GoogleTest program; every
# TEST in it becomes one ctest entry named NAME.Suite.Case. WHOLE: one entry NAME for the program,
# for many quick cases on LibTorch, whose start alone takes half a second.
function(cplm_test name)
  cmake_parse_arguments(arg "WHOLE" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name}_test ${arg_SOURCES})
  target_link_libraries(${name}_test PRIVATE cplm_flags ${arg_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  set_target_properties(${name}_test PROPERTIES CPLM_PLAIN ON)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(CPLM_SANITIZE OR CPLM_COVERAGE)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()
  if(arg_WHOLE)
    add_test(NAME ${name} COMMAND ${name}_test)
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
    return()
  endif()
  include(GoogleTest)
  gtest_discover_tests(${name}_test TEST_PREFIX ${name}. DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
