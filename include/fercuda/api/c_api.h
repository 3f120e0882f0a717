/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 * Made by `cargo xtask headers` of the sources in crates/capi.
 *
 * The same as fercuda/c_api.h.
 */
#include "fercuda/c_api.h"
