//! PTX of the kernels that are measured.

use std::fmt::Write as _;

/// Steps of a round of the chain.
pub(crate) const STEPS: u32 = 64;

/// Eight chains of fused multiply-adds a thread, in rounds of [`STEPS`].
pub(crate) fn fma_kernel() -> String {
    let mut body = String::new();
    for k in 0..STEPS {
        let _ = writeln!(body, "fma.rn.f32 %f{}, %f{}, %f8, %f9;", k % 8, k % 8);
    }
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry chain(.param .u64 out, .param .u32 rounds) {{
.reg .f32 %f<10>; .reg .u32 %r<8>; .reg .u64 %rd<4>; .reg .pred %p;
ld.param.u64 %rd1, [out];
ld.param.u32 %r1, [rounds];
mov.u32 %r2, %tid.x;
cvt.rn.f32.u32 %f0, %r2;
mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0; mov.f32 %f4, %f0; mov.f32 %f5, %f0; mov.f32 %f6, %f0; mov.f32 %f7, %f0;
mov.f32 %f8, 0f3F7FFFF0; mov.f32 %f9, 0f3A83126F;
mov.u32 %r3, 0;
LOOP:
{body}
add.u32 %r3, %r3, 1;
setp.lt.u32 %p, %r3, %r1;
@%p bra LOOP;
add.f32 %f0, %f0, %f1; add.f32 %f0, %f0, %f2; add.f32 %f0, %f0, %f3; add.f32 %f0, %f0, %f4;
add.f32 %f0, %f0, %f5; add.f32 %f0, %f0, %f6; add.f32 %f0, %f0, %f7;
mul.wide.u32 %rd2, %r2, 4;
add.u64 %rd1, %rd1, %rd2;
st.global.f32 [%rd1], %f0;
ret;
}}"
    )
}

/// c = a b for 256 x 256, in tiles of 16 x 16 of shared memory, one element a thread.
pub(crate) fn gemm_kernel() -> String {
    let mut inner = String::new();
    for k in 0..16 {
        let _ = writeln!(
            inner,
            "ld.shared.f32 %f1, [%r10+{}]; ld.shared.f32 %f2, [%r11+{}]; fma.rn.f32 %f0, %f1, %f2, %f0;",
            k * 4,
            k * 64
        );
    }
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry gemm(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{
.reg .f32 %f<4>; .reg .u32 %r<20>; .reg .u64 %rd<12>; .reg .pred %p;
.shared .align 16 .b8 ta[1024]; .shared .align 16 .b8 tb[1024];
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb]; ld.param.u64 %rd3, [pc];
mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y;
shl.b32 %r4, %r3, 4; add.u32 %r4, %r4, %r1;
shl.b32 %r5, %r2, 4; add.u32 %r5, %r5, %r0;
shl.b32 %r6, %r1, 4; add.u32 %r6, %r6, %r0; shl.b32 %r6, %r6, 2;
mov.u32 %r7, ta; mov.u32 %r8, tb;
shl.b32 %r9, %r1, 6; add.u32 %r10, %r7, %r9;
shl.b32 %r9, %r0, 2; add.u32 %r11, %r8, %r9;
add.u32 %r12, %r7, %r6; add.u32 %r13, %r8, %r6;
shl.b32 %r14, %r4, 8; add.u32 %r14, %r14, %r0; mul.wide.u32 %rd4, %r14, 4; add.u64 %rd4, %rd1, %rd4;
shl.b32 %r15, %r1, 8; add.u32 %r15, %r15, %r5; mul.wide.u32 %rd5, %r15, 4; add.u64 %rd5, %rd2, %rd5;
mov.f32 %f0, 0f00000000; mov.u32 %r16, 0;
LOOP:
ld.global.f32 %f1, [%rd4]; st.shared.f32 [%r12], %f1;
ld.global.f32 %f2, [%rd5]; st.shared.f32 [%r13], %f2;
bar.sync 0;
{inner}
bar.sync 0;
add.u64 %rd4, %rd4, 64; add.u64 %rd5, %rd5, 16384;
add.u32 %r16, %r16, 1; setp.lt.u32 %p, %r16, 16; @%p bra LOOP;
shl.b32 %r17, %r4, 8; add.u32 %r17, %r17, %r5; mul.wide.u32 %rd6, %r17, 4; add.u64 %rd6, %rd3, %rd6;
st.global.f32 [%rd6], %f0;
ret;
}}"
    )
}

