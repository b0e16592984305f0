# Flags of every target. Warnings are errors; no contraction beyond the fma that the code writes (the score is defined
# to the last bit), denormals kept, no fast-math.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")

# A constructor's parameter may carry its member's name, as clang's -Wshadow has it; g++ calls that =local.
set(shortlist_shadow $<IF:$<CXX_COMPILER_ID:GNU>,-Wshadow=local,-Wshadow>)
set(shortlist_warnings -Wall -Wextra -Wpedantic ${shortlist_shadow} -Wconversion -Wno-sign-conversion -Werror)
add_library(shortlist_options INTERFACE)
target_compile_options(shortlist_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:${shortlist_warnings} -ffp-contract=off -fno-math-errno>)

set(SHORTLIST_SANITIZE "" CACHE STRING "sanitizers of every target: address,undefined or thread")
if(SHORTLIST_SANITIZE)
  add_compile_options(-fsanitize=${SHORTLIST_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SHORTLIST_SANITIZE})
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
