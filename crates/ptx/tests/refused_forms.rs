//! Forms that an assembler refuses: modifiers, types of atomics, special registers, state spaces,
//! numbers out of range and declarations, each beside what NVIDIA's assembler says of it.

use std::collections::{BTreeMap, BTreeSet};

use fercuda_ptx::build::Arch;
use fercuda_ptx::{check, check_operands, parse};

#[allow(dead_code, reason = "shared by several test programs")]
mod ptxas;

const TYPES: [&str; 15] = [
    "u16", "s16", "f16", "bf16", "f16x2", "u32", "s32", "f32", "u64", "s64", "f64", "b16", "b32",
    "b64", "b128",
];

/// The line of the first instruction in [`kernel`].
const FIRST: u32 = 6;

/// A kernel with a line of declarations before it and a line for each instruction.
fn kernel(before: &str, instructions: &[String]) -> String {
    let registers = TYPES.iter().filter(|ty| **ty != "bf16");
    let registers: String = registers
        .map(|ty| format!(".reg .{ty} %{ty}_<4>; "))
        .collect();
    format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n{before}\n\
         .visible .entry k(.param .u64 o) {{ .reg .pred %p, %q; .local .u32 inner; {registers}\n{}\n\
         ret; }}\n",
        instructions.join("\n")
    )
}

/// A register of a type's size.
fn register(ty: &str, n: usize) -> String {
    let ty = if ty == "bf16" { "b16" } else { ty };
    format!("%{ty}_{n}")
}

/// What is said of each line.
fn refusals(text: &str) -> BTreeMap<u32, String> {
    let module = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let found = check(&module).into_iter().chain(check_operands(&module));
    found.map(|d| (d.line, d.message)).collect()
}

/// Compares both judgements of each line; [`fercuda_ptx::check::MAX_DIAGNOSTICS`] lines are judged
/// at a time. Returns the lines that differ, but for those that `is_open` leaves open.
fn differences(before: &str, lines: &[String], is_open: impl Fn(&str) -> bool) -> Vec<String> {
    let Some(assembler) = ptxas::find() else {
        return Vec::new();
    };
    let theirs = assembler.refused_lines(&kernel(before, lines), Arch::SM_90);
    let mut ours = BTreeSet::new();
    for (n, part) in lines
        .chunks(fercuda_ptx::check::MAX_DIAGNOSTICS)
        .enumerate()
    {
        let found = refusals(&kernel(before, part));
        let first = (n * fercuda_ptx::check::MAX_DIAGNOSTICS) as u32;
        ours.extend(found.into_keys().map(|line| first + line));
    }
    let judged = (FIRST..).zip(lines).filter(|(_, line)| !is_open(line));
    let differ = judged.filter(|(n, _)| ours.contains(n) != theirs.contains(n));
    differ
        .map(|(n, line)| format!("{line} refused by us: {}", ours.contains(&n)))
        .collect()
}

