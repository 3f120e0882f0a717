// Shared by the test programs: a failed expectation ends the program with status 1 and its line.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define EXPECT(condition)                                                     \
    do {                                                                      \
        if (!(condition)) {                                                   \
            std::printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                     \
        }                                                                     \
    } while (0)

#define CODE(expected, call)                                                  \
    do {                                                                      \
        cudaError_t code_ = (call);                                           \
        if (code_ != (expected)) {                                            \
            std::printf("%s:%d: %s gives %s, not %s\n", __FILE__, __LINE__,   \
                        #call, cudaGetErrorName(code_), #expected);           \
            std::exit(1);                                                     \
        }                                                                     \
    } while (0)

#define OK(call) CODE(cudaSuccess, call)
