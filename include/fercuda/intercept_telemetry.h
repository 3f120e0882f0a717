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

// Counters of intercepted calls, on all devices together.
typedef struct fer_intercept_telemetry {
  // Allocations from the pools since the last reset, by all libraries.
  uint64_t allocations;
  // Frees since the last reset, also of memory allocated before it.
  uint64_t frees;
  // Allocations since the last reset that should have come from a pool, but were made by the
  // driver. 0 in a governed process.
  uint64_t fallbacks;
  // Live blocks of the pools, in bytes. Not affected by a reset.
  uint64_t live_bytes;
  // Peak of the live bytes since the process began, each device's added up; up to 256 KiB of
  // each thread may be missing. Not affected by a reset.
  uint64_t peak_bytes;
  // Memory that the driver allocated itself and that is not freed, also of the host, in bytes.
  // Not affected by a reset.
  uint64_t governed_bytes;
  // Memory that the driver uses for contexts and code, in bytes, by its figures when they were
  // last read. Not affected by a reset.
  uint64_t overhead_bytes;
  // 1 if the counters changed while they were read: each is a value of some moment, but not all
  // of the same one.
  uint64_t is_racing;
} fer_intercept_telemetry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Reads the counters since the last reset. Scans the whole ledger: for monitoring, not for each
// allocation.
// for each allocation.
fer_status fer_intercept_telemetry_get(struct fer_intercept_telemetry *telemetry);

// Resets allocations, frees and fallbacks to 0. Other readers of the ledger (`fercuda top`) are
// not affected.
fer_status fer_intercept_telemetry_reset(void);

// Returns whether calls are intercepted in this process: `enabled` is set to 1 or 0.
fer_status fer_intercept_telemetry_enabled(uint32_t *enabled);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FERCUDA_INTERCEPT_TELEMETRY_H */