/// The shape, types and registers of a matrix product, its fragments filled with `fill`.
#[derive(Clone, Copy)]
pub(crate) struct MmaForm {
    pub(crate) name: &'static str,
    /// All behind `mma.sync.aligned.`.
    form: &'static str,
    /// Registers of A, B and C.
    registers: [usize; 3],
    fill: u32,
    pub(crate) macs: u32,
}

pub(crate) const MMA_FORMS: [MmaForm; 7] = [
    MmaForm {
        name: "mma f16, sums f32",
        form: "m16n8k16.row.col.f32.f16.f16.f32",
        registers: [4, 2, 4],
        fill: 0x3c00_3800,
        macs: 2048,
    },
    MmaForm {
        name: "mma f16, sums f16",
        form: "m16n8k16.row.col.f16.f16.f16.f16",
        registers: [4, 2, 2],
        fill: 0x3c00_3800,
        macs: 2048,
    },
    MmaForm {
        name: "mma bf16",
        form: "m16n8k16.row.col.f32.bf16.bf16.f32",
        registers: [4, 2, 4],
        fill: 0x3f80_3f00,
        macs: 2048,
    },
    MmaForm {
        name: "mma tf32",
        form: "m16n8k8.row.col.f32.tf32.tf32.f32",
        registers: [4, 2, 4],
        fill: 0x3f80_0000,
        macs: 1024,
    },
    MmaForm {
        name: "mma e4m3",
        form: "m16n8k32.row.col.f32.e4m3.e4m3.f32",
        registers: [4, 2, 4],
        fill: 0x3830_3830,
        macs: 4096,
    },
    MmaForm {
        name: "mma s8",
        form: "m16n8k32.row.col.s32.s8.s8.s32",
        registers: [4, 2, 4],
        fill: 0x1122_fe03,
        macs: 4096,
    },
    MmaForm {
        name: "mma u4",
        form: "m16n8k64.row.col.s32.u4.u4.s32",
        registers: [4, 2, 4],
        fill: 0x1122_fe03,
        macs: 8192,
    },
];

/// Matrix products of a round of [`mma_kernel`].
pub(crate) const MMA_STEPS: u32 = 32;

/// Rounds of products of a warp, into four accumulators in turn.
pub(crate) fn mma_kernel(f: &MmaForm) -> String {
    let [na, nb, nc] = f.registers;
    let list = |name: &str, from: usize, n: usize| {
        let names: Vec<_> = (from..from + n).map(|r| format!("%{name}{r}")).collect();
        format!("{{{}}}", names.join(","))
    };
    let mut body = String::new();
    for step in 0..MMA_STEPS as usize {
        let c = list("c", step % 4 * nc, nc);
        let (a, b) = (list("a", 0, na), list("b", 0, nb));
        let _ = writeln!(body, "mma.sync.aligned.{} {c}, {a}, {b}, {c};", f.form);
    }
    let mut fill = String::new();
    for r in 0..na {
        let _ = writeln!(fill, "xor.b32 %a{r}, %r2, {:#x};", f.fill ^ (r as u32) << 5);
    }
    for r in 0..nb {
        let _ = writeln!(fill, "xor.b32 %b{r}, %r2, {:#x};", f.fill ^ (r as u32) << 6);
    }
    for r in 0..4 * nc {
        let _ = writeln!(fill, "mov.b32 %c{r}, 0;");
    }
    format!(
        ".version 8.4\n.target sm_89\n.address_size 64\n.visible .entry products(.param .u64 out, .param .u32 rounds) {{
.reg .b32 %r<8>; .reg .b32 %a<8>; .reg .b32 %b<8>; .reg .b32 %c<32>; .reg .u64 %rd<4>; .reg .pred %p;
ld.param.u64 %rd1, [out];
ld.param.u32 %r1, [rounds];
mov.u32 %r3, %tid.x; and.b32 %r2, %r3, 15; shl.b32 %r2, %r2, 15;
{fill}mov.u32 %r4, 0;
LOOP:
{body}add.u32 %r4, %r4, 1;
setp.lt.u32 %p, %r4, %r1;
@%p bra LOOP;
xor.b32 %c0, %c0, %c{};
mul.wide.u32 %rd2, %r3, 4;
add.u64 %rd1, %rd1, %rd2;
st.global.b32 [%rd1], %c0;
ret;
}}",
        4 * nc - 1
    )
}

