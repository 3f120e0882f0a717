//! Dequantisation of Q4_K, the 4-bit format of llama.cpp, to `f32`.
//!
//! A block of 144 bytes holds 256 values: two binary16 (`d`, `dmin`), twelve bytes with eight
//! 6-bit scales and eight 6-bit minima, 128 bytes of nibbles. Value = `d*scale*q - dmin*min`,
//! each operation rounded to `f32` in the order of `dequantize_row_q4_K`, so that results
//! equal llama.cpp's bit for bit.
//!
//! A warp does a block: a lane reads four bytes of nibbles and writes four values twice, 32
//! apart, so that every access of the warp is whole lines.

use super::{ArgDoc, ArgKind, F32_PTR_16, KernelDesc, LaunchGeometry, U32, arg, at_most};
use fercuda_ptx::build::{Arch, BuildError, F16x2, ModuleBuilder, Reg};
use fercuda_ptx::words::ScalarType;

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 144;
/// Values of a block.
pub const BLOCK_VALUES: u64 = 256;

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Q4KExtents {
    /// Blocks of 144 bytes, 256 values.
    pub blocks: u64,
}

const ARGS: &[ArgDoc] = &[
    arg(
        "blocks",
        ArgKind::Pointer(ScalarType::U32, 16),
        "[block_count] of 144 bytes, aligned to 16",
    ),
    arg("out", F32_PTR_16, "[block_count, 256], aligned to 16"),
    arg("block_count", U32, "blocks"),
];

const THREADS: u32 = 256;

/// `out[b, i]`, value `i` of block `b`, as `f32`.
///
/// # Errors
/// None for architectures that exist.
pub fn dequantize_f32(arch: Arch) -> Result<KernelDesc<Q4KExtents>, BuildError> {
    let mut module = ModuleBuilder::new(arch);
    module.kernel("q4_k_dequantize", |k| {
        let blocks = k.param_ptr_aligned::<u32>("blocks", 16);
        let out = k.param_ptr_aligned::<f32>("out", 16);
        let block_count = k.param::<u32>("block_count");
        let warps_a_block = THREADS / 32;
        let block = k
            .ctaid_x()
            .mul_add(warps_a_block, k.tid_x() >> 5)
            .named("block");
        let lane = (k.tid_x() & 31).named("lane");
        k.ret_if(block.ge(block_count));

        let here = blocks
            .index(block.mul_wide(BLOCK_BYTES as u32 / 4))
            .named("here");
        let [d_dmin, bytes_0_3, bytes_4_7, bytes_8_11] = here.load_vec::<4>();
        let (d, dmin) = d_dmin.bitcast::<F16x2>().unpack();
        let (d, dmin) = (d.to::<f32>().named("d"), dmin.to::<f32>().named("dmin"));

        // Lanes in eights: each eight does 32 bytes of nibbles, 64 values with two scales.
        let eighth = (lane >> 3).named("chunk");
        let nibbles = here.index(lane).offset(4).load().named("nibbles");
        let values = out
            .index(block.mul_wide(BLOCK_VALUES as u32))
            .index((eighth << 6) + ((lane & 7) << 2));

        for half in 0..2 {
            let index = ((eighth << 1) + half).named("scale_index");
            let at = (index & 3) << 3;
            let a = bytes_0_3.extract_bits(at, 8);
            let b = bytes_4_7.extract_bits(at, 8);
            let c = bytes_8_11.extract_bits(at, 8);
            // The first four have six bits in one byte; the others four bits here, two there.
            let first_four = index.lt(4);
            let scale = first_four.select(a & 63, (c & 15) | (a >> 6) << 4);
            let min = first_four.select(b & 63, (c >> 4) | (b >> 6) << 4);
            let scale = (d * scale.to::<f32>()).named("scale");
            let min = (dmin * min.to::<f32>()).named("min");
            let value = |byte: u32| -> Reg<'_, f32> {
                let q = nibbles.extract_bits(8 * byte + 4 * half, 4);
                scale * q.to::<f32>() - min
            };
            values
                .offset(32 * i64::from(half))
                .store_vec([value(0), value(1), value(2), value(3)]);
        }
    });
    Ok(KernelDesc {
        module: module.finish()?,
        entry: "q4_k_dequantize".into(),
        args: ARGS,
        geometry: Box::new(|s: &Q4KExtents| {
            let limit = u64::from(u32::MAX - THREADS);
            let blocks = at_most("q4_k_dequantize", "blocks", s.blocks, limit)?;
            Ok(LaunchGeometry {
                grid: [blocks.div_ceil(THREADS / 32), 1, 1],
                block: [THREADS, 1, 1],
                dynamic_shared_bytes: 0,
            })
        }),
    })
}
