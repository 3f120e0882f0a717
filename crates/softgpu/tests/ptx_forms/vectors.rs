//! Vector registers, lists of registers, sums of a register and a constant, elements of arrays,
//! `lop3` with a predicate.

use crate::bench::{bytes, launch, module, word, words};

/// Runs `body` on 32 threads, each of which has four words of input at `%rd2` and of output at
/// `%rd3`.
fn four_by_four(before: &str, body: &str, expected: impl Fn([u32; 4]) -> [u32; 4]) {
    let mut random = fercuda_trials::rng();
    let input: Vec<u32> = (0..128).map(|_| word(&mut random)).collect();
    let head = "mad.wide.u32 %rd2, %r0, 16, %rd0; mad.wide.u32 %rd3, %r0, 16, %rd1;\n";
    let text = module(before, &format!("{head}{body}"));
    let out = words(&launch(&text, &bytes(&input), 512, 32));
    let (input, _) = input.as_chunks::<4>();
    for (thread, (got, from)) in out.as_chunks::<4>().0.iter().zip(input).enumerate() {
        assert_eq!(*got, expected(*from), "thread {thread} of\n{text}");
    }
}

#[test]
fn a_vector_register_is_loaded_moved_and_stored_whole() {
    let body = ".reg .v4 .u32 v, w;
        ld.global.v4.u32 v, [%rd2];
        mov.v4.u32 w, v;
        add.u32 w.x, v.y, w.w;
        st.global.v4.u32 [%rd3], w;";
    four_by_four("", body, |[_, y, z, w]| [y.wrapping_add(w), y, z, w]);
}

#[test]
fn a_list_of_registers_may_stand_on_both_sides_of_a_move() {
    let body = ".reg .u32 a, b, c, d; .reg .v2 .u32 v;
        ld.global.v4.u32 {a, b, c, d}, [%rd2];
        mov.v4.u32 {a, b, c, d}, {b, c, d, a};
        mov.v2.u32 {a, b}, {b, a};
        mov.v2.u32 v, {c, 7};
        st.global.v2.u32 [%rd3], {a, b};
        st.global.v2.u32 [%rd3+8], v;";
    four_by_four("", body, |[_, y, z, w]| [z, y, w, 7]);
}

#[test]
fn a_component_is_swapped_within_its_vector_register() {
    let body = ".reg .v4 .f32 v;
        ld.global.v4.f32 v, [%rd2];
        mov.v4.f32 v, {v.w, v.z, v.g, v.r};
        st.global.v4.f32 [%rd3], {v.x, v.y, v.b, v.a};";
    four_by_four("", body, |[x, y, z, w]| [w, z, y, x]);
}

#[test]
fn a_move_under_a_guard_leaves_the_other_lanes_alone() {
    let body = ".reg .v4 .u32 v;
        ld.global.v4.u32 v, [%rd2];
        setp.lt.s32 %p0, v.x, 0;
        @%p0 mov.v4.u32 v, {v.y, v.z, v.w, 5};
        st.global.v4.u32 [%rd3], v;";
    four_by_four("", body, |[x, y, z, w]| {
        if (x as i32) < 0 {
            [y, z, w, 5]
        } else {
            [x, y, z, w]
        }
    });
}

#[test]
fn a_short_vector_register_packs_and_unpacks() {
    let body = ".reg .v2 .b16 h; .reg .v2 .u32 v; .reg .v4 .b8 q; .reg .u64 t;
        ld.global.u32 %r1, [%rd2];
        mov.b32 h, %r1;
        mov.b32 %r2, {h.y, h.x};
        ld.global.u32 v.x, [%rd2+4];
        ld.global.u32 v.y, [%rd2+8];
        mov.b64 t, v;
        mov.b64 {%r4, %r5}, t;
        ld.global.v4.b8 q, [%rd2+12];
        mov.b32 %r3, {q.w, q.z, q.y, q.x};
        st.global.v4.u32 [%rd3], {%r2, %r4, %r5, %r3};";
    four_by_four("", body, |[x, y, z, w]| {
        [x.rotate_left(16), y, z, w.swap_bytes()]
    });
}

