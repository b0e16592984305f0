# SHORTLIST_CUDA_DEFAULT: ON where a CUDA compiler is found and no sanitizer is asked for. An explicit SHORTLIST_CUDA=ON
# without a compiler is an error that says where was looked.
find_program(SHORTLIST_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda/bin
             DOC "the CUDA compiler")
if(CMAKE_CUDA_COMPILER)
  set(shortlist_cuda_compiler ${CMAKE_CUDA_COMPILER})
elseif(DEFINED ENV{CUDACXX})
  set(shortlist_cuda_compiler $ENV{CUDACXX})
elseif(SHORTLIST_NVCC)
  set(shortlist_cuda_compiler ${SHORTLIST_NVCC})
endif()

set(SHORTLIST_CUDA_DEFAULT OFF)
if(shortlist_cuda_compiler AND NOT SHORTLIST_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  set(SHORTLIST_CUDA_DEFAULT ON)
endif()

if(SHORTLIST_CUDA AND NOT shortlist_cuda_compiler)
  message(FATAL_ERROR "SHORTLIST_CUDA is ON, but no CUDA compiler was found: nvcc is neither on PATH nor in "
                      "/usr/local/cuda/bin. Set CMAKE_CUDA_COMPILER, or leave SHORTLIST_CUDA to its default.")
endif()
if(SHORTLIST_CUDA AND SHORTLIST_SANITIZE)
  message(FATAL_ERROR "SHORTLIST_CUDA is ON and SHORTLIST_SANITIZE is ${SHORTLIST_SANITIZE}: sanitizers run over the "
                      "CPU alone. Leave one of them out.")
endif()
