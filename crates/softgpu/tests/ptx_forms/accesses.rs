//! Accesses of a whole warp: one behind the other or not, tiles of matrices, constants of a launch.
//!
//! Without checks such accesses are one copy, with them lane by lane: both give the same here.

use fastrand::Rng;
use half::f16;

use crate::bench::{bytes, launch, module, words};

/// Moves a part of each thread from the input through shared memory to the output.
fn moved(ty: &str, count: usize, space: &str, place: &str, size: usize) -> String {
    let (register, vector) = (
        if size / count == 8 { "%l" } else { "%x" },
        match count {
            1 => "",
            2 => ".v2",
            _ => ".v4",
        },
    );
    let names: Vec<String> = (0..count).map(|k| format!("{register}{k}")).collect();
    let list = match count {
        1 => names[0].clone(),
        _ => format!("{{{}}}", names.join(", ")),
    };
    let body = format!(
        ".reg .b32 %x<4>; .reg .b64 %l<4>; .shared .align 16 .b8 part[2048];
        {place}
        mad.wide.u32 %rd2, %r1, {size}, %rd0; mad.wide.u32 %rd3, %r1, {size}, %rd1;
        mov.u32 %r2, part; mad.lo.u32 %r3, %r1, {size}, %r2;
        ld{space}{vector}.{ty} {list}, [%rd2+{size}];
        st.shared{vector}.{ty} [%r3+16], {list};
        bar.sync 0;
        ld.shared{vector}.{ty} {list}, [%r3+16];
        st{space}{vector}.{ty} [%rd3], {list};"
    );
    module("", &body)
}

