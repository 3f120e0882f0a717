//! Operands that a driver refuses, and those that it accepts: a list of both, and every register
//! type in every place of many instructions beside what NVIDIA's assembler says of it.

use std::collections::BTreeMap;

use fercuda_ptx::build::Arch;
use fercuda_ptx::{check, check_operands, parse};

#[allow(dead_code, reason = "shared by several test programs")]
mod ptxas;

const TYPES: [&str; 18] = [
    "pred", "b8", "u8", "s8", "b16", "u16", "s16", "f16", "f16x2", "b32", "u32", "s32", "f32",
    "b64", "u64", "s64", "f64", "b128",
];

/// A kernel of one line before the instructions, of which each is a line.
fn kernel(before: &str, instructions: &[String]) -> String {
    let registers: String = TYPES
        .iter()
        .map(|ty| format!(".reg .{ty} %{ty}_<4>; "))
        .collect();
    format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n{before}\n\
         .visible .entry k(.param .u64 o) {{ {registers}\n{}\nret; }}\n",
        instructions.join("\n")
    )
}

/// The line of the first instruction in [`kernel`].
const FIRST: u32 = 6;

/// What is said of each line.
fn refusals(text: &str) -> BTreeMap<u32, String> {
    let module = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let found = check(&module).into_iter().chain(check_operands(&module));
    found.map(|d| (d.line, d.message)).collect()
}

#[test]
fn what_does_not_fit_is_refused_and_named() {
    let before = ".extern .func foo; .func (.reg .u32 r) g(.reg .u32 a) { mov.u32 r, a; ret; } \
        .entry other() { ret; } .extern .global .b8 nothing[]; .shared .u32 words[4];";
    for (instruction, named) in [
        ("add.u64 %u64_1, %b32_1, %b32_2;", "`%b32_1` is .b32"),
        ("add.f32 %f32_1, %u32_0, %f32_1;", "`%u32_0` is .u32"),
        ("add.u32 %b32_1, %f32_0, %b32_1;", "`%f32_0` is .f32"),
        ("mov.u32 %b32_1, %f32_0;", "instruction `mov`"),
        ("mov.b64 %b64_1, %b32_0;", "instruction `mov`"),
        ("mov.u32 %u32_1, 1.0;", "a constant"),
        ("mov.f32 %f32_1, 1;", "a constant"),
        ("fma.rn.f32 %f32_1, %f32_1, 2, %f32_1;", "a constant"),
        ("add.u32 1, %u32_2, %u32_3;", "a register is needed"),
        ("@%u32_1 mov.u32 %u32_1, 1;", "predicate expected"),
        ("setp.eq.u32 %u32_1, %u32_2, %u32_3;", "instruction `setp`"),
        (
            "selp.u32 %u32_1, %u32_2, %u32_3, %u32_0;",
            "instruction `selp`",
        ),
        ("ld.global.u64 %b32_1, [%b64_0];", "instruction `ld`"),
        ("ld.global.u32 %f32_1, [%b64_0];", "`%f32_1` is .f32"),
        ("ld.global.u32 %u32_1, [%f64_0];", "an address"),
        ("ld.global.u32 %u32_1, [%b32_0];", "an address of 64 bits"),
        (
            "ld.global.v4.u32 {%u32_0, %u32_1}, [%b64_0];",
            "a vector of 2",
        ),
        ("st.global.u32 [%b64_0], %b16_1;", "`%b16_1` is .b16"),
        ("mul.wide.u32 %u32_1, %u32_0, %u32_2;", "`%u32_1` is .u32"),
        ("shl.b32 %b32_1, %b32_0, %b64_1;", "`%b64_1` is .b64"),
        (
            "atom.global.add.u32 %u32_1, [%b64_0], %u64_1;",
            "instruction `atom`",
        ),
        ("and.u32 %u32_1, %u32_2, %u32_3;", "unexpected type `.u32`"),
        ("add.b32 %b32_1, %b32_2, %b32_3;", "unexpected type `.b32`"),
        ("add %u32_1, %u32_2, %u32_3;", "a type is missing"),
        (
            "fma.f32 %f32_1, %f32_1, %f32_1, %f32_1;",
            "rounding modifier",
        ),
        ("cvt.f32.s32 %f32_1, %s32_1;", "rounding modifier"),
        ("add.u32 %u32_1, %tid.x, 1;", "`%tid.x` can only be moved"),
        ("bra NOPE;", "undeclared label `NOPE`"),
        ("mov.u32 %q, 1;", "undeclared register `%q`"),
        ("call.uni foo;", "unresolved extern function `foo`"),
        ("call.uni other;", "`other` is a kernel"),
        (
            "call (%u32_1), g, (%u32_1, %u32_2);",
            "call of `g` with 2 parameters",
        ),
        ("call g, (%u32_1);", "call of `g` with 0 results"),
        (
            "call (%u32_1), g, (%u64_1);",
            "formal parameter `a` of `g`: 8 bytes of 4",
        ),
        (
            "{ .param .b64 q; call (%u32_1), g, (q); }",
            "formal parameter `a`",
        ),
        (
            "mov.u64 %u64_1, nothing;",
            "unresolved extern variable `nothing`",
        ),
    ] {
        let found = refusals(&kernel(before, &[instruction.to_owned()]));
        let said = found.get(&FIRST).map_or("nothing", |m| m);
        assert!(said.contains(named), "{instruction} {found:?}");
    }
}

