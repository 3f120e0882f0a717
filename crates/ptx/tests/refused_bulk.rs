//! Forms of bulk copies, mbarriers and tensor maps that NVIDIA's assembler of CUDA 13.0 takes for
//! sm_90a, and those that it refuses.

use fercuda_ptx::{check, check_operands, parse};

fn refusals(target: &str, instruction: &str) -> Vec<String> {
    let text = format!(
        ".version 9.0\n.target {target}\n.address_size 64\n\
         .visible .entry k(.param .align 64 .b8 tm[128]) {{\n\
         .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<10>; .reg .b16 %rs<10>;\n\
         .shared .align 128 .b8 s[1024]; .shared .align 8 .b64 b;\n\
         {instruction}\nret;\n}}\n"
    );
    let module = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let found = check(&module).into_iter().chain(check_operands(&module));
    found.map(|d| d.message).collect()
}

const TAKEN: &[&str] = &[
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [s], [%rd1], 128, [b];",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [s], 128, [%r2];",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd1], 0, [b];",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd3, {0, 7}], [b];",
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r1], [%rd3, {%r2, %r3}], [b], %rs1, %rd4;",
    "cp.async.bulk.tensor.4d.im2col.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd3, {%r2, %r3, %r4, %r5}], [b], {%rs1, 2};",
    "cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [%rd3, {%r2, %r3, %r4}], [s];",
    "cp.reduce.async.bulk.tensor.3d.global.shared::cta.inc.tile.bulk_group.L2::cache_hint [%rd3, {%r2, %r3, %r4}], [s], %rd5;",
    "cp.async.bulk.prefetch.L2.global [%rd1], 128;",
    "cp.async.bulk.prefetch.tensor.4d.L2.global.im2col [%rd3, {%r2, %r3, %r4, %r5}], {%rs1, %rs2};",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f64 [%rd1], [s], 128;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f16 [%rd1], [s], 128;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%rd1], [s], 128;",
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u64 [%r1], [s], 128, [%r2];",
    "cp.async.bulk.commit_group;",
    "cp.async.bulk.wait_group.read 3;",
    "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [s], %rd1;",
    "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [s], 1, %r1;",
    "tensormap.replace.tile.global_stride.global.b1024.b64 [%rd1], 1, %rd1;",
    "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [s], 3;",
    "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [s], 12;",
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [s], 128;",
    "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
    "fence.proxy.async.shared::cta;",
    "mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p1, [b], 1;",
    "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%r1], 2;",
    "mbarrier.arrive_drop.noComplete.shared.b64 %rd1, [b], 2;",
    "mbarrier.arrive.b64 _, [%rd2];",
    "mbarrier.complete_tx.shared::cluster.b64 [%r1], 16;",
];

