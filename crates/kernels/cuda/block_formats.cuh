// The block format that a text is compiled for: FORMAT is its struct.
#pragma once
#include "block_iq.cuh"
#include "block_k.cuh"
#include "block_simple.cuh"