/// Rounds of `ldmatrix` and products of f16 from shared memory: a warp's 16 x 16 tile of A by
/// two of B, 16 deep in each of four steps.
pub(crate) const TILES: &str = ".version 8.0\n.target sm_80\n.address_size 64
.visible .entry tiles(.param .u64 out, .param .u32 rounds) {
.reg .b32 %r<24>; .reg .b32 %a<4>; .reg .b32 %b<4>; .reg .f32 %f<8>; .reg .u64 %rd<4>; .reg .pred %p;
.shared .align 16 .b8 tile[4096];
ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [rounds];
mov.u32 %r3, %tid.x; mov.u32 %r2, tile; shl.b32 %r5, %r3, 4; add.u32 %r5, %r5, %r2;
mov.u32 %r6, 0x3c003800;
st.shared.v4.b32 [%r5], {%r6, %r6, %r6, %r6};
st.shared.v4.b32 [%r5+512], {%r6, %r6, %r6, %r6};
st.shared.v4.b32 [%r5+1024], {%r6, %r6, %r6, %r6};
st.shared.v4.b32 [%r5+1536], {%r6, %r6, %r6, %r6};
st.shared.v4.b32 [%r5+2048], {%r6, %r6, %r6, %r6};
st.shared.v4.b32 [%r5+2560], {%r6, %r6, %r6, %r6};
st.shared.v4.b32 [%r5+3072], {%r6, %r6, %r6, %r6};
st.shared.v4.b32 [%r5+3584], {%r6, %r6, %r6, %r6};
bar.sync 0;
mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
mov.f32 %f4, %f0; mov.f32 %f5, %f0; mov.f32 %f6, %f0; mov.f32 %f7, %f0;
mov.u32 %r4, 0;
LOOP:
and.b32 %r7, %r4, 3; shl.b32 %r7, %r7, 9; add.u32 %r8, %r5, %r7;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%a0,%a1,%a2,%a3}, [%r8];
ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%b0,%b1,%b2,%b3}, [%r8+2048];
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, {%f0,%f1,%f2,%f3};
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4,%f5,%f6,%f7}, {%a0,%a1,%a2,%a3}, {%b2,%b3}, {%f4,%f5,%f6,%f7};
add.u32 %r4, %r4, 1; setp.lt.u32 %p, %r4, %r1; @%p bra LOOP;
add.f32 %f0, %f0, %f7;
mul.wide.u32 %rd2, %r3, 4; add.u64 %rd1, %rd1, %rd2; st.global.f32 [%rd1], %f0;
ret;
}";

/// Rounds of `wmma` on 16 x 16 x 16 tiles of f16 in shared memory.
pub(crate) const FRAGMENTS: &str = ".version 8.0\n.target sm_80\n.address_size 64
.visible .entry fragments(.param .u64 out, .param .u32 rounds) {
.reg .b32 %r<24>; .reg .b32 %a<8>; .reg .b32 %b<8>; .reg .f32 %f<8>; .reg .u64 %rd<4>; .reg .pred %p;
.shared .align 16 .b8 tile[1024];
ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [rounds];
mov.u32 %r3, %tid.x; mov.u32 %r2, tile; shl.b32 %r5, %r3, 4; add.u32 %r5, %r5, %r2;
mov.u32 %r6, 0x3c003800; mov.u32 %r7, 16;
st.shared.v4.b32 [%r5], {%r6, %r6, %r6, %r6};
st.shared.v4.b32 [%r5+512], {%r6, %r6, %r6, %r6};
bar.sync 0;
mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
mov.f32 %f4, %f0; mov.f32 %f5, %f0; mov.f32 %f6, %f0; mov.f32 %f7, %f0;
mov.u32 %r4, 0;
LOOP:
wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%a0,%a1,%a2,%a3,%a4,%a5,%a6,%a7}, [%r2], %r7;
wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%b0,%b1,%b2,%b3,%b4,%b5,%b6,%b7}, [%r2+512], %r7;
wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7}, {%a0,%a1,%a2,%a3,%a4,%a5,%a6,%a7}, {%b0,%b1,%b2,%b3,%b4,%b5,%b6,%b7}, {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7};
add.u32 %r4, %r4, 1; setp.lt.u32 %p, %r4, %r1; @%p bra LOOP;
wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7}, %r7;
ret;
}";

