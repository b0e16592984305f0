// Marks what both the host compiler and nvcc's device pass compile.
#pragma once

#ifdef __CUDACC__
#define SHORTLIST_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SHORTLIST_HOST_DEVICE inline
#endif
