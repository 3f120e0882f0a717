//! Forms of instructions that sm_90a alone has, judged as NVIDIA's assembler does.

use std::collections::BTreeSet;

use fercuda_ptx::{check, check_operands, parse};

#[allow(dead_code, reason = "shared by several test programs")]
mod ptxas;

/// The line of the first instruction in [`kernel`].
const FIRST: u32 = 6;

fn kernel(target: &str, lines: &[String]) -> String {
    format!(
        ".version 8.6\n.target {target}\n.address_size 64\n.visible .entry k(.param .u64 o) {{\n\
         .reg .pred p; .reg .b32 %r<140>; .reg .f32 %f<140>; .reg .b64 %rd<4>;\n{}\nret; }}\n",
        lines.join("\n")
    )
}

fn differences(target: &str, lines: &[String]) -> Vec<String> {
    let Some(assembler) = ptxas::find() else {
        return Vec::new();
    };
    let mut differ = Vec::new();
    // The assembler stops at some errors; few lines at a time, and each by itself where they
    // differ.
    for line in lines {
        let text = kernel(target, std::slice::from_ref(line));
        let theirs = assembler.refused_lines(&text, target);
        let module = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let found = check(&module).into_iter().chain(check_operands(&module));
        let ours: BTreeSet<u32> = found.map(|d| d.line).collect();
        if ours.contains(&FIRST) != theirs.contains(&FIRST) {
            differ.push(format!("{line} refused by us: {}", ours.contains(&FIRST)));
        }
    }
    differ
}

fn list(name: &str, n: usize) -> String {
    let names: Vec<String> = (0..n).map(|k| format!("%{name}{k}")).collect();
    format!("{{{}}}", names.join(", "))
}

#[test]
fn products_of_four_warps_are_judged_as_by_the_assembler() {
    let mut lines = Vec::new();
    let forms: [(&str, &str, &str, usize); 14] = [
        ("n16k16", "f32.f16.f16", "1, -1, 0, 1", 8),
        ("n16k16", "f16.f16.f16", "1, -1, 0, 1", 4),
        ("n16k16", "f16.bf16.bf16", "1, -1, 0, 1", 4),
        ("n16k16", "f32.bf16.f16", "1, 1, 0, 1", 8),
        ("n40k8", "f32.tf32.tf32", "1, 1", 20),
        ("n8k8", "f32.tf32.tf32", "1, 1, 0, 0", 4),
        ("n8k32", "f32.e4m3.e5m2", "1, -1", 4),
        ("n8k32", "f16.e5m2.e4m3", "1, -1", 2),
        ("n8k32", "s32.s8.u8.satfinite", "", 4),
        ("n40k32", "s32.s8.u8", "", 20),
        ("n8k32", "s32.s8.s8", "1, 1", 4),
        ("n8k256", "s32.b1.b1.and.popc", "", 4),
        ("n8k256", "s32.b1.b1.xor.popc", "", 4),
        ("n8k16", "f32.f16.f16.satfinite", "1, 1, 0, 0", 4),
    ];
    for (shape, types, tail, count) in forms {
        let tail = if tail.is_empty() {
            String::new()
        } else {
            format!(", {tail}")
        };
        for count in [count, count + 1] {
            let d = list("r", count);
            let name = format!("wgmma.mma_async.sync.aligned.m64{shape}.{types} {d}");
            lines.push(format!("{name}, %rd1, %rd2, p{tail};"));
            lines.push(format!("{name}, {}, %rd2, p{tail};", list("r", 4)));
        }
    }
    for scales in [
        "0, 1, 0, 0",
        "1, 2, 0, 0",
        "1, 1, 2, 0",
        "1, 1, 0",
        "1, 1, 0, 0, 0",
        "1, 1",
    ] {
        let d = list("f", 4);
        let name = format!("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {d}");
        lines.push(format!("{name}, %rd1, %rd2, 1, {scales};"));
        lines.push(format!("{name}, {}, %rd2, 0, {scales};", list("r", 4)));
    }
    for (shape, types, tail) in [
        ("n8k32", "f32.f16.f16", ", 1, 1, 0, 1"),
        ("n8k16", "f32.f16.f16", ", 1, 1, 0, 1"),
        ("n8k16", "f32.tf32.tf32", ", 1, 1"),
        ("n8k64", "f32.e4m3.e4m3", ", 1, 1"),
        ("n8k64", "s32.u8.s8.satfinite", ""),
        ("n8k256", "s32.b1.b1.and.popc", ""),
    ] {
        for selector in ["0", "1", "2", "%r1"] {
            let d = list("r", 4);
            let name = format!("wgmma.mma_async.sp.sync.aligned.m64{shape}.{types} {d}");
            lines.push(format!("{name}, %rd1, %rd2, %r9, {selector}, p{tail};"));
        }
    }
    for n in ["0", "7", "-1", "%r1"] {
        lines.push(format!("wgmma.wait_group.sync.aligned {n};"));
    }
    for n in [0, 16, 24, 25, 240, 256, 264] {
        for way in ["inc", "dec"] {
            lines.push(format!("setmaxnreg.{way}.sync.aligned.u32 {n};"));
        }
    }
    lines.push("redux.sync.min.f32 %f1, %f2, -1;".to_owned());
    lines.push("redux.sync.max.abs.NaN.f32 %f1, %f2, -1;".to_owned());
    lines.push("stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%rd1], {%r1};".to_owned());
    lines.push("stmatrix.sync.aligned.m8n8.x1.trans.shared::cta.b16 [%rd1], {%r1};".to_owned());
    let differ = differences("sm_90a", &lines);
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn only_sm_90a_has_products_of_four_warps() {
    let lines = [
        "wgmma.fence.sync.aligned;",
        "wgmma.commit_group.sync.aligned;",
        "setmaxnreg.inc.sync.aligned.u32 64;",
    ]
    .map(str::to_owned);
    for target in ["sm_90", "sm_90a"] {
        let differ = differences(target, &lines);
        assert!(differ.is_empty(), "{target}: {differ:#?}");
    }
}
