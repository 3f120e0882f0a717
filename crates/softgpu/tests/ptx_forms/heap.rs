//! `malloc` and `free` in kernels, and what checks know of their blocks.

use crate::bench::{bytes, findings, launch, module, word, words};

const DECLARED: &str = ".extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 p);
.func (.reg .u64 at) take(.reg .u64 size)
{
    .param .b64 n; .param .b64 r;
    st.param.b64 [n], size;
    call.uni (r), malloc, (n);
    ld.param.b64 at, [r];
    ret;
}
.func drop(.reg .u64 at)
{
    .param .b64 p;
    st.param.b64 [p], at;
    call.uni free, (p);
    ret;
}";

#[test]
fn every_thread_builds_a_list_of_its_own_and_frees_it() {
    // Thread t links t + 1 nodes of (next, value), sums their values, and frees them.
    let body = ".reg .u64 first, node, size;
        mad.wide.u32 %rd2, %r0, 4, %rd0; ld.global.u32 %r1, [%rd2];
        mov.u64 first, 0; mov.u32 %r2, 0;
    L:  cvt.u64.u32 size, %r2; add.u64 size, size, 12;
        call (node), take, (size);
        st.u64 [node], first; add.u32 %r3, %r1, %r2; st.global.u32 [node+8], %r3;
        mov.u64 first, node;
        add.u32 %r2, %r2, 1; setp.le.u32 %p1, %r2, %r0; @%p1 bra L;
        mov.u32 %r4, 0;
    M:  ld.u32 %r3, [first+8]; add.u32 %r4, %r4, %r3;
        ld.u64 node, [first]; call drop, (first); mov.u64 first, node;
        setp.ne.u64 %p1, first, 0; @%p1 bra M;
        call drop, (first);
        mad.wide.u32 %rd3, %r0, 4, %rd1; st.global.u32 [%rd3], %r4;";
    let mut random = fercuda_trials::rng();
    let input: Vec<u32> = (0..64).map(|_| word(&mut random)).collect();
    let out = words(&launch(&module(DECLARED, body), &bytes(&input), 256, 64));
    for (t, (got, from)) in (0u32..).zip(out.iter().zip(&input)) {
        let expected = (0..=t).fold(0u32, |sum, n| sum.wrapping_add(from.wrapping_add(n)));
        assert_eq!(*got, expected, "thread {t}");
    }
}

#[test]
fn checks_know_each_block() {
    for (body, kind, memory) in [
        (
            "st.u8 [at+100], 1;",
            "out of bounds",
            "past the end of device heap",
        ),
        ("st.u32 [at+-4], 1;", "out of bounds", "device heap"),
        (
            "ld.u32 %r1, [at+96]; st.global.u32 [%rd1], %r1;",
            "uninitialised read",
            "device heap",
        ),
        (
            "call drop, (at); st.u32 [at], 1;",
            "use after free",
            "free, call 2 of thread k",
        ),
        (
            "call drop, (at); call drop, (at);",
            "invalid free",
            "freed a second time",
        ),
        (
            "add.u64 at, at, 16; call drop, (at);",
            "invalid free",
            "not the first address",
        ),
    ] {
        let text = module(
            DECLARED,
            &format!(
                ".reg .u64 at; setp.ne.u32 %p1, %r0, 0; @%p1 ret;
                call (at), take, (100); st.u32 [at], 5;
                {body}"
            ),
        );
        let found = findings(&text);
        assert_eq!(found.len(), 1, "{body} {found:?}");
        assert!(
            found[0].contains(kind) && found[0].contains(memory),
            "{body} {found:?}"
        );
    }
}

#[test]
fn freed_blocks_come_back_when_the_heap_is_full() {
    // 64 rounds of a third of the heap each: more than there is without reuse.
    let body = ".reg .u64 at;
        setp.ne.u32 %p1, %r0, 0; @%p1 ret;
        mov.u32 %r1, 0; mov.u32 %r2, 0;
    L:  call (at), take, (700000);
        setp.ne.u64 %p1, at, 0; @%p1 add.u32 %r2, %r2, 1;
        call drop, (at);
        add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 64; @%p1 bra L;
        call (at), take, (3000000);
        setp.eq.u64 %p1, at, 0; @%p1 add.u32 %r2, %r2, 1000;
        st.global.u32 [%rd1], %r2;";
    let out = words(&launch(&module(DECLARED, body), &[0; 4], 4, 32));
    assert_eq!(out, [1064]);
}
