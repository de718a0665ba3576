/* What DeepGEMM asks of CUDA before it compiles a kernel, answered as on an H100, for `compile_ahead.py`.

   One library stands for CUDA's runtime, by LD_PRELOAD, and for its driver, by the name libcuda.so.1. Nothing runs:
   kernels are loaded and launched by doing nothing.

   Source: DeepGEMM's csrc/jit/device_runtime.hpp and handle.hpp. The H100's numbers: NVIDIA, "CUDA C++ Programming
   Guide", "Compute Capabilities" (9.0), and "NVIDIA H100 Tensor Core GPU Architecture" (SXM5). */
#include <cuda_runtime_api.h>
#include <string.h>

static int thing; /* whatever a handle points to */

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void *at, int value, size_t size, cudaStream_t stream) { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    memset(found, 0, sizeof *found);
    found->major = 9;
    found->multiProcessorCount = 132;
    found->sharedMemPerBlockOptin = 227 * 1024;
    found->sharedMemPerMultiprocessor = 228 * 1024;
    found->l2CacheSize = 50 * 1024 * 1024;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *at) {
    memset(found, 0, sizeof *found);
    found->type = cudaMemoryTypeDevice;
    found->devicePointer = (void *)at;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

int cublasLtCreate(void **handle) { *handle = &thing; return 0; }
int cublasLtDestroy(void *handle) { return 0; }

#define IGNORES(name) int name(void) { return 0; }
#define MAKES(name) int name(void **handle) { *handle = &thing; return 0; }
IGNORES(cuFuncSetAttribute)
IGNORES(cuLaunchKernelEx)
IGNORES(cuLibraryUnload)
IGNORES(cuTensorMapEncodeTiled)
MAKES(cuLibraryLoadFromFile)
MAKES(cuLibraryEnumerateKernels)
MAKES(cuKernelGetFunction)
int cuLibraryGetKernelCount(unsigned *count, void *library) { *count = 1; return 0; }
