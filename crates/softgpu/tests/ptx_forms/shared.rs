//! Shared memory that compilers and system software declare in unusual ways.

use crate::bench::{fault, findings, launch, module, words};

#[test]
fn an_external_shared_array_with_a_size_has_its_storage() {
    let before = ".extern .shared .align 8 .b8 tile[256];
        .extern .shared .u32 other[4];
        .shared .u32 third[4];";
    let body = "shl.b32 %r1, %r0, 2;
        mov.u32 %r2, tile; add.u32 %r2, %r2, %r1;
        st.shared.u32 [%r2], %r0;
        setp.eq.u32 %p1, %r0, 0;
        @%p1 st.shared.v4.u32 [other], {100, 101, 102, 103};
        @%p1 st.shared.u32 [third], 200;
        bar.sync 0;
        xor.b32 %r3, %r1, 124;
        mov.u32 %r2, tile; add.u32 %r2, %r2, %r3;
        ld.shared.u32 %r4, [%r2];
        ld.shared.u32 %r5, [other+12];
        ld.shared.u32 %r6, [third];
        add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r6;
        mad.wide.u32 %rd2, %r0, 4, %rd1;
        st.global.u32 [%rd2], %r4;";
    let out = words(&launch(&module(before, body), &[0; 4], 128, 32));
    let expected: Vec<u32> = (0..32).map(|t| 31 - t + 303).collect();
    assert_eq!(out, expected);
}

#[test]
fn one_without_a_size_has_none_but_the_launch_s() {
    let before = ".extern .shared .align 8 .b8 tile[];";
    let text = fault(&module(before, "st.shared.u32 [tile], 1;"));
    assert!(text.contains("IllegalAddress"), "{text}");
}

#[test]
fn the_part_for_system_software_is_apart_from_the_block_s() {
    let before = ".shared .align 4 .b8 own[100];";
    let body = "mov.u32 %r1, %reserved_smem_offset_begin;
        mov.u32 %r2, %reserved_smem_offset_end;
        mov.u32 %r3, %reserved_smem_offset_cap;
        mov.u32 %r4, %reserved_smem_offset_0;
        mov.u32 %r5, %reserved_smem_offset_1;
        mov.u32 %r6, %total_smem_size;
        mov.u32 %r7, %aggr_smem_size;
        st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};
        st.global.v4.u32 [%rd1+16], {%r5, %r6, %r7, 0};
        st.shared.u32 [%r5], 9;
        st.shared.u32 [own+96], 8;
        ld.shared.u32 %r8, [%r5+284];
        st.global.u32 [%rd1+28], %r8;";
    let first = "setp.ne.u32 %p1, %r0, 0; @%p1 ret;\n";
    let out = words(&launch(
        &module(before, &format!("{first}{body}")),
        &[0; 4],
        32,
        32,
    ));
    let [begin, end, cap, zero, one, total, all, fresh] = out[..] else {
        panic!("{out:?}");
    };
    assert_eq!((end - begin, total, all, fresh), (cap, 100, total + cap, 0));
    assert!(
        begin >= 100 && zero >= begin && one > zero && one + 288 <= end,
        "{out:?}"
    );
    // Between the two lies nothing.
    let found = findings(&module(
        before,
        "mov.u32 %r1, %reserved_smem_offset_begin; st.shared.u32 [own+100], %r1;",
    ));
    assert!(
        found.iter().any(|f| f.contains("out of bounds")),
        "{found:?}"
    );
}
