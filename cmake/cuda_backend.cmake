# libshortlist_cuda.so: every .cu below src/cuda, cudart linked statically.
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${shortlist_cuda_compiler})
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it since release 12
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# --fmad=false: the score is defined to the last bit, so only a written fma is one. -Wpedantic would reject the host
# code that nvcc itself generates.
target_compile_options(shortlist_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false -Werror=all-warnings --expt-relaxed-constexpr
  -Xcompiler=-Wall,-Wextra,-Wshadow=local,-Werror,-ffp-contract=off>)

# Code that no GPU will run is not optimised, where nvcc can leave that out: the longest file takes 24 s instead of 141.
if(SHORTLIST_QUICK_BUILD AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
  target_compile_options(shortlist_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--Ofast-compile=max>)
endif()

# Which line an instruction is of, for profilers and sanitizers: as much as the instructions, of which it changes none.
if(SHORTLIST_LINE_INFO)
  target_compile_options(shortlist_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
endif()

# A quarter of the library's size, in the time of the default, where nvcc knows it.
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  target_compile_options(shortlist_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
endif()

file(GLOB_RECURSE shortlist_cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu)
if(NOT shortlist_cuda_sources)
  message(FATAL_ERROR "SHORTLIST_CUDA is ON, but there is no .cu file below src/cuda")
endif()
# Instructions that Hopper alone has exist in code for 90a, which runs nowhere else: these files are compiled for it
# only, and the backend asks before it launches what is in them.
set(shortlist_hopper_sources
  ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/flat/certified_filter.cu
  ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/ivf_pq/coarse_scan.cu
  ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/ivf_pq/wide_scan_hopper.cu)
list(REMOVE_ITEM shortlist_cuda_sources ${shortlist_hopper_sources})
add_library(shortlist_hopper OBJECT ${shortlist_hopper_sources})
target_include_directories(shortlist_hopper PRIVATE src)
target_link_libraries(shortlist_hopper PRIVATE shortlist shortlist_options fmt::fmt-header-only)
set_target_properties(shortlist_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real POSITION_INDEPENDENT_CODE ON)

add_library(shortlist_cuda SHARED ${shortlist_cuda_sources} $<TARGET_OBJECTS:shortlist_hopper>)
target_include_directories(shortlist_cuda PRIVATE src)
target_link_libraries(shortlist_cuda PRIVATE shortlist shortlist_options fmt::fmt-header-only)
set_target_properties(shortlist_cuda PROPERTIES BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
install(TARGETS shortlist_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
