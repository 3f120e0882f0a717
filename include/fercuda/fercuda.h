/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 * Made by `cargo xtask headers` of the sources in crates/capi.
 *
 * feRcuda for C and C++: all of it.
 */
#ifndef FERCUDA_FERCUDA_H
#define FERCUDA_FERCUDA_H

#include "fercuda/c_api.h"
#include "fercuda/intercept_telemetry.h"
#include "fercuda/execution_contract.h"

#endif /* FERCUDA_FERCUDA_H */
