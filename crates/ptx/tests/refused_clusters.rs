//! Forms of instructions about clusters, each beside what NVIDIA's assembler says of it.

use std::collections::BTreeSet;

use fercuda_ptx::build::Arch;
use fercuda_ptx::{check, check_operands, parse};

#[allow(dead_code, reason = "shared by several test programs")]
mod ptxas;

/// A kernel of one instruction, in line 6.
fn kernel(instruction: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k() {{ .reg .b32 r<4>; \
         .reg .b64 d<4>; .reg .f32 f<4>; .reg .f64 fd<2>; .reg .b16 h<2>; .reg .pred p;\n\
         .shared .align 16 .b32 v[8];\n{instruction}\nret; }}\n"
    )
}

fn is_refused(instruction: &str) -> bool {
    match parse(&kernel(instruction)) {
        Err(_) => true,
        Ok(module) => !check(&module).is_empty() || !check_operands(&module).is_empty(),
    }
}

/// Every form of some operands with some modifiers.
fn forms() -> Vec<String> {
    let mut out = Vec::new();
    for space in ["", ".shared::cluster", ".shared::cta", ".shared", ".global"] {
        for (ty, address) in [
            ("u32", "r1"),
            ("u64", "d1"),
            ("u32", "v"),
            ("u64", "v"),
            ("b32", "r1"),
        ] {
            let d = if ty == "u64" { "d0" } else { "r0" };
            out.push(format!("mapa{space}.{ty} {d}, {address}, r2;"));
            out.push(format!("getctarank{space}.{ty} r0, {address};"));
        }
    }
    out.push("mapa.shared::cluster.u32 r0, v+4, 3;".to_owned());
    out.push("mapa r0, r1, r2;".to_owned());
    out.push("getctarank.u64 d0, d1;".to_owned());
    for what in [".arrive", ".wait", ".sync", ""] {
        for order in ["", ".release", ".relaxed", ".acquire"] {
            for aligned in ["", ".aligned"] {
                out.push(format!("barrier.cluster{what}{order}{aligned};"));
            }
        }
    }
    out.push("barrier.cluster.arrive 1;".to_owned());
    let done = ".mbarrier::complete_tx::bytes";
    for weak in ["", ".weak", ".relaxed"] {
        for space in [".shared::cluster", "", ".shared::cta"] {
            for (parts, value) in [
                (".b32", "r0"),
                (".u32", "r0"),
                (".s32", "r0"),
                (".f32", "f0"),
                (".b64", "d0"),
                (".s64", "d0"),
                (".f64", "fd0"),
                (".b16", "h0"),
                (".v2.b32", "{r0, r3}"),
                (".v4.b32", "{r0, r1, r2, r3}"),
                (".v4.f32", "{f0, f1, f2, f3}"),
                (".v2.u64", "{d0, d1}"),
                (".v4.b64", "{d0, d1, d2, d3}"),
                (".v2.b32", "r0"),
            ] {
                let (at, bar) = if space.is_empty() {
                    ("d1", "d2")
                } else {
                    ("r1", "r2")
                };
                out.push(format!(
                    "st.async{weak}{space}{done}{parts} [{at}], {value}, [{bar}];"
                ));
            }
        }
    }
    out.push("st.async.shared::cluster.b32 [r1], r0, [r2];".to_owned());
    for order in [".relaxed.cluster", ".relaxed.gpu", ""] {
        for operation in [
            "add", "inc", "dec", "min", "max", "and", "or", "xor", "exch",
        ] {
            for (ty, value) in [
                ("u32", "r0"),
                ("s32", "r0"),
                ("b32", "r0"),
                ("u64", "d0"),
                ("s64", "d0"),
                ("b64", "d0"),
                ("f32", "f0"),
            ] {
                let space = ".shared::cluster";
                out.push(format!(
                    "red.async{order}{space}{done}.{operation}.{ty} [r1], {value}, [r2];"
                ));
            }
        }
    }
    for fence in [
        "fence.mbarrier_init.release.cluster;",
        "fence.mbarrier_init.release.gpu;",
        "fence.mbarrier_init.cluster;",
        "fence.acq_rel.cluster;",
        "fence.sc.cluster;",
        "ld.relaxed.cluster.shared::cluster.u32 r0, [r1];",
        "ld.acquire.cluster.shared::cluster.u32 r0, [r1];",
        "ld.shared::cluster.v4.u32 {r0, r1, r2, r3}, [r1];",
        "st.release.cluster.shared::cluster.u32 [r1], r0;",
        "atom.acq_rel.cluster.shared::cluster.cas.b32 r0, [r1], r2, r3;",
        "red.release.cluster.shared::cluster.add.f32 [r1], f0;",
        "isspacep.shared::cluster p, d0;",
        "isspacep.shared::cta p, d0;",
        "cvta.shared::cluster.u64 d0, d1;",
        "cvta.to.shared::cluster.u64 d0, d1;",
        "mov.u32 r0, %cluster_ctarank;",
        "mov.u32 r0, %clusterid.x;",
        "mov.pred p, %is_explicit_cluster;",
    ] {
        out.push(fence.to_owned());
    }
    out
}

#[test]
fn forms_about_clusters_are_judged_as_by_the_assembler() {
    let Some(assembler) = ptxas::find() else {
        return;
    };
    let mut differ = BTreeSet::new();
    for form in forms() {
        let theirs = !assembler
            .refused_lines(&kernel(&form), Arch::SM_90)
            .is_empty();
        let ours = is_refused(&form);
        if ours != theirs {
            differ.insert(format!("{form} refused by us: {ours}"));
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}