#[test]
fn accesses_to_images_that_cannot_be_are_refused() {
    let before = ".global .texref t; .global .surfref s; .global .u32 plain;";
    let four = "{%f32_0, %f32_1, %f32_2, %f32_3}";
    for (instruction, named) in [
        (
            "tex.2d.v4.f32.f32 {%f32_0, %f32_1, %f32_2}, [t, {%f32_0, %f32_1}];",
            "of 4 elements",
        ),
        ("tex.2d.v4.f32.f32 FOUR, [t, {%f32_0}];", "1 coordinates"),
        (
            "tex.2d.v4.f32.f32 FOUR, [t, {%f32_0, %f32_1, %f32_2}];",
            "3 coordinates",
        ),
        (
            "tex.3d.v4.f32.f32 FOUR, [t, {%f32_0, %f32_1, %f32_2}];",
            "3 coordinates",
        ),
        (
            "tex.2d.v4.f32.f32 FOUR, [plain, {%f32_0, %f32_1}];",
            "`plain` is .u32",
        ),
        (
            "tex.2d.v4.f32.f32 FOUR, [s, {%f32_0, %f32_1}];",
            "`s` is .surfref",
        ),
        (
            "tex.2d.v4.f64.f32 FOUR, [t, {%f32_0, %f32_1}];",
            "unexpected types",
        ),
        (
            "tex.2d.f32.f32 %f32_0, [t, {%f32_0, %f32_1}];",
            "requires .v4",
        ),
        (
            "tex.v4.f32.f32 FOUR, [t, {%f32_0, %f32_1}];",
            "geometry modifier",
        ),
        (
            "tex.level.2d.v4.f32.f32 FOUR, [t, {%f32_0, %f32_1}];",
            "an operand is missing",
        ),
        (
            "tld4.2d.v4.f32.f32 FOUR, [t, {%f32_0, %f32_1}];",
            "component modifier",
        ),
        (
            "suld.b.2d.b32.trap %b32_0, [t, {%b32_0, %b32_1}];",
            "`t` is .texref",
        ),
        ("suld.b.2d.b32.trap %b32_0, [s, {%b32_0}];", "1 coordinates"),
        (
            "suld.b.2d.b32 %b32_0, [s, {%b32_0, %b32_1}];",
            "clamp modifier",
        ),
        (
            "suld.2d.b32.trap %b32_0, [s, {%b32_0, %b32_1}];",
            "no instruction",
        ),
        (
            "suld.p.2d.b32.trap %b32_0, [s, {%b32_0, %b32_1}];",
            "no instruction",
        ),
        (
            "suld.b.2d.u32.trap %b32_0, [s, {%b32_0, %b32_1}];",
            "unexpected types",
        ),
        (
            "suld.b.cube.b32.trap %b32_0, [s, {%b32_0, %b32_1, %b32_2, %b32_2}];",
            "geometry",
        ),
        (
            "sust.p.2d.b64.trap [s, {%b32_0, %b32_1}], %b64_0;",
            "unexpected types",
        ),
        (
            "sured.b.add.2d.f32.trap [s, {%b32_0, %b32_1}], %f32_0;",
            "unexpected types",
        ),
        (
            "sured.b.and.2d.u32.trap [s, {%b32_0, %b32_1}], %u32_0;",
            "unexpected types",
        ),
    ] {
        let line = instruction.replace("FOUR", four);
        let found = refusals(&kernel(before, &[line]));
        let message = found.get(&FIRST);
        assert!(
            message.is_some_and(|m| m.contains(named)),
            "{instruction} {found:?}"
        );
    }
    let unified = refusals(&kernel(".global .samplerref q;", &[]));
    assert!(unified[&0].contains("texmode_independent"), "{unified:?}");
}