#[test]
fn each_lane_has_its_part_whatever_lies_beside_it() {
    let mut random = Rng::with_seed(7);
    let input: Vec<u8> = (0..2048).map(|_| random.u8(..)).collect();
    let places = [
        "mov.u32 %r1, %r0;",
        "xor.b32 %r1, %r0, 1;",
        "xor.b32 %r1, %r0, 31;",
        "add.u32 %r1, %r0, 3;",
    ];
    for (ty, bytes) in [("b8", 1), ("b16", 2), ("b32", 4), ("b64", 8)] {
        for count in [1, 2, 4] {
            let size = bytes * count;
            if size > 16 {
                continue;
            }
            for space in [".global", ""] {
                for (n, place) in places.iter().enumerate() {
                    for threads in [64, 40] {
                        let text = moved(ty, count, space, place, size);
                        let out = launch(&text, &input, 68 * size, threads);
                        let first = if n == 3 { 3 } else { 0 };
                        for t in 0..threads as usize {
                            let at = match n {
                                1 => t ^ 1,
                                2 => t ^ 31,
                                _ => t + first,
                            };
                            assert_eq!(
                                out[at * size..][..size],
                                input[(at + 1) * size..][..size],
                                "{ty} {count} {space} {place} thread {t}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// A matrix of small integers in f16, in rows or columns `stride` apart.
fn matrix(
    random: &mut Rng,
    rows: usize,
    columns: usize,
    major: &str,
    stride: usize,
) -> (Vec<f32>, Vec<u8>) {
    let values: Vec<f32> = (0..rows * columns)
        .map(|_| random.i32(-4..5) as f32)
        .collect();
    let mut laid = vec![0u8; 4096];
    for r in 0..rows {
        for c in 0..columns {
            let at = if major == "row" {
                r * stride + c
            } else {
                c * stride + r
            };
            let bits = f16::from_f32(values[r * columns + c]).to_bits();
            laid[2 * at..][..2].copy_from_slice(&bits.to_le_bytes());
        }
    }
    (values, laid)
}

#[test]
fn tiles_are_loaded_and_stored_in_rows_and_in_columns() {
    let mut random = Rng::with_seed(8);
    let majors = &["row", "col"];
    for (m, n, k) in [(16, 16, 16), (32, 8, 16), (8, 32, 16)] {
        for (a_major, b_major, d_major) in majors.iter().flat_map(|a| {
            majors
                .iter()
                .flat_map(move |b| majors.iter().map(move |d| (a, b, d)))
        }) {
            let line = |major: &str, rows: usize, columns: usize| {
                8 + if major == "row" { columns } else { rows }
            };
            let strides = [
                line(a_major, m, k),
                line(b_major, k, n),
                line(d_major, m, n),
            ];
            let (a, a_laid) = matrix(&mut random, m, k, a_major, strides[0]);
            let (b, b_laid) = matrix(&mut random, k, n, b_major, strides[1]);
            let shape = format!("m{m}n{n}k{k}");
            let list = |name: &str| {
                let names: Vec<String> = (0..8).map(|i| format!("%{name}{i}")).collect();
                format!("{{{}}}", names.join(", "))
            };
            // A from global memory, B from shared memory.
            let body = format!(
                ".reg .b32 %a<8>, %b<8>; .reg .f32 %d<8>; .shared .align 32 .b8 tile[4096];
                mov.u32 %r5, tile; mov.u32 %r1, %r0;
                FILL:
                shl.b32 %r3, %r1, 2; add.u32 %r4, %r5, %r3; cvt.u64.u32 %rd2, %r3; add.u64 %rd2, %rd2, %rd0;
                ld.global.b32 %r2, [%rd2+4096]; st.shared.b32 [%r4], %r2;
                add.u32 %r1, %r1, 32; setp.lt.u32 %p1, %r1, 1024; @%p1 bra FILL;
                bar.sync 0;
                mov.u32 %r6, {}; mov.u32 %r7, {}; mov.u32 %r8, {};
                wmma.load.a.sync.aligned.{a_major}.{shape}.global.f16 {}, [%rd0], %r6;
                wmma.load.b.sync.aligned.{b_major}.{shape}.shared.f16 {}, [%r5], %r7;
                wmma.load.c.sync.aligned.row.{shape}.global.f32 {}, [%rd0+8192], {n};
                wmma.mma.sync.aligned.{a_major}.{b_major}.{shape}.f32.f32 {}, {}, {}, {};
                wmma.store.d.sync.aligned.{d_major}.{shape}.global.f32 [%rd1], {}, %r8;",
                strides[0], strides[1], strides[2],
                list("a"), list("b"), list("d"),
                list("d"), list("a"), list("b"), list("d"), list("d"),
            );
            let mut input = [a_laid, b_laid].concat();
            input.resize(8192 + 4 * m * n, 0);
            let out = words(&launch(&module("", &body), &input, 4096, 32));
            for r in 0..m {
                for c in 0..n {
                    let want: f32 = (0..k).map(|i| a[r * k + i] * b[i * n + c]).sum();
                    let at = if *d_major == "row" {
                        r * strides[2] + c
                    } else {
                        c * strides[2] + r
                    };
                    assert_eq!(
                        f32::from_bits(out[at]),
                        want,
                        "{shape} {a_major} {b_major} {d_major} {r} {c}"
                    );
                }
            }
        }
    }
}

#[test]
fn small_matrices_are_loaded_and_stored_turned_or_not() {
    let mut random = Rng::with_seed(9);
    let input: Vec<u32> = (0..128).map(|_| random.u32(..)).collect();
    let half =
        |row: usize, column: usize| input[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
    for n in [1usize, 2, 4] {
        for trans in ["", ".trans"] {
            let names: Vec<String> = (0..n).map(|j| format!("%x{j}")).collect();
            let stores: String = (0..n)
                .map(|j| format!("st.global.b32 [%rd3+{}], %x{j};\n", 4 * j))
                .collect();
            // Row `lane * 5 % 32` of the input is row `lane` of the matrices.
            let body = format!(
                ".reg .b32 %x<4>; .shared .align 16 .b8 rows[512]; .shared .align 16 .b8 back[512];
                mad.wide.u32 %rd2, %r0, 16, %rd0; ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%rd2];
                mov.u32 %r1, rows; mad.lo.u32 %r2, %r0, 16, %r1;
                st.shared.v4.b32 [%r2], {{%x0, %x1, %x2, %x3}};
                mov.u32 %r3, back; mad.lo.u32 %r4, %r0, 16, %r3; mov.u32 %r8, 0;
                st.shared.v4.b32 [%r4], {{%r8, %r8, %r8, %r8}};
                bar.sync 0;
                mul.lo.u32 %r5, %r0, 5; and.b32 %r5, %r5, 31; mad.lo.u32 %r6, %r5, 16, %r1;
                ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {{{0}}}, [%r6];
                mad.wide.u32 %rd3, %r0, 16, %rd1;
                {stores}
                stmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 [%r4], {{{0}}};
                bar.sync 0;
                ld.shared.v4.b32 {{%x0, %x1, %x2, %x3}}, [%r4];
                st.global.v4.b32 [%rd3+512], {{%x0, %x1, %x2, %x3}};",
                names.join(", ")
            );
            let out = words(&launch(&module("", &body), &bytes(&input), 1024, 32));
            for lane in 0..32 {
                for j in 0..n {
                    let at = |row: usize, column: usize| half((8 * j + row) * 5 % 32, column);
                    let (r, c) = (lane / 4, 2 * (lane % 4));
                    let want = if trans.is_empty() {
                        at(r, c) | at(r, c + 1) << 16
                    } else {
                        at(c, r) | at(c + 1, r) << 16
                    };
                    assert_eq!(
                        out[4 * lane + j],
                        want,
                        "x{n}{trans} lane {lane} matrix {j}"
                    );
                }
                let row = lane * 5 % 32;
                let want = if lane < 8 * n {
                    &input[4 * row..][..4]
                } else {
                    &[0; 4][..]
                };
                assert_eq!(&out[128 + 4 * lane..][..4], want, "x{n}{trans} row {lane}");
            }
        }
    }
}

#[test]
fn a_register_is_a_constant_only_if_it_never_holds_anything_else() {
    // Copies of constants; one under a guard, one of two, one that a loop overwrites.
    let body = "
        mad.wide.u32 %rd2, %r0, 32, %rd1;
        mov.u32 %r1, %ntid.x; mov.u32 %r2, %r1; st.global.u32 [%rd2], %r2;
        mov.u32 %r3, %nctaid.y; add.u32 %r3, %r3, %r2; st.global.u32 [%rd2+4], %r3;
        setp.lt.u32 %p1, %r0, 5; mov.u32 %r4, 11; @%p1 mov.u32 %r4, 22; st.global.u32 [%rd2+8], %r4;
        mov.u32 %r5, 3; mov.u32 %r6, 0;
    AGAIN:
        add.u32 %r6, %r6, %r5; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 6; @%p2 bra AGAIN;
        st.global.u32 [%rd2+12], %r6;
        mov.u64 %rd3, %rd0; ld.global.u32 %r7, [%rd3]; st.global.u32 [%rd2+16], %r7;
        mov.u32 %r8, 9; mov.u32 %r9, %r8; mov.u32 %r10, 0; st.global.u32 [%rd2+20], %r10;
        st.global.v2.u32 [%rd2+24], {%r9, %r8};";
    let out = words(&launch(
        &module("", body),
        &77u32.to_le_bytes(),
        32 * 40,
        40,
    ));
    for (t, row) in out.chunks(8).enumerate() {
        let guarded = if t < 5 { 22 } else { 11 };
        assert_eq!(row, [40, 41, guarded, 12, 77, 0, 9, 9], "thread {t}");
    }
}

#[test]
fn counters_in_shared_memory_count_every_lane() {
    let body = "
        .shared .align 4 .b8 bins[64];
        shl.b32 %r1, %r0, 2; mov.u32 %r2, bins; mov.u32 %r3, 0;
        setp.lt.u32 %p1, %r0, 16; add.u32 %r4, %r2, %r1; @%p1 st.shared.u32 [%r4], %r3;
        bar.sync 0;
        mad.wide.u32 %rd2, %r0, 4, %rd0; ld.global.u32 %r5, [%rd2];
        and.b32 %r6, %r5, 15; shl.b32 %r6, %r6, 2; add.u32 %r7, %r2, %r6; add.u32 %r8, %r0, 1;
        atom.shared.add.u32 %r9, [%r7], %r8;
        red.shared.add.u32 [%r7], 1;
        bar.sync 0;
        mad.wide.u32 %rd3, %r0, 4, %rd1; st.global.u32 [%rd3+64], %r9;
        @%p1 ld.shared.u32 %r10, [%r4]; @%p1 st.global.u32 [%rd3], %r10;";
    let mut random = Rng::with_seed(10);
    let input: Vec<u32> = (0..32).map(|_| random.u32(..)).collect();
    let out = words(&launch(&module("", body), &bytes(&input), 64 + 128, 32));
    let mut bins = [0u32; 16];
    for (lane, x) in (0..).zip(&input) {
        let bin = &mut bins[(x & 15) as usize];
        assert_eq!(out[16 + lane as usize], *bin, "lane {lane}");
        *bin += lane + 1;
    }
    for x in &input {
        bins[(x & 15) as usize] += 1;
    }
    assert_eq!(out[..16], bins);
}

#[test]
fn a_base_is_added_to_the_offset_that_the_sum_had() {
    // The offset is written again between the sum and its use; an address is a value too.
    let body = "
        mul.wide.u32 %rd2, %r0, 4;
        add.s64 %rd3, %rd0, %rd2; ld.global.u32 %r1, [%rd3+4];
        add.s64 %rd4, %rd2, %rd1; add.u64 %rd2, %rd2, 256; st.global.u32 [%rd4], %r1;
        add.s64 %rd5, %rd1, %rd2; sub.u64 %rd6, %rd5, %rd1; cvt.u32.u64 %r2, %rd6;
        st.global.u32 [%rd5], %r2;
        setp.lt.u32 %p1, %r0, 7; @%p1 st.global.u32 [%rd5+256], %r1;
        xor.b32 %r3, %r0, 5; mul.wide.u32 %rd7, %r3, 4; add.s64 %rd7, %rd0, %rd7;
        ld.u32 %r4, [%rd7]; st.global.u32 [%rd5+512], %r4;";
    let input: Vec<u32> = (0..72).map(|n| n * n + 1000).collect();
    let out = words(&launch(&module("", body), &bytes(&input), 1024, 64));
    for t in 0..64 {
        assert_eq!(out[t], input[t + 1], "thread {t}");
        assert_eq!(out[64 + t], 4 * t as u32 + 256, "thread {t}");
        let guarded = if t < 7 { input[t + 1] } else { 0 };
        assert_eq!(out[128 + t], guarded, "thread {t}");
        assert_eq!(out[192 + t], input[t ^ 5], "thread {t}");
    }
}
