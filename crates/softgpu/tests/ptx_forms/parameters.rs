//! Parameters and results of device functions that are registers.

use crate::bench::{bytes, launch, module, word, words};

/// Runs `body` on 32 threads with a word of input each in `%r1`; stores `%r2`.
fn word_by_word(before: &str, body: &str, expected: impl Fn(u32) -> u32) {
    let mut random = fercuda_trials::rng();
    let input: Vec<u32> = (0..32).map(|_| word(&mut random)).collect();
    let head = "mad.wide.u32 %rd2, %r0, 4, %rd0; mad.wide.u32 %rd3, %r0, 4, %rd1;
        ld.global.u32 %r1, [%rd2];\n";
    let text = module(before, &format!("{head}{body}\nst.global.u32 [%rd3], %r2;"));
    let out = words(&launch(&text, &bytes(&input), 128, 32));
    for (thread, (got, &from)) in out.iter().zip(&input).enumerate() {
        assert_eq!(*got, expected(from), "thread {thread} of\n{text}");
    }
}

#[test]
fn a_function_returns_a_register_and_a_predicate() {
    let before = ".func (.reg .u32 r, .reg .pred q) g(.reg .u32 x)
        { add.u32 r, x, 1; setp.lt.u32 q, x, 1000; @q ret; add.u32 r, r, 1; ret; }";
    let body = ".reg .pred q;
        call (%r2, q), g, (%r1);
        @q add.u32 %r2, %r2, 100;
        call (_, q), g, (5);
        @!q mov.u32 %r2, 0;";
    word_by_word(before, body, |x| {
        x.wrapping_add(if x < 1000 { 101 } else { 2 })
    });
}

#[test]
fn a_function_takes_a_predicate() {
    let before = ".func (.reg .u32 r) pick(.reg .pred p, .reg .u32 a, .reg .u32 b)
        { selp.u32 r, a, b, p; ret; }";
    let body = "setp.gt.s32 %p1, %r1, 77; call (%r2), pick, (%p1, %r1, 3);";
    word_by_word(before, body, |x| if x as i32 > 77 { x } else { 3 });
}

#[test]
fn a_constant_argument_has_the_parameter_s_type() {
    let before = ".func (.reg .u32 r) f(.reg .u64 a, .reg .f32 b, .reg .f64 c, .param .u64 d)
        {
            .reg .u64 t; .reg .u32 n;
            ld.param.u64 t, [d];
            add.u64 a, a, t; shr.u64 t, a, 32; cvt.u32.u64 r, t; cvt.u32.u64 n, a;
            add.u32 r, r, n;
            cvt.rzi.u32.f32 n, b; add.u32 r, r, n;
            cvt.rzi.u32.f64 n, c; add.u32 r, r, n;
            ret;
        }";
    let body = "call (%r2), f, (-1, 2.5, 4.0, 2); add.u32 %r2, %r2, %r1;";
    word_by_word(before, body, |x| x.wrapping_add(1 + 2 + 4));
}

#[test]
fn an_indirect_call_s_constant_has_the_prototype_s_type() {
    let before = ".func (.reg .u32 r) low(.reg .u64 a, .reg .u32 b)
        { .reg .u64 t; shr.u64 t, a, 32; cvt.u32.u64 r, t; add.u32 r, r, b; ret; }";
    let body = ".reg .u64 target;
        mov.u64 target, low;
        proto: .callprototype (.reg .u32 _) _ (.reg .u64 _, .reg .u32 _);
        call (%r2), target, (0x500000001, %r1), proto;";
    word_by_word(before, body, |x| x.wrapping_add(5));
}

#[test]
fn a_vector_register_is_an_argument_and_a_result() {
    let before = ".func (.reg .v2 .u32 r) swap(.reg .v2 .u32 a)
        { mov.v2.u32 r, {a.y, a.x}; ret; }";
    let body = ".reg .v2 .u32 v, w;
        mov.v2.u32 v, {%r1, 9};
        call (w), swap, (v);
        mad.lo.u32 %r2, w.x, w.y, w.x;";
    word_by_word(before, body, |x| x.wrapping_mul(9).wrapping_add(9));
}

#[test]
fn parameters_of_a_kernel_may_say_where_they_point() {
    let text = ".version 3.2
.target sm_20
.address_size 64
.visible .entry k(
    .param .u64 .ptr .global .align 16 input,
    .param .u64 .ptr .global .align 4 output
)
.maxntid 64, 1, 1
.reqntid 32, 1, 1
{
    .reg .u64 %rd<4>; .reg .u32 %r<4>; .reg .pred %p;
    ld.param.u64 %rd0, [input]; ld.param.u64 %rd1, [output];
    mov.u32 %r0, %tid.x;
    mad.wide.u32 %rd2, %r0, 4, %rd1;
    setp.lt.u32 %p, %r0, 7;
    vote.ballot.b32 %r1, %p;
    shfl.bfly.b32 %r2, %r0, 1, 31;
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%rd2], %r1;
    ret;
}
";
    let out = words(&launch(text, &[0; 4], 128, 32));
    let expected: Vec<u32> = (0..32).map(|t| 127 + (t ^ 1)).collect();
    assert_eq!(out, expected);
    for version in [
        "3.2", "4.0", "4.3", "5.0", "6.3", "7.8", "8.8", "9.0", "9.1", "9.5",
    ] {
        let newer = text.replace(".version 3.2", &format!(".version {version}"));
        assert_eq!(
            words(&launch(&newer, &[0; 4], 128, 32)),
            expected,
            "{version}"
        );
    }
}
