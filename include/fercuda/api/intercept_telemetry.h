/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 * Made by `cargo xtask headers` of the sources in crates/capi.
 *
 * The same as fercuda/intercept_telemetry.h.
 */
#include "fercuda/intercept_telemetry.h"
