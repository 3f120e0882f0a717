/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 * Made by `cargo xtask headers` of the sources in crates/capi.
 *
 * What the doors before the driver have counted in this process.
 */

#ifndef FERCUDA_INTERCEPT_TELEMETRY_H
#define FERCUDA_INTERCEPT_TELEMETRY_H

#include <stddef.h>
#include <stdint.h>
#include "fercuda/c_api.h"

// What was intercepted, on all devices together.
typedef struct fer_intercept_telemetry {
  // Allocations from the pools since the last reset, by all libraries.
  uint64_t allocations;
  // Frees since the last reset, also of what was allocated before it.
  uint64_t frees;
  // Allocations since the last reset that were for a pool, and that the driver did
  // instead. 0 is what a governed process has.
  uint64_t fallbacks;
  // Live blocks of the pools now, in bytes. A reset does not change it.
  uint64_t live_bytes;
  // The most that was live since the process began, each device's added up; up to 256
  // KiB of each thread may be missing. A reset does not change it.
  uint64_t peak_bytes;
  // What the driver gave by itself and was not given back, also of the host, in bytes.
  // A reset does not change it.
  uint64_t governed_bytes;
  // What the driver takes for contexts and code, in bytes, by its figures when they
  // were last looked at. A reset does not change it.
  uint64_t overhead_bytes;
  // 1 if the figures changed while they were read: then each is of a moment, but not
  // all of one.
  uint64_t is_racing;
} fer_intercept_telemetry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What was intercepted since the last reset. Reads the whole ledger: for who watches, not
// for each allocation.
fer_status fer_intercept_telemetry_get(struct fer_intercept_telemetry *telemetry);

// From now on allocations, frees and fallbacks are counted from 0. What others read of
// the ledger (`fercuda top`) goes on as before.
fer_status fer_intercept_telemetry_reset(void);

// Whether anything is intercepted in this process: `enabled` gets 1 or 0.
fer_status fer_intercept_telemetry_enabled(uint32_t *enabled);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FERCUDA_INTERCEPT_TELEMETRY_H */