/// What kernels over arrays begin with: three pointers, and in `%r4` the thread of all.
macro_rules! over_arrays {
    ($name:literal, $declarations:literal, $body:literal) => {
        concat!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry ",
            $name,
            "(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 n) {
.reg .f32 %f<16>; .reg .u32 %r<24>; .reg .u64 %rd<20>; .reg .pred %p<4>;
",
            $declarations,
            "
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb]; ld.param.u64 %rd3, [pc]; ld.param.u32 %r0, [n];
cvta.to.global.u64 %rd4, %rd1; cvta.to.global.u64 %rd5, %rd2; cvta.to.global.u64 %rd6, %rd3;
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r4, %r1, %r2, %r3;
",
            $body,
            "\nret;\n}"
        )
    };
}

/// c = a + b, an element a thread.
pub(crate) const ADD: &str = over_arrays!(
    "add",
    "",
    "setp.ge.s32 %p0, %r4, %r0; @%p0 bra DONE;
mul.wide.s32 %rd7, %r4, 4;
add.s64 %rd8, %rd4, %rd7; ld.global.f32 %f1, [%rd8];
add.s64 %rd9, %rd5, %rd7; ld.global.f32 %f2, [%rd9];
add.f32 %f3, %f1, %f2;
add.s64 %rd10, %rd6, %rd7; st.global.f32 [%rd10], %f3;
DONE:"
);

/// c = 2 a + b, four elements a thread.
pub(crate) const SCALE_ADD: &str = over_arrays!(
    "scale_add",
    "",
    "setp.ge.s32 %p0, %r4, %r0; @%p0 bra DONE;
mul.wide.s32 %rd7, %r4, 16;
add.s64 %rd8, %rd4, %rd7; ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd8];
add.s64 %rd9, %rd5, %rd7; ld.global.v4.f32 {%f4, %f5, %f6, %f7}, [%rd9];
mov.f32 %f8, 0f40000000;
fma.rn.f32 %f0, %f0, %f8, %f4; fma.rn.f32 %f1, %f1, %f8, %f5;
fma.rn.f32 %f2, %f2, %f8, %f6; fma.rn.f32 %f3, %f3, %f8, %f7;
add.s64 %rd10, %rd6, %rd7; st.global.v4.f32 [%rd10], {%f0, %f1, %f2, %f3};
DONE:"
);

/// A sum of 4096 elements a block: 16 a thread, then by halves in shared memory.
pub(crate) const REDUCE: &str = over_arrays!(
    "reduce",
    ".shared .align 4 .b8 part[1024];",
    "mov.f32 %f0, 0f00000000; mov.u32 %r5, 0;
shl.b32 %r6, %r1, 12; add.u32 %r6, %r6, %r3;
LOOP:
mul.wide.u32 %rd7, %r6, 4; add.s64 %rd8, %rd4, %rd7; ld.global.f32 %f1, [%rd8];
add.f32 %f0, %f0, %f1;
add.u32 %r6, %r6, 256; add.u32 %r5, %r5, 1; setp.lt.u32 %p0, %r5, 16; @%p0 bra LOOP;
shl.b32 %r7, %r3, 2; mov.u32 %r8, part; add.u32 %r8, %r8, %r7;
st.shared.f32 [%r8], %f0;
bar.sync 0;
mov.u32 %r9, 128;
HALF:
setp.ge.u32 %p1, %r3, %r9; @%p1 bra NEXT;
shl.b32 %r10, %r9, 2; add.u32 %r11, %r8, %r10;
ld.shared.f32 %f1, [%r11]; ld.shared.f32 %f2, [%r8]; add.f32 %f2, %f1, %f2; st.shared.f32 [%r8], %f2;
NEXT:
bar.sync 0;
shr.u32 %r12, %r9, 1; setp.gt.u32 %p2, %r9, 1; mov.u32 %r9, %r12; @%p2 bra HALF;
setp.ne.s32 %p3, %r3, 0; @%p3 bra DONE;
ld.shared.f32 %f3, [part]; mul.wide.u32 %rd9, %r1, 4; add.s64 %rd10, %rd6, %rd9;
st.global.f32 [%rd10], %f3;
DONE:"
);

