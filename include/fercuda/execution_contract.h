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

// Programs that were compiled with another number do not fit this library.
#define FER_ABI_MAJOR 1

// Programs that were compiled with a smaller number fit this library.
#define FER_ABI_MINOR 3

// A way in.
enum fer_entrypoint
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Buffers with layouts, copies between them, plans of arenas.
  FER_ENTRYPOINT_TENSOR = 1,
  // Expressions that are fused and compiled when they are first asked for.
  FER_ENTRYPOINT_JIT_INTENT = 2,
  // Kernels as PTX text or machine code, loaded and launched with checked arguments.
  FER_ENTRYPOINT_JIT_LAUNCH = 3,
  // Tasks for a kernel that stays on the device.
  FER_ENTRYPOINT_RESIDENT_DAEMON = 4,
  // The allocations of frameworks, governed before the driver sees them.
  FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_entrypoint fer_entrypoint;
#else
typedef uint32_t fer_entrypoint;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Who comes in.
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
  // PyTorch, whose allocations are governed where it asks the driver.
  FER_FRONTEND_RUST_FERRITE_TORCH = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_frontend fer_frontend;
#else
typedef uint32_t fer_frontend;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Ways in and who comes in, with which of them are served.
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

// What this library serves in this process, now. A program looks whether `abi_major` is
// FER_ABI_MAJOR, and `abi_minor` at least FER_ABI_MINOR.
fer_status fer_execution_contract_get(struct fer_execution_contract *contract);

// A fer_entrypoint's name, as "jit_launch"; "unknown" for a number that is none. Good
// for ever.
const char *fer_entrypoint_name(uint32_t entrypoint);

// Whether a fer_entrypoint is served in this process, now: `is_served` gets 1 or 0.
fer_status fer_entrypoint_served(uint32_t entrypoint, uint32_t *is_served);

// A fer_frontend's name, as "cpp"; "unknown" for a number that is none. Good for ever.
const char *fer_frontend_name(uint32_t frontend);

// By which fer_entrypoint a fer_frontend comes in first.
fer_status fer_frontend_entrypoint(uint32_t frontend, uint32_t *entrypoint);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FERCUDA_EXECUTION_CONTRACT_H */
