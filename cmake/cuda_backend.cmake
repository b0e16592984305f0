# libshortlist_cuda.so: every .cu below src/cuda, cudart linked statically.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

file(GLOB_RECURSE shortlist_cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu)
add_library(shortlist_cuda SHARED ${shortlist_cuda_sources})
target_include_directories(shortlist_cuda PRIVATE src)
target_link_libraries(shortlist_cuda PRIVATE shortlist fmt::fmt-header-only)
target_compile_options(shortlist_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false -Werror=all-warnings --expt-relaxed-constexpr -lineinfo
  -Xcompiler=-Wall,-Wextra,-Wshadow,-Werror,-ffp-contract=off>)
set_target_properties(shortlist_cuda PROPERTIES BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