/// c = a transposed, of n by n elements: tiles of 32 by 32 in shared memory, 32 by 8 threads.
pub(crate) const TRANSPOSE: &str = over_arrays!(
    "transpose",
    ".shared .align 4 .b8 tile[4224];",
    "mov.u32 %r5, %tid.y; mov.u32 %r6, %ctaid.y; mov.u32 %r7, tile;
shl.b32 %r8, %r1, 5; add.u32 %r9, %r8, %r3;
shl.b32 %r10, %r6, 5; add.u32 %r11, %r10, %r5;
mad.lo.u32 %r12, %r11, %r0, %r9; mul.wide.u32 %rd7, %r12, 4; add.s64 %rd8, %rd4, %rd7;
mul.wide.u32 %rd9, %r0, 32;
mad.lo.u32 %r13, %r5, 132, %r7; shl.b32 %r14, %r3, 2; add.u32 %r13, %r13, %r14;
ld.global.f32 %f0, [%rd8]; st.shared.f32 [%r13], %f0; add.s64 %rd8, %rd8, %rd9;
ld.global.f32 %f1, [%rd8]; st.shared.f32 [%r13+1056], %f1; add.s64 %rd8, %rd8, %rd9;
ld.global.f32 %f2, [%rd8]; st.shared.f32 [%r13+2112], %f2; add.s64 %rd8, %rd8, %rd9;
ld.global.f32 %f3, [%rd8]; st.shared.f32 [%r13+3168], %f3;
bar.sync 0;
add.u32 %r15, %r10, %r3; add.u32 %r16, %r8, %r5;
mad.lo.u32 %r17, %r16, %r0, %r15; mul.wide.u32 %rd10, %r17, 4; add.s64 %rd11, %rd6, %rd10;
mad.lo.u32 %r18, %r3, 132, %r7; shl.b32 %r19, %r5, 2; add.u32 %r18, %r18, %r19;
ld.shared.f32 %f0, [%r18]; st.global.f32 [%rd11], %f0; add.s64 %rd11, %rd11, %rd9;
ld.shared.f32 %f1, [%r18+32]; st.global.f32 [%rd11], %f1; add.s64 %rd11, %rd11, %rd9;
ld.shared.f32 %f2, [%r18+64]; st.global.f32 [%rd11], %f2; add.s64 %rd11, %rd11, %rd9;
ld.shared.f32 %f3, [%r18+96]; st.global.f32 [%rd11], %f3;"
);

/// Counts the lowest bytes of the elements of a: 4096 a block in shared memory, then in c.
pub(crate) const HISTOGRAM: &str = over_arrays!(
    "histogram",
    ".shared .align 4 .b8 bins[1024];",
    "shl.b32 %r5, %r3, 2; mov.u32 %r6, bins; add.u32 %r7, %r6, %r5; mov.u32 %r8, 0;
st.shared.u32 [%r7], %r8;
bar.sync 0;
shl.b32 %r9, %r1, 12; add.u32 %r9, %r9, %r3;
LOOP:
mul.wide.u32 %rd7, %r9, 4; add.s64 %rd8, %rd4, %rd7; ld.global.u32 %r10, [%rd8];
and.b32 %r11, %r10, 255; shl.b32 %r11, %r11, 2; add.u32 %r12, %r6, %r11;
atom.shared.add.u32 %r13, [%r12], 1;
add.u32 %r9, %r9, 256; add.u32 %r8, %r8, 1; setp.lt.u32 %p0, %r8, 16; @%p0 bra LOOP;
bar.sync 0;
ld.shared.u32 %r14, [%r7]; mul.wide.u32 %rd9, %r3, 4; add.s64 %rd10, %rd6, %rd9;
atom.global.add.u32 %r15, [%rd10], %r14;"
);