#[test]
fn modifiers_of_arithmetic_are_judged_as_by_the_assembler() {
    let operations = [
        ("add", 2),
        ("sub", 2),
        ("mul", 2),
        ("mul.lo", 2),
        ("mad.hi", 3),
        ("mad.lo", 3),
        ("mad24.hi", 3),
        ("fma", 3),
        ("div", 2),
        ("rem", 2),
        ("sad", 3),
        ("min", 2),
        ("max", 2),
        ("neg", 1),
        ("abs", 1),
    ];
    let modifiers = [
        "", ".sat", ".ftz", ".rn", ".rz", ".rp", ".rni", ".rna", ".approx", ".full", ".NaN",
        ".rn.ftz", ".rn.sat",
    ];
    let mut lines = Vec::new();
    for (operation, count) in operations {
        for modifier in modifiers {
            for ty in &TYPES[..11] {
                let registers: Vec<String> = (0..=count).map(|n| register(ty, n)).collect();
                lines.push(format!(
                    "{operation}{modifier}.{ty} {};",
                    registers.join(", ")
                ));
            }
        }
    }
    // Newer versions have modifiers for the first; of the second, more types are described alike.
    let is_open = |line: &str| line.contains("bf16") || line.starts_with("mad24");
    let differ = differences("", &lines, is_open);
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn modifiers_of_conversions_are_judged_as_by_the_assembler() {
    let types = [
        ("u8", "u16"),
        ("s8", "s16"),
        ("u16", "u16"),
        ("f16", "f16"),
        ("u32", "u32"),
        ("s32", "s32"),
        ("f32", "f32"),
        ("s64", "s64"),
        ("f64", "f64"),
    ];
    let mut lines = Vec::new();
    for modifier in [
        "", ".rn", ".rm", ".rni", ".rpi", ".rzi.ftz", ".rn.ftz", ".ftz",
    ] {
        for (to, into) in types {
            for (from, register) in types {
                lines.push(format!(
                    "cvt{modifier}.{to}.{from} %{into}_0, %{register}_1;"
                ));
            }
        }
    }
    let differ = differences("", &lines, |_| false);
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn types_of_atomics_are_judged_as_by_the_assembler() {
    let mut lines = Vec::new();
    for operation in [
        "add",
        "add.noftz",
        "exch",
        "cas",
        "inc",
        "dec",
        "min",
        "max",
        "and",
        "or",
        "xor",
    ] {
        for ty in TYPES {
            let third = if operation == "cas" {
                register(ty, 3)
            } else {
                String::new()
            };
            let comma = if third.is_empty() { "" } else { ", " };
            let (to, from) = (register(ty, 0), register(ty, 1));
            for space in [".global", ""] {
                lines.push(format!(
                    "atom{space}.{operation}.{ty} {to}, [%b64_0], {from}{comma}{third};"
                ));
                if third.is_empty() {
                    lines.push(format!("red{space}.{operation}.{ty} [%b64_0], {from};"));
                }
            }
        }
    }
    let differ = differences("", &lines, |line| {
        line.contains(".noftz") && !line.contains("16")
    });
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn moves_of_special_registers_are_judged_as_by_the_assembler() {
    let mut lines = Vec::new();
    for special in [
        "%tid.x",
        "%tid.w",
        "%nctaid.y",
        "%laneid",
        "%nsmid",
        "%gridid",
        "%lanemask_ge",
        "%clock",
        "%clock_hi",
        "%clock64",
        "%globaltimer",
        "%globaltimer_hi",
        "%cluster_ctarank",
        "%dynamic_smem_size",
        "%current_graph_exec",
        "%pm0",
        "%pm7",
        "%pm3_64",
        "%envreg31",
    ] {
        for ty in [
            "u16", "b16", "u32", "s32", "b32", "f32", "u64", "s64", "b64", "f64",
        ] {
            lines.push(format!("mov.{ty} {}, {special};", register(ty, 1)));
        }
    }
    lines.push("mov.u32 %tid.x, %u32_0;".to_owned());
    lines.push("add.u32 %laneid, %u32_0, 1;".to_owned());
    let differ = differences("", &lines, |_| false);
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn state_spaces_of_variables_are_judged_as_by_the_assembler() {
    let before = ".global .u32 outer; .shared .u32 block; .const .u32 fixed;";
    let spaces = [
        "",
        ".global",
        ".shared",
        ".shared::cta",
        ".local",
        ".const",
        ".param",
    ];
    let mut lines = Vec::new();
    for space in spaces {
        for name in ["outer", "block", "fixed", "inner", "o"] {
            for instruction in [
                "ld@.u32 %u32_1, [!]",
                "ld@.u32 %u32_1, [!+0]",
                "ldu@.u32 %u32_1, [!]",
                "st@.u32 [!], %u32_1",
                "atom@.add.u32 %u32_1, [!], 1",
                "red@.add.u32 [!], 1",
            ] {
                let line = instruction.replace('@', space).replace('!', name);
                lines.push(format!("{line};"));
            }
        }
    }
    // A parameter of the kernel is no place to write to, whatever is said of it.
    let is_open = |line: &str| line.starts_with("st.param");
    let differ = differences(before, &lines, is_open);
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn numbers_and_orders_are_judged_as_by_the_assembler() {
    let before = ".shared .align 16 .b8 s[64];";
    let lines: Vec<String> = [
        "bar.sync 15;",
        "bar.sync 16;",
        "bar.sync -1;",
        "bar.sync 3, 64;",
        "bar.sync 3, 33;",
        "bar.arrive 16, 32;",
        "bar.arrive 1, 0;",
        "bar.red.popc.u32 %u32_1, 16, %p;",
        "bar.red.and.pred %q, 2, %p;",
        "barrier.sync 16;",
        "bar.warp.sync 77;",
        "barrier.cluster.arrive;",
        "alloca.u64 %u64_1, 16, 5;",
        "alloca.u64 %u64_1, 16, 0;",
        "alloca.u64 %u64_1, 16, 256;",
        "cp.async.ca.shared.global [s], [%b64_0], 8, 4;",
        "cp.async.ca.shared.global [s], [%b64_0], 2;",
        "cp.async.ca.shared.global [s], [%b64_0], 32;",
        "cp.async.cg.shared.global [s], [%b64_0], 8;",
        "cp.async.cg.shared.global [s], [%b64_0], 16, 0;",
        "cp.async.wait_group 100;",
        "bfe.u32 %u32_1, %u32_2, 255, 1;",
        "bfe.u32 %u32_1, %u32_2, 300, 1;",
        "bfi.b32 %b32_1, %b32_2, %b32_3, 1, 300;",
        "pmevent 16;",
        "pmevent 15;",
        "ld.relaxed.global.u32 %u32_1, [%b64_0];",
        "ld.relaxed.gpu.global.u32 %u32_1, [%b64_0];",
        "ld.acquire.global.u32 %u32_1, [%b64_0];",
        "ld.gpu.global.u32 %u32_1, [%b64_0];",
        "ld.release.gpu.global.u32 %u32_1, [%b64_0];",
        "ld.global.relaxed.gpu.nc.u32 %u32_1, [%b64_0];",
        "ld.global.nc.u32 %u32_1, [%b64_0];",
        "st.acquire.gpu.global.u32 [%b64_0], %u32_1;",
        "st.release.sys.global.u32 [%b64_0], %u32_1;",
        "st.global.nc.u32 [%b64_0], %u32_1;",
        "red.acquire.gpu.global.add.u32 [%b64_0], 1;",
        "red.release.gpu.global.add.u32 [%b64_0], 1;",
        "atom.acq_rel.gpu.global.add.u32 %u32_1, [%b64_0], 1;",
        "fence.acq_rel;",
        "fence.acq_rel.gpu;",
        "membar;",
        "membar.gpu;",
        "membar.gl;",
        "shfl.bfly.b32 %b32_1, %b32_2, 1, 31;",
        "vote.ballot.b32 %b32_1, %p;",
        "setmaxnreg.inc.sync.aligned.u32 64;",
    ]
    .map(str::to_owned)
    .into();
    // One by one, as the assembler's phases stop at each other's errors.
    for line in lines {
        let differ = differences(before, std::slice::from_ref(&line), |_| false);
        assert!(differ.is_empty(), "{differ:#?}");
    }
}

#[test]
fn fragments_of_matrices_are_judged_as_by_the_assembler() {
    let list = |ty: &str, count: usize| {
        let registers: Vec<String> = (0..count).map(|n| format!("%{ty}_{}", n % 4)).collect();
        format!("{{{}}}", registers.join(", "))
    };
    // The shape, the types of results and factors, the registers that hold each.
    let forms = [
        (
            "m16n8k16.row.col",
            "f32.f16.f16.f32",
            ["f32", "b32", "b32", "f32"],
        ),
        (
            "m16n8k8.row.col",
            "f16.f16.f16.f16",
            ["b32", "b32", "b32", "b32"],
        ),
        (
            "m16n8k8.row.col",
            "f32.tf32.tf32.f32",
            ["f32", "b32", "b32", "f32"],
        ),
        (
            "m16n8k4.row.col",
            "f32.tf32.tf32.f32",
            ["f32", "b32", "b32", "f32"],
        ),
        (
            "m16n8k16.row.col",
            "f32.bf16.bf16.f32",
            ["f32", "b32", "b32", "f32"],
        ),
        (
            "m16n8k32.row.col",
            "f32.e4m3.e5m2.f32",
            ["f32", "b32", "b32", "f32"],
        ),
        (
            "m16n8k32.row.col",
            "s32.s8.u8.s32",
            ["b32", "b32", "b32", "b32"],
        ),
        (
            "m8n8k16.row.col",
            "s32.s8.s8.s32",
            ["b32", "b32", "b32", "b32"],
        ),
        (
            "m16n8k64.row.col",
            "s32.s4.s4.s32",
            ["b32", "b32", "b32", "b32"],
        ),
        (
            "m8n8k4.row.col",
            "f64.f64.f64.f64",
            ["f64", "f64", "f64", "f64"],
        ),
        (
            "m16n8k16.row.col",
            "f64.f64.f64.f64",
            ["f64", "f64", "f64", "f64"],
        ),
        (
            "m8n8k4.row.col",
            "f32.f16.f16.f32",
            ["f32", "b32", "b32", "f32"],
        ),
        (
            "m8n8k4.row.col",
            "f16.f16.f16.f16",
            ["b32", "b32", "b32", "b32"],
        ),
    ];
    let mut lines = Vec::new();
    for (shape, types, registers) in forms {
        for [to, left, right] in [
            [4, 4, 2],
            [4, 4, 4],
            [2, 2, 1],
            [4, 2, 1],
            [2, 1, 1],
            [8, 2, 2],
            [4, 2, 2],
            [4, 8, 4],
        ] {
            let [d, a, b, c] = [(0, to), (1, left), (2, right), (3, to)]
                .map(|(n, count)| list(registers[n], count));
            lines.push(format!(
                "mma.sync.aligned.{shape}.{types} {d}, {a}, {b}, {c};"
            ));
        }
    }
    for sparse in [
        "m16n8k32.row.col.f32.f16.f16.f32",
        "m16n8k16.row.col.f32.f16.f16.f32",
    ] {
        for [left, right] in [[4, 4], [2, 2], [4, 2]] {
            let (d, a, b) = (list("f32", 4), list("b32", left), list("b32", right));
            lines.push(format!(
                "mma.sp.sync.aligned.{sparse} {d}, {a}, {b}, {d}, %b32_0, 0x0;"
            ));
        }
    }
    for (count, registers) in [(1, 1), (2, 2), (4, 4), (4, 2), (1, 2), (2, 1)] {
        let all = list("b32", registers);
        let form = format!("sync.aligned.m8n8.x{count}.shared.b16");
        lines.push(format!("ldmatrix.{form} {all}, [%b32_0];"));
        lines.push(format!("stmatrix.{form} [%b32_0], {all};"));
    }
    let differ = differences("", &lines, |_| false);
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn declarations_are_judged_as_by_the_assembler() {
    let Some(assembler) = ptxas::find() else {
        return;
    };
    for declaration in [
        ".global .align 3 .u32 g;",
        ".global .align 2 .u32 g;",
        ".global .align 0 .u32 g;",
        ".global .u32 g[0];",
        ".global .u32 g[];",
        ".global .u32 g[] = {1, 2};",
        ".global .u32 g[2] = {1};",
        ".global .u32 g[2] = {};",
        ".global .u32 g[2] = {1, 2, 3};",
        ".global .u32 g[2][2] = {{1}, {2, 3}};",
        ".global .u32 g[2][2] = {1, 2, 3, 4};",
        ".global .u32 g[2][2] = {{1, 2}, {3, 4}, {5, 6}};",
        ".global .u32 g = {1};",
        ".global .u32 g[2] = 1;",
        ".global .u32 g = 1.5;",
        ".global .b32 g = 1.5;",
        ".global .f32 g = 1;",
        ".global .f64 g = 0f3f800000;",
        ".global .v2 .u32 g = {1, 2};",
        ".global .v2 .u32 g[2] = {{1, 2}, {3, 4}};",
        ".global .v2 .u32 g = 1;",
        ".global .pred g;",
        ".shared .u32 g = 1;",
        ".shared .u32 g[0];",
        ".extern .shared .b8 g[];",
        ".extern .global .u32 g = 1;",
        ".global .u32 h; .global .u64 g[2] = {h, generic(h) + 4};",
        ".const .b8 g[65536];",
        ".const .b8 g[65537];",
        ".const .u8 a; .const .align 8 .b8 g[65528];",
        ".const .b8 g[40000]; .const .b8 h[40000];",
    ] {
        let text = kernel(declaration, &[]);
        let ours = refusals(&text);
        let theirs = assembler.refuses(&text, Arch::SM_90);
        assert_eq!(!ours.is_empty(), theirs, "{declaration} {ours:?}");
    }
    for local in [
        ".shared .u32 v = 1;",
        ".local .u32 v = 1;",
        ".local .align 3 .b8 v[4];",
        ".local .b8 v[0];",
        ".local .b8 v[];",
        ".param .b8 v[0];",
        ".param .align 3 .b8 v[4];",
        ".global .u32 v[2] = {1, 2, 3};",
        ".const .u32 v = 1;",
    ] {
        let text = kernel("", &[format!("{{ {local} add.u32 %u32_1, %u32_1, 1; }}")]);
        let ours = refusals(&text);
        let theirs = assembler.refuses(&text, Arch::SM_90);
        assert_eq!(!ours.is_empty(), theirs, "{local} {ours:?}");
    }
}

#[test]
fn forms_are_refused_by_name() {
    for (instruction, named) in [
        (
            "add.sat.u32 %u32_1, %u32_1, %u32_2;",
            "`.sat` of instruction `add`",
        ),
        (
            "add.ftz.f64 %f64_1, %f64_1, %f64_2;",
            "`.ftz` of instruction `add`",
        ),
        ("cvt.rn.u32.s32 %u32_1, %s32_1;", "rounding modifier `.rn`"),
        (
            "atom.global.add.u16 %u16_1, [%b64_0], %u16_1;",
            "type `.u16`",
        ),
        ("st.const.u32 [%b64_0], %u32_1;", "state space .const"),
        (
            "ld.shared.u32 %u32_1, [inner];",
            "`inner` in state space .local",
        ),
        ("mov.u64 %u64_1, %tid.x;", "`%tid.x` as .u64"),
        ("mov.u32 %tid.x, %u32_1;", "can only be read"),
        ("bar.sync 16;", "is 16, not in 0 to 15"),
    ] {
        let found = refusals(&kernel("", &[instruction.to_owned()]));
        let message = found.get(&FIRST).map_or("nothing", |m| m);
        assert!(message.contains(named), "{instruction} {found:?}");
    }
}