#[test]
fn an_instruction_that_the_target_lacks_is_refused() {
    let refused = |target: &str, instruction: &str| {
        let text = kernel("", &[instruction.to_owned()]).replace("sm_90", target);
        !refusals(&text).is_empty()
    };
    for (instruction, has, lacks) in [
        ("elect.sync %b32_1|%pred_1, -1;", "sm_90", "sm_80"),
        ("barrier.cluster.arrive;", "sm_90a", "sm_80"),
        ("redux.sync.add.u32 %u32_1, %u32_1, -1;", "sm_80", "sm_75"),
        ("cp.async.wait_all;", "sm_86", "sm_75"),
        ("tanh.approx.f32 %f32_1, %f32_1;", "sm_75", "sm_70"),
        ("bmsk.clamp.b32 %b32_1, %u32_1, %u32_1;", "sm_70", "sm_61"),
        ("alloca.u64 %u64_1, 8;", "sm_52", "sm_50"),
        ("add.u32 %u32_1, %u32_1, 1;", "sm_20", ""),
    ] {
        assert!(!refused(has, instruction), "{instruction} for {has}");
        assert!(
            lacks.is_empty() || refused(lacks, instruction),
            "{instruction} for {lacks}"
        );
    }
}

#[test]
fn declarations_that_differ_or_stand_twice_are_refused() {
    for (before, named) in [
        (
            ".func f() { ret; } .func f() { ret; }",
            "`f` is defined twice",
        ),
        (".global .u32 g; .global .u32 g;", "`g` is defined twice"),
        (
            ".entry k2() { ret; } .entry k2() { ret; }",
            "`k2` is defined twice",
        ),
        (
            ".func f(.reg .u32 a); .func f(.reg .u64 a) { ret; }",
            "inconsistent prototypes of `f`",
        ),
        (
            ".func (.reg .u32 r) f(); .func f() { ret; }",
            "inconsistent prototypes of `f`",
        ),
        (
            ".extern .func f; .global .u64 table[2] = {f, 0};",
            "unresolved extern function `f`",
        ),
        (
            ".extern .func f; .func g() { call f; ret; }",
            "unresolved extern function `f`",
        ),
        (
            ".entry declared(.param .u64 p);",
            "unresolved extern function `declared`",
        ),
    ] {
        let found = refusals(&kernel(before, &[]));
        assert!(
            found.values().any(|m| m.contains(named)),
            "{before} {found:?}"
        );
    }
}