/// The same by atomics in global memory alone, an element a thread.
pub(crate) const GLOBAL_HISTOGRAM: &str = over_arrays!(
    "global_histogram",
    "",
    "setp.ge.s32 %p0, %r4, %r0; @%p0 bra DONE;
mul.wide.s32 %rd7, %r4, 4; add.s64 %rd8, %rd4, %rd7; ld.global.u32 %r10, [%rd8];
and.b32 %r11, %r10, 255; mul.wide.u32 %rd9, %r11, 4; add.s64 %rd10, %rd6, %rd9;
atom.global.add.u32 %r12, [%rd10], 1;
DONE:"
);

/// A product of four warps: the form behind `wgmma.mma_async.sync.aligned.`, the constants behind
/// the descriptors, and what shared memory is filled with.
#[derive(Clone, Copy)]
pub(crate) struct GroupForm {
    pub(crate) name: &'static str,
    form: &'static str,
    tail: &'static str,
    fill: u32,
    pub(crate) macs: u32,
}

pub(crate) const GROUP_FORMS: [GroupForm; 3] = [
    GroupForm {
        name: "wgmma bf16",
        form: "m64n128k16.f32.bf16.bf16",
        tail: ", 1, 1, 0, 0",
        fill: 0x3f80_3f00,
        macs: 64 * 128 * 16,
    },
    GroupForm {
        name: "wgmma e4m3",
        form: "m64n128k32.f32.e4m3.e4m3",
        tail: ", 1, 1",
        fill: 0x3830_3830,
        macs: 64 * 128 * 32,
    },
    GroupForm {
        name: "wgmma s8",
        form: "m64n128k32.s32.s8.s8",
        tail: "",
        fill: 0x1122_fe03,
        macs: 64 * 128 * 32,
    },
];

/// Products of a round of [`group_kernel`].
pub(crate) const GROUP_STEPS: u32 = 4;

/// Rounds of products of four warps, of tiles with a pattern of 128 bytes.
pub(crate) fn group_kernel(f: &GroupForm) -> String {
    let d: Vec<String> = (0..64).map(|r| format!("%d{r}")).collect();
    let d = d.join(",");
    let mut body = String::new();
    for step in 0..u64::from(GROUP_STEPS) {
        // The pattern's rows hold four steps of 32 bytes each.
        let _ = writeln!(
            body,
            "add.u64 %rd4, %rd2, {0}; add.u64 %rd5, %rd3, {0};
wgmma.mma_async.sync.aligned.{1} {{{d}}}, %rd4, %rd5, 1{2};",
            2 * step,
            f.form,
            f.tail
        );
    }
    let zeros: String = (0..64).map(|r| format!("mov.b32 %d{r}, 0;\n")).collect();
    format!(
        ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry products(.param .u64 out, .param .u32 rounds) {{
.reg .b32 %r<8>; .reg .b32 %d<64>; .reg .u64 %rd<8>; .reg .pred %p;
.shared .align 1024 .b8 tile[24576];
ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [rounds];
mov.u32 %r3, %tid.x; mov.u32 %r2, tile; shl.b32 %r4, %r3, 2; add.u32 %r2, %r2, %r4; mov.u32 %r5, 0;
FILL:
st.shared.b32 [%r2], {:#x}; add.u32 %r2, %r2, 512; add.u32 %r5, %r5, 512;
setp.lt.u32 %p, %r5, 24576; @%p bra FILL;
fence.proxy.async; bar.sync 0;
mov.u64 %rd2, 0x4000004000010000; mov.u64 %rd3, 0x4000004000010200;
{zeros}mov.u32 %r4, 0;
LOOP:
wgmma.fence.sync.aligned;
{body}wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
add.u32 %r4, %r4, 1; setp.lt.u32 %p, %r4, %r1; @%p bra LOOP;
xor.b32 %d0, %d0, %d63;
mul.wide.u32 %rd2, %r3, 4; add.u64 %rd1, %rd1, %rd2; st.global.b32 [%rd1], %d0;
ret;
}}",
        f.fill
    )
}