const REFUSED: &[(&str, &str)] = &[
    (
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [s], 128, %rs1;",
        "`.cp_mask`",
    ),
    (
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r1], [%rd3, {%r2, %r3, %r4, %r5, %r6}], [b];",
        "gather4",
    ),
    (
        "cp.async.bulk.tensor.3d.shared::cta.global.im2col::w.mbarrier::complete_tx::bytes [%r1], [%rd3, {%r2, %r3, %r4}], [b], {%rs1, %rs2};",
        "im2col::w",
    ),
    (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%r1], [%rd3, {%r2, %r3}], [b];",
        "cta_group",
    ),
    (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd1], 120, [b];",
        "multiple of 16",
    ),
    (
        "cp.async.bulk.global.shared::cta [%rd1], [s], 16;",
        "completion mechanism",
    ),
    (
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [s], [%rd3, {0, 7}], [b];",
        "2 coordinates",
    ),
    (
        "cp.async.bulk.tensor.2d.global.shared::cta.im2col_no_offs.bulk_group [%rd3, {%r2, %r3}], [s];",
        "together",
    ),
    (
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [s], [%rd3, {0, 7, 1, 2}], [b], {%rs1};",
        "1 offsets",
    ),
    (
        "cp.async.bulk.tensor.4d.global.shared::cta.im2col.bulk_group [%rd3, {%r2, %r3, %r3, %r3}], [s];",
        "`.im2col`",
    ),
    (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s64 [%rd1], [s], 128;",
        "`.s64`",
    ),
    (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%rd1], [s], 128;",
        "`.noftz` is required",
    ),
    (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.noftz.f16 [%rd1], [s], 128;",
        "`.noftz`",
    ),
    (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.xor.s32 [%rd1], [s], 128;",
        "`.s32`",
    ),
    (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.inc.s32 [%rd1], [s], 128;",
        "`.s32`",
    ),
    (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%rd1], [s], 128;",
        "`.f32`",
    ),
    (
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.min.u64 [%r1], [s], 128, [%r2];",
        "`.u64`",
    ),
    (
        "tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [s], 1;",
        "sm_100a",
    ),
    (
        "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [s], 13;",
        "0 to 12",
    ),
    (
        "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [s], 5, %r1;",
        "0 to 4",
    ),
    (
        "tensormap.replace.tile.global_stride.shared::cta.b1024.b32 [s], 1, %r1;",
        "`.b32`",
    ),
    (
        "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [s], %r1;",
        "constant",
    ),
    (
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [s], 64;",
        "expected 128",
    ),
    (
        "mbarrier.arrive.expect_tx.noComplete.shared.b64 %rd1, [b], 16;",
        "noComplete",
    ),
    (
        "mbarrier.arrive.noComplete.shared.b64 %rd1, [b];",
        "noComplete",
    ),
    (
        "mbarrier.arrive.acquire.cta.shared.b64 %rd1, [b];",
        "`.acquire`",
    ),
    (
        "mbarrier.arrive.release.gpu.shared.b64 %rd1, [b];",
        "`.gpu`",
    ),
    (
        "mbarrier.arrive.expect_tx.shared.b64 %rd1, [b];",
        "expect_tx",
    ),
    (
        "mbarrier.expect_tx.release.cta.shared.b64 [b], 16;",
        "`.release`",
    ),
    (
        "mbarrier.try_wait.release.cta.shared::cta.b64 %p1, [b], %rd1;",
        "`.release`",
    ),
    (
        "mbarrier.test_wait.shared::cta.b64 %p1, [b], %rd1, 1000;",
        "test_wait",
    ),
    (
        "mbarrier.test_wait.shared::cluster.b64 %p1, [%r1], %rd1;",
        "shared::cluster",
    ),
    (
        "mbarrier.init.shared::cluster.b64 [b], 1;",
        "shared::cluster",
    ),
];

#[test]
fn forms_of_hopper_are_taken() {
    for form in TAKEN {
        assert_eq!(refusals("sm_90a", form), Vec::<String>::new(), "{form}");
    }
}

#[test]
fn forms_that_do_not_exist_are_refused_by_name() {
    for (form, named) in REFUSED {
        let found = refusals("sm_90a", form);
        assert!(found.iter().any(|m| m.contains(named)), "{form} {found:?}");
    }
}

#[test]
fn older_targets_have_none_of_it() {
    for (target, form) in [
        (
            "sm_90",
            "tensormap.replace.tile.rank.shared::cta.b1024.b32 [s], 2;",
        ),
        ("sm_80", "cp.async.bulk.commit_group;"),
        ("sm_80", "fence.proxy.async;"),
        ("sm_80", "mbarrier.arrive.expect_tx.shared.b64 _, [b], 16;"),
        (
            "sm_80",
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1], 2;",
        ),
    ] {
        assert!(!refusals(target, form).is_empty(), "{target} {form}");
    }
    let old = "mbarrier.test_wait.parity.shared.b64 %p1, [b], 1;";
    assert_eq!(refusals("sm_80", old), Vec::<String>::new());
}
