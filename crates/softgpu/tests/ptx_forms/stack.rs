//! `alloca`, `stacksave` and `stackrestore`.

use crate::bench::{fault, findings, launch, module, words};

#[test]
fn every_lane_takes_as_many_bytes_as_it_asks_for() {
    // Lane l takes l + 1 words, writes them, calls a function that does the same, and sums.
    let before = ".func (.reg .u32 sum) taken(.reg .u32 n)
        {
            .reg .u64 %a<4>; .reg .u32 %i<4>; .reg .pred %p; .local .u32 before;
            st.local.u32 [before], 1000;
            mul.wide.u32 %a0, n, 4;
            alloca.u64 %a1, %a0, 16;
            mov.u32 %i0, 0;
        L:  mad.wide.u32 %a2, %i0, 4, %a1;
            st.local.u32 [%a2], %i0;
            add.u32 %i0, %i0, 1;
            setp.lt.u32 %p, %i0, n;
            @%p bra L;
            mov.u32 %i0, 0; mov.u32 sum, 0;
        M:  mad.wide.u32 %a2, %i0, 4, %a1;
            ld.local.u32 %i1, [%a2];
            add.u32 sum, sum, %i1;
            add.u32 %i0, %i0, 1;
            setp.lt.u32 %p, %i0, n;
            @%p bra M;
            ld.local.u32 %i1, [before];
            add.u32 sum, sum, %i1;
            and.b64 %a3, %a1, 15;
            cvt.u32.u64 %i1, %a3;
            add.u32 sum, sum, %i1;
            ret;
        }";
    let body = ".local .align 8 .u64 own;
        st.local.u64 [own], 7;
        add.u32 %r1, %r0, 1;
        mul.wide.u32 %rd2, %r1, 4;
        alloca.u64 %rd3, %rd2;
        st.local.u32 [%rd3], %r0;
        call (%r2), taken, (%r1);
        setp.lt.u32 %p1, %r0, 16;
        @%p1 call (%r2), taken, (%r2);
        ld.local.u32 %r3, [%rd3];
        add.u32 %r2, %r2, %r3;
        cvta.local.u64 %rd4, %rd3;
        ld.u32 %r3, [%rd4];
        add.u32 %r2, %r2, %r3;
        ld.local.u32 %r3, [own];
        add.u32 %r2, %r2, %r3;
        mad.wide.u32 %rd5, %r0, 4, %rd1;
        st.global.u32 [%rd5], %r2;";
    let out = words(&launch(&module(before, body), &[0; 4], 128, 32));
    let sum = |n: u32| n * (n - 1) / 2 + 1000;
    for (lane, got) in (0..32).zip(out) {
        let once = sum(lane + 1);
        let all = if lane < 16 { sum(once) } else { once };
        assert_eq!(got, all + 2 * lane + 7, "lane {lane}");
    }
}

#[test]
fn a_restored_stack_is_used_again() {
    // Without the restoration this takes 32 times the limit.
    let body = "mov.u32 %r1, 0;
    L:  stacksave.u64 %rd2;
        alloca.u64 %rd3, 16384, 8;
        st.local.u32 [%rd3+16380], %r1;
        ld.local.u32 %r2, [%rd3+16380];
        stackrestore.u64 %rd2;
        add.u32 %r1, %r1, 1;
        setp.lt.u32 %p1, %r1, 1024;
        @%p1 bra L;
        stacksave.u32 %r3;
        alloca.u32 %r4, 8;
        stacksave.u32 %r5;
        sub.u32 %r5, %r5, %r3;
        add.u32 %r2, %r2, %r5;
        mad.wide.u32 %rd5, %r0, 4, %rd1;
        st.global.u32 [%rd5], %r2;";
    let out = words(&launch(&module("", body), &[0; 4], 128, 32));
    assert_eq!(out, [1023 + 8; 32]);
}

#[test]
fn a_stack_that_is_too_small_is_reported() {
    for size in ["0x100000", "-1"] {
        let body = format!("alloca.u64 %rd2, {size}; st.local.u32 [%rd2], 1;");
        let text = fault(&module("", &body));
        assert!(text.contains("StackOverflow"), "{text}");
    }
}

#[test]
fn a_fresh_block_of_the_stack_holds_nothing() {
    let body = "stacksave.u64 %rd2;
        alloca.u64 %rd3, 8;
        st.local.u64 [%rd3], 1;
        stackrestore.u64 %rd2;
        alloca.u64 %rd3, 8;
        ld.local.u64 %rd4, [%rd3];
        st.global.u64 [%rd1], %rd4;";
    let found = findings(&module(
        "",
        &format!("setp.ne.u32 %p1, %r0, 0; @%p1 ret;\n{body}"),
    ));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("never written"), "{found:?}");
}

/// Kernel `k` with a function that gives away the address of a variable of its own, and one that
/// reads an address with a variable of its own unwritten.
fn giving_away(body: &str) -> Vec<String> {
    let before = ".func (.reg .u64 at) made(.reg .u32 v)
        {
            .local .align 4 .b8 own[16]; .reg .u64 %a;
            mov.u64 %a, own;
            st.local.u32 [%a], v;
            mov.u64 at, %a;
            ret;
        }
        .func (.reg .u32 v) read(.reg .u64 at)
        {
            .local .align 4 .b8 own[64]; .reg .u64 %a;
            mov.u64 %a, own;
            st.local.u32 [%a+60], 1;
            ld.local.u32 v, [at];
            ret;
        }";
    let end = "mad.wide.u32 %rd5, %r0, 4, %rd1; st.global.u32 [%rd5], %r1;";
    findings(&module(before, &format!("{body}\n{end}")))
}

#[test]
fn variables_of_a_function_that_has_returned_are_gone() {
    let body = "call (%rd2), made, (%r0); ld.local.u32 %r1, [%rd2];";
    let found = giving_away(body);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("use after free: 4-byte local read"),
        "{found:?}"
    );
    let body = "call (%rd2), made, (%r0); mov.u32 %r1, 0; st.local.u32 [%rd2], %r1;";
    let found = giving_away(body);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("use after free: 4-byte local write"),
        "{found:?}"
    );
    // Another function has a variable of its own there.
    let body = "call (%rd2), made, (%r0); call (%r1), read, (%rd2);";
    let found = giving_away(body);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("uninitialised read: 4-byte local read"),
        "{found:?}"
    );
}

#[test]
fn variables_of_callers_are_there() {
    let body = ".local .align 8 .b8 own[16]; mov.u64 %rd3, own;
        st.local.u32 [%rd3+4], %r0; add.u64 %rd3, %rd3, 4;
        call (%rd2), made, (%r0);
        setp.lt.u32 %p1, %r0, 16; mov.u32 %r1, 0;
        @%p1 call (%r1), read, (%rd3);
        alloca.u64 %rd4, 40; st.local.u32 [%rd4+36], %r0;
        add.u64 %rd4, %rd4, 36;
        call (%r1), read, (%rd4);";
    let found = giving_away(body);
    assert!(found.is_empty(), "{found:?}");
}