#[test]
fn what_fits_is_accepted() {
    let before = ".extern .func (.param .b64 r) malloc(.param .b64 n); .extern .func free(.param .b64 p); \
        .extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v); .extern .func unused; \
        .global .texref t; .global .surfref s; .extern .global .u32 sized; .global .u32 words[4]; .shared .u32 shared_words[4]; \
        .func (.reg .u32 r, .reg .pred q) g(.reg .u32 a, .param .b64 b) { mov.u32 r, a; ret; }";
    let lines: Vec<String> = [
        "mov.b32 %u32_1, %f32_0;",
        "and.b32 %f32_1, %f32_0, %u32_0;",
        "add.s32 %u32_1, %s32_0, %b32_1;",
        "add.f32 %b32_1, %f32_0, 1.0;",
        "add.u32 %u32_1, %u32_2+4, -1;",
        "mov.b32 %b32_1, 0f3F800000;",
        "mov.f32 %f32_1, 0d3FF0000000000000;",
        "ld.global.u8 %b64_1, [%b64_0];",
        "ld.global.f32 %b32_1, [%b64_0];",
        "ld.shared.u32 %u32_1, [%b32_0];",
        "ld.v2.f32 {%f32_1, %u32_1}, [%b64_0];",
        "ld.global.v2.u32 {%u32_1, _}, [%b64_0];",
        "st.global.v4.f32 [%b64_0], {%f32_1, %f32_1, %f32_1, %f32_2};",
        "st.global.u8 [%b64_0], %u32_1;",
        "st.global.u32 [words+4], 5;",
        "cvt.u16.u64 %u32_1, %u64_1;",
        "cvt.rn.f32.u8 %f32_1, %u16_1;",
        "cvt.u64.u32 %u64_1, %tid.x;",
        "mov.u32 %u32_1, %tid.x;",
        "mov.u64 %u64_1, words;",
        "mov.u64 %u64_1, words[2];",
        "mov.u64 %u64_1, sized;",
        "mov.b64 %b64_1, {%u32_0, %f32_1};",
        "mov.b64 {%b32_0, %b32_1}, %f64_1;",
        "setp.lt.and.f32 %pred_1|%pred_2, %f32_1, 0f00000000, !%pred_3;",
        "selp.b32 %f32_1, %u32_1, 0f3F800000, %pred_1;",
        "shl.b64 %b64_1, %b64_0, %s32_1;",
        "lop3.or.b32 %b32_1|%pred_1, %b32_1, %u32_2, %f32_1, 0x80, %pred_2;",
        "vadd.u32.u32.u32 %u32_1.b1, %u32_2.h1, 7, %u32_0;",
        "atom.global.add.f32 _, [%b64_0], 1.0;",
        "div.rn.f32 %f32_1, %f32_1, %f32_2;",
        "call (%u32_1, %pred_1), g, (%u32_2, %u64_1);",
        "{ .param .b64 n; .param .b64 r; call (r), malloc, (n); call free, (r); }",
        "bar.sync 0;",
        "tex.2d.v4.f32.f32 {%f32_0, %f32_1, %f32_2, _}|%pred_1, [t, {%f32_0, %f32_1}];",
        "tex.a2d.v4.u32.f32 {%u32_0, %u32_1, %b32_2, %b32_2}, [%u64_0, {1, %f32_0, %f32_1, 0f00000000}];",
        "tex.grad.1d.v4.f32.f32 {%f32_0, %f32_1, %f32_2, %f32_3}, [t, %f32_0], {%f32_0}, {%f32_1};",
        "suld.b.1d.b32.zero %b64_0, [s, {0}];",
        "sust.b.2d.v2.b32.clamp [s, {%u32_0, %s32_0}], {%f32_0, %u32_1};",
        "sured.b.xor.1d.b32.trap [s, %u32_0], 7;",
        "L: @%pred_1 bra L;",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(refusals(&kernel(before, &lines)), BTreeMap::new());
}

/// Instructions with `X` where each type of register is tried.
const FORMS: &[&str] = &[
    "add.u16 X, %u16_1, %u16_2",
    "add.s32 X, %s32_1, %s32_2",
    "add.s32 %s32_1, X, %s32_2",
    "sub.u64 %u64_1, %u64_2, X",
    "add.f16 X, %f16_1, %f16_2",
    "add.f16x2 X, %b32_1, %b32_2",
    "add.rn.bf16 X, %b16_1, %b16_2",
    "add.f32 X, %f32_1, %f32_2",
    "mul.f64 X, %f64_1, %f64_2",
    "and.b16 X, %b16_1, %b16_2",
    "xor.b32 X, %b32_1, %b32_2",
    "not.b64 X, %b64_1",
    "cnot.b32 X, %b32_1",
    "mov.b16 X, %b16_1",
    "mov.u16 X, %u16_1",
    "mov.b32 X, %b32_1",
    "mov.u32 X, %u32_1",
    "mov.f32 X, %f32_1",
    "mov.b64 X, %b64_1",
    "mov.b128 X, %b128_2",
    "ld.global.u8 X, [%b64_0]",
    "ld.global.b8 X, [%b64_0]",
    "ld.global.s16 X, [%b64_0]",
    "ld.global.b16 X, [%b64_0]",
    "ld.global.u32 X, [%b64_0]",
    "ld.global.b32 X, [%b64_0]",
    "ld.global.f32 X, [%b64_0]",
    "ld.global.u64 X, [%b64_0]",
    "ld.global.f64 X, [%b64_0]",
    "ld.global.b128 X, [%b64_0]",
    "ld.global.v2.u32 {X, X}, [%b64_0]",
    "ld.global.v2.u8 {X, X}, [%b64_0]",
    "st.global.u8 [%b64_0], X",
    "st.global.b16 [%b64_0], X",
    "st.global.u32 [%b64_0], X",
    "st.global.b32 [%b64_0], X",
    "st.global.f32 [%b64_0], X",
    "st.global.f64 [%b64_0], X",
    "cvt.u32.u16 X, %u16_1",
    "cvt.u32.u16 %u32_1, X",
    "cvt.u8.u32 X, %u32_1",
    "cvt.rn.f32.s32 X, %s32_1",
    "cvt.rn.f32.s32 %f32_1, X",
    "cvt.rzi.u8.f32 X, %f32_1",
    "cvt.rzi.u32.f32 %u32_1, X",
    "cvt.rn.f16.f32 X, %f32_1",
    "cvt.f32.f16 %f32_1, X",
    "cvt.rn.f32.f64 %f32_1, X",
    "shl.b64 %b64_1, %b64_1, X",
    "shl.b16 X, %b16_1, %u32_1",
    "shr.u32 X, %b32_1, 1",
    "popc.b32 X, %b32_1",
    "popc.b64 %u32_1, X",
    "bfind.s64 %u32_1, X",
    "bfe.u64 %u64_1, %u64_1, X, 2",
    "bfi.b32 X, %b32_1, %b32_1, 1, 2",
    "brev.b32 X, %b32_1",
    "setp.eq.u32 X, %u32_1, 1",
    "setp.eq.u32 %pred_1, X, 1",
    "setp.eq.f32 %pred_1, X, %f32_1",
    "setp.eq.b32 %pred_1, X, %b32_1",
    "setp.eq.and.u32 %pred_1, 1, %u32_1, X",
    "selp.u32 %u32_1, %u32_2, 1, X",
    "selp.b32 X, %b32_2, 1, %pred_1",
    "selp.f32 X, %f32_2, %f32_1, %pred_1",
    "set.eq.u32.f32 X, %f32_1, %f32_2",
    "set.eq.f32.s32 X, %s32_1, %s32_2",
    "mul.wide.u32 X, %u32_1, %u32_2",
    "mul.wide.u16 X, %u16_1, %u16_2",
    "mul.lo.u32 X, %u32_1, %u32_2",
    "mad.wide.u32 %u64_1, %u32_1, %u32_2, X",
    "mad.lo.s32 %s32_1, %s32_1, X, 1",
    "fma.rn.f32 %f32_1, X, %f32_1, %f32_1",
    "fma.rn.f16x2 %b32_1, X, %b32_1, %b32_1",
    "sin.approx.f32 %f32_1, X",
    "neg.f16 X, %f16_1",
    "sad.u32 X, %u32_1, %u32_1, %u32_1",
    "lop3.b32 X, %b32_1, %b32_1, %b32_1, 1",
    "prmt.b32 %b32_1, %b32_1, %b32_1, X",
    "shf.l.wrap.b32 X, %b32_1, %b32_1, %u32_1",
    "atom.global.add.u32 %u32_1, [%b64_0], X",
    "atom.global.add.f32 %f32_1, [%b64_0], X",
    "atom.global.exch.b32 %b32_1, [%b64_0], X",
    "atom.global.cas.b32 %b32_1, [%b64_0], X, %b32_2",
    "red.global.add.u32 [%b64_0], X",
    "vote.sync.ballot.b32 X, %pred_1, -1",
    "vote.sync.ballot.b32 %b32_1, X, -1",
    "testp.number.f32 X, %f32_1",
    "cvta.to.global.u64 X, %u64_1",
    "copysign.f32 X, %f32_1, %f32_1",
    "div.u32 X, %u32_1, %u32_1",
    "min.f16x2 X, %b32_1, %b32_1",
    "abs.bf16 X, %b16_1",
    "shfl.sync.idx.b32 X, %b32_1, 0, 31, -1",
    "@X mov.u32 %u32_1, 0",
    "tex.2d.v4.f32.f32 {X, X, X, X}, [%b64_0, {%f32_0, %f32_1}]",
    "tex.2d.v4.u32.f32 {X, X, X, X}, [%b64_0, {%f32_0, %f32_1}]",
    "tex.2d.v4.s32.f32 {X, X, X, X}, [%b64_0, {%f32_0, %f32_1}]",
    "tex.2d.v2.f16x2.f32 {X, X}, [%b64_0, {%f32_0, %f32_1}]",
    "tex.2d.v4.f32.f32 {%f32_0, %f32_1, %f32_2, %f32_3}, [%b64_0, {X, X}]",
    "tex.2d.v4.f32.s32 {%f32_0, %f32_1, %f32_2, %f32_3}, [%b64_0, {X, X}]",
    "tex.1d.v4.f32.s32 {%f32_0, %f32_1, %f32_2, %f32_3}, [%b64_0, X]",
    "tex.a1d.v4.f32.f32 {%f32_0, %f32_1, %f32_2, %f32_3}, [%b64_0, {X, %f32_0}]",
    "tex.2d.v4.f32.f32 {%f32_0, %f32_1, %f32_2, %f32_3}, [X, {%f32_0, %f32_1}]",
    "tex.level.1d.v4.f32.f32 {%f32_0, %f32_1, %f32_2, %f32_3}, [%b64_0, {%f32_0}], X",
    "tld4.r.2d.v4.f32.f32 {X, X, X, X}, [%b64_0, {%f32_0, %f32_1}]",
    "txq.width.b32 X, [%b64_0]",
    "suq.height.b32 X, [%b64_0]",
    "suld.b.2d.b8.trap X, [%b64_0, {%b32_0, %b32_1}]",
    "suld.b.2d.b16.trap X, [%b64_0, {%b32_0, %b32_1}]",
    "suld.b.2d.b32.trap X, [%b64_0, {%b32_0, %b32_1}]",
    "suld.b.2d.b64.trap X, [%b64_0, {%b32_0, %b32_1}]",
    "suld.b.2d.v2.b32.trap {X, X}, [%b64_0, {%b32_0, %b32_1}]",
    "suld.b.2d.b32.trap %b32_2, [%b64_0, {X, X}]",
    "suld.b.2d.b32.trap %b32_2, [X, {%b32_0, %b32_1}]",
    "sust.b.2d.b16.trap [%b64_0, {%b32_0, %b32_1}], X",
    "sust.b.2d.b32.trap [%b64_0, {%b32_0, %b32_1}], X",
    "sust.b.2d.b64.trap [%b64_0, {%b32_0, %b32_1}], X",
    "sust.p.2d.b32.trap [%b64_0, {%b32_0, %b32_1}], X",
    "sust.p.2d.v4.b32.trap [%b64_0, {%b32_0, %b32_1}], {X, X, X, X}",
    "sured.b.add.2d.u32.trap [%b64_0, {%b32_0, %b32_1}], X",
    "sured.b.add.2d.s32.trap [%b64_0, {%b32_0, %b32_1}], X",
    "sured.b.add.2d.u64.trap [%b64_0, {%b32_0, %b32_1}], X",
    "sured.b.or.2d.b32.trap [%b64_0, {%b32_0, %b32_1}], X",
    "sured.p.add.2d.b32.trap [%b64_0, {%b32_0, %b32_1}], X",
];

#[test]
fn every_type_of_register_is_judged_as_by_the_assembler() {
    let Some(assembler) = ptxas::find() else {
        return;
    };
    let mut differ = Vec::new();
    for form in FORMS {
        let lines: Vec<String> = TYPES
            .iter()
            .map(|ty| format!("{};", form.replace('X', &format!("%{ty}_1"))))
            .collect();
        let text = kernel("", &lines);
        let theirs = assembler.refused_lines(&text, Arch::SM_90);
        let ours = refusals(&text);
        for (n, line) in (FIRST..).zip(&lines) {
            if ours.contains_key(&n) != theirs.contains(&n) {
                differ.push((line.clone(), ours.get(&n).cloned()));
            }
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}