#[test]
fn a_constant_is_added_to_a_register_where_it_is_used() {
    let body = ".reg .u32 a, b, c, d; .reg .u64 l; .reg .u16 h; .local .align 8 .b8 stack[8];
        ld.global.v4.u32 {a, b, c, d}, [%rd2];
        cvt.u64.u32 l, b;
        st.local.u64 [stack], l+4;
        ld.local.u64 l, [stack];
        shr.u64 l, l, 1;
        cvt.u32.u64 b, l;
        cvt.u16.u32 h, c;
        mov.u16 h, h+0xfff0;
        cvt.u32.u16 c, h;
        st.global.u32 [%rd3], a+-7;
        st.global.u32 [%rd3+4], b;
        st.global.u32 [%rd3+8], c;
        add.u32 d, d+1, d;
        st.global.u32 [%rd3+12], d;";
    four_by_four("", body, |[a, b, c, d]| {
        [
            a.wrapping_sub(7),
            ((u64::from(b) + 4) / 2) as u32,
            u32::from((c as u16).wrapping_add(0xfff0)),
            d.wrapping_mul(2).wrapping_add(1),
        ]
    });
}

#[test]
fn an_element_of_an_array_is_named_by_its_index() {
    let before = ".shared .u32 words[8]; .shared .v2 .u32 pairs[4];";
    let body = ".local .align 4 .u16 halves[4]; .reg .u16 h; .reg .u64 at;
        bar.sync 0;
        setp.eq.u32 %p0, %r0, 0;
        @%p0 st.shared.u32 words[3], 11;
        @%p0 st.shared.u32 pairs[2], 12;
        bar.sync 0;
        ld.shared.u32 %r1, [words+12];
        ld.shared.u32 %r2, [pairs+16];
        st.local.u16 halves[3], 13;
        mov.u64 at, halves[3];
        ld.local.u16 h, [at];
        cvt.u32.u16 %r3, h;
        ld.shared.u32 %r4, words[3];
        st.global.v4.u32 [%rd3], {%r1, %r2, %r3, %r4};";
    four_by_four(before, body, |_| [11, 12, 13, 11]);
}

#[test]
fn special_registers_are_read_in_each_of_their_sizes() {
    let body = ".reg .u16 %rs<3>; setp.ne.u32 %p1, %r0, 5; @%p1 ret;
        mov.u16 %rs1, %tid.x; cvt.u32.u16 %r1, %rs1;
        mov.u32 %r2, %tid.w; mov.u32 %r3, %pm7; mov.u64 %rd2, %pm3_64;
        mov.u32 %r4, %gridid; mov.u64 %rd3, %gridid; cvt.u32.u64 %r5, %rd3;
        sub.u32 %r4, %r4, %r5; mov.b16 %rs2, %ntid.x; cvt.u32.u16 %r6, %rs2;
        isspacep.const %p2, %rd1; selp.u32 %r7, 1, 0, %p2;
        st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};
        st.global.u64 [%rd1+16], %rd2; st.global.u32 [%rd1+24], %r6; st.global.u32 [%rd1+28], %r7;";
    let out = words(&launch(&module("", body), &[0; 4], 32, 32));
    assert_eq!(out, [5, 0, 0, 0, 0, 0, 32, 0]);
}

#[test]
fn lop3_combines_whether_its_result_is_zero() {
    for (name, combine) in [
        ("and", (|a, b| a && b) as fn(bool, bool) -> bool),
        ("or", |a, b| a || b),
        ("xor", |a, b| a != b),
    ] {
        let body = format!(
            ".reg .u32 a, b, c, d;
            ld.global.v4.u32 {{a, b, c, d}}, [%rd2];
            setp.lt.u32 %p1, d, 30;
            lop3.{name}.b32 a|%p1, a, b, c, 0x80, !%p1;
            mov.u32 %r1, 5; mov.pred %p2, %p1;
            @%p1 lop3.{name}.b32 %r1|%p2, a, b, c, 0x3c, %p1;
            lop3.{name}.b32 _|%p3, 1, 1, d, 0x80, 0;
            selp.u32 b, 1, 0, %p1; selp.u32 c, 2, 0, %p2; or.b32 b, b, c;
            selp.u32 c, 4, 0, %p3; or.b32 b, b, c;
            st.global.v4.u32 [%rd3], {{a, b, %r1, d}};"
        );
        four_by_four("", &body, |[a, b, c, d]| {
            let q = d >= 30;
            let first = a & b & c;
            let p = combine(first != 0, q);
            let (second, p2) = if p {
                let v = first ^ b;
                (v, combine(v != 0, p))
            } else {
                (5, p)
            };
            let p3 = combine(d & 1 != 0, false);
            [
                first,
                u32::from(p) | u32::from(p2) << 1 | u32::from(p3) << 2,
                second,
                d,
            ]
        });
    }
}
