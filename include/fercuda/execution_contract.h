/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 * Made by `cargo xtask headers` of the sources in crates/capi.
 *
 * Which ways into feRcuda there are, and which are served here.
 */

#ifndef FERCUDA_EXECUTION_CONTRACT_H
#define FERCUDA_EXECUTION_CONTRACT_H

#include <stddef.h>
#include <stdint.h>
#include "fercuda/c_api.h"

// Programs compiled with another number are incompatible with this library.
#define FER_ABI_MAJOR 1

// Programs compiled with this number or a smaller one are compatible with this library.
#define FER_ABI_MINOR 4

// An entry point.
enum fer_entrypoint
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Buffers with layouts, copies between them, plans of arenas.
  FER_ENTRYPOINT_TENSOR = 1,
  // Expressions that are fused, and compiled on first use.
  FER_ENTRYPOINT_JIT_INTENT = 2,
  // Kernels as PTX text or machine code, loaded and launched with checked arguments.
  FER_ENTRYPOINT_JIT_LAUNCH = 3,
  // Tasks for a resident kernel.
  FER_ENTRYPOINT_RESIDENT_DAEMON = 4,
  // Allocations of frameworks, intercepted before the driver.
  FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_entrypoint fer_entrypoint;
#else
typedef uint32_t fer_entrypoint;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A client of an entry point.
enum fer_frontend
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // C programs, by these headers.
  FER_FRONTEND_C = 1,
  // C++ programs, by these headers.
  FER_FRONTEND_CPP = 2,
  // Python programs, by a package that has this library or its own.
  FER_FRONTEND_PYTHON = 3,
  // Rust programs, by the crates.
  FER_FRONTEND_RUST = 4,
  // PyTorch; its driver allocations are intercepted.
  FER_FRONTEND_RUST_FERRITE_TORCH = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_frontend fer_frontend;
#else
typedef uint32_t fer_frontend;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Entry points and clients, and which of them are served.
typedef struct fer_execution_contract {
  // FER_ABI_MAJOR of the library.
  uint32_t abi_major;
  // FER_ABI_MINOR of the library.
  uint32_t abi_minor;
  // A bit for each fer_entrypoint that is served in this process: 1 << number.
  uint32_t entrypoints;
  // A bit for each fer_frontend that is served in this process: 1 << number.
  uint32_t frontends;
} fer_execution_contract;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Reports what this library serves in this process, now. A program checks that `abi_major` equals
// FER_ABI_MAJOR, and that `abi_minor` is at least FER_ABI_MINOR.
fer_status fer_execution_contract_get(struct fer_execution_contract *contract);

// Returns a fer_entrypoint's name, such as "jit_launch"; "unknown" for an invalid number. Valid
// for ever.
const char *fer_entrypoint_name(uint32_t entrypoint);

// Returns whether a fer_entrypoint is served in this process, now: `is_served` is set to 1 or 0.
fer_status fer_entrypoint_served(uint32_t entrypoint, uint32_t *is_served);

// Returns a fer_frontend's name, such as "cpp"; "unknown" for an invalid number. Valid for ever.
const char *fer_frontend_name(uint32_t frontend);

// Returns the primary fer_entrypoint of a fer_frontend.
fer_status fer_frontend_entrypoint(uint32_t frontend, uint32_t *entrypoint);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FERCUDA_EXECUTION_CONTRACT_H */
