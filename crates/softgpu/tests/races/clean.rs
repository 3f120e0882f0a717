//! Kernels whose threads are ordered as they should be.

use fercuda_softgpu::check::CheckOptions;

use super::machine::{Kernel, run};

const CLEAN: &[Kernel] = &[
    ("a compare-and-swap verifies what a plain load has guessed", 2, 64, "
    ld.global.u32 %r20, [%rd1];
SWAP: add.u32 %r21, %r20, 1; atom.global.cas.b32 %r22, [%rd1], %r20, %r21;
    setp.ne.u32 %p0, %r22, %r20; mov.u32 %r20, %r22; @%p0 bra SWAP;"),
    ("it does so in shared memory", 1, 64, "
    .shared .align 4 .b32 count;
    setp.ne.u32 %p0, %r0, 0; @%p0 bra MEET; st.shared.u32 [count], 0;
MEET: bar.sync 0;
    ld.shared.u32 %r20, [count];
SWAP: add.u32 %r21, %r20, 1; atom.shared.cas.b32 %r22, [count], %r20, %r21;
    setp.ne.u32 %p0, %r22, %r20; mov.u32 %r20, %r22; @%p0 bra SWAP;"),
    ("a lane clears a counter that its warp adds to after a meeting", 1, 64, "
    .shared .align 4 .b32 counts[2];
    mov.u32 %r20, counts; shr.u32 %r21, %r0, 5; shl.b32 %r21, %r21, 2; add.u32 %r20, %r20, %r21;
    and.b32 %r22, %r0, 31; setp.ne.u32 %p0, %r22, 0; @%p0 bra MEET; st.shared.u32 [%r20], 0;
MEET: bar.warp.sync -1;
    atom.shared.add.u32 %r23, [%r20], 1; bar.warp.sync -1;
    @%p0 bra END; ld.shared.u32 %r24, [%r20];
END:"),
    ("a release store tells another block", 2, 32, "
    setp.eq.u32 %p0, %r1, 1; @%p0 bra TAKE;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    st.global.u32 [%rd1+256], 7;
    st.release.gpu.global.u32 [%rd1], 1; bra END;
TAKE: ld.acquire.gpu.global.u32 %r20, [%rd1]; setp.eq.u32 %p1, %r20, 0; @%p1 bra TAKE;
    ld.global.u32 %r21, [%rd1+256];
END:"),
    ("a fence before a relaxed store does too", 2, 32, "
    setp.eq.u32 %p0, %r1, 1; @%p0 bra TAKE;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    st.global.u32 [%rd1+256], 7; fence.acq_rel.gpu;
    st.relaxed.gpu.global.u32 [%rd1], 1; bra END;
TAKE: ld.relaxed.gpu.global.u32 %r20, [%rd1]; setp.eq.u32 %p1, %r20, 0; @%p1 bra TAKE;
    fence.acq_rel.gpu; ld.global.u32 %r21, [%rd1+256];
END:"),
    ("a releasing reduction does too", 2, 32, "
    setp.eq.u32 %p0, %r1, 1; @%p0 bra TAKE;
    st.global.u32 [%rd2+256], %r0;
    red.release.gpu.global.add.u32 [%rd1], 1; bra END;
TAKE: ld.acquire.gpu.global.u32 %r20, [%rd1]; setp.ne.u32 %p1, %r20, 32; @%p1 bra TAKE;
    mul.wide.u32 %rd10, %r0, 4; sub.u64 %rd10, %rd1, %rd10; ld.global.u32 %r21, [%rd10+380];
END:"),
    ("a relaxed read-modify-write carries a release on", 3, 1, "
    setp.eq.u32 %p0, %r1, 1; @%p0 bra PASS; setp.eq.u32 %p0, %r1, 2; @%p0 bra TAKE;
    st.global.u32 [%rd1+256], 7; st.release.gpu.global.u32 [%rd1], 1; bra END;
PASS: ld.relaxed.gpu.global.u32 %r20, [%rd1]; setp.ne.u32 %p1, %r20, 1; @%p1 bra PASS;
    atom.relaxed.gpu.global.add.u32 %r21, [%rd1], 1; bra END;
TAKE: ld.acquire.gpu.global.u32 %r20, [%rd1]; setp.ne.u32 %p1, %r20, 2; @%p1 bra TAKE;
    ld.global.u32 %r22, [%rd1+256];
END:"),
    ("an acquiring load overwrites the register of its address", 2, 1, "
    cvta.global.u64 %rd10, %rd1;
    setp.eq.u32 %p0, %r1, 1; @%p0 bra TAKE;
    st.global.u32 [%rd1+256], 7; add.u64 %rd11, %rd10, 256;
    st.release.gpu.global.u64 [%rd1], %rd11; bra END;
TAKE: mov.u64 %rd12, %rd1; ld.acquire.gpu.global.u64 %rd12, [%rd12];
    setp.eq.u64 %p1, %rd12, 0; @%p1 bra TAKE;
    ld.u32 %r22, [%rd12];
END:"),
    ("a warp tells another one of its block", 1, 64, "
    setp.ge.u32 %p0, %r0, 32; @%p0 bra TAKE;
    st.global.u32 [%rd2+256], %r0; bar.warp.sync -1;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    st.release.cta.global.u32 [%rd1], 1; bra END;
TAKE: ld.acquire.cta.global.u32 %r20, [%rd1]; setp.eq.u32 %p1, %r20, 0; @%p1 bra TAKE;
    ld.global.u32 %r21, [%rd2+128];
END:"),
    ("a word of shared memory tells it", 1, 64, "
    .shared .align 4 .b32 word;
    setp.ne.u32 %p0, %r0, 0; @%p0 bra MEET; st.shared.u32 [word], 0;
MEET: bar.sync 0;
    setp.ge.u32 %p0, %r0, 32; @%p0 bra TAKE;
    st.global.u32 [%rd2+256], %r0; bar.warp.sync -1;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    st.release.cta.shared.u32 [word], 1; bra END;
TAKE: ld.acquire.cta.shared.u32 %r20, [word]; setp.eq.u32 %p1, %r20, 0; @%p1 bra TAKE;
    ld.global.u32 %r21, [%rd2+128];
END:"),
    ("each block looks back at the one before", 6, 64, "
    st.global.u32 [%rd2+1024], %r2; bar.sync 0;
    setp.ne.u32 %p0, %r0, 0; @%p0 bra MEET;
    mul.wide.u32 %rd10, %r1, 4; add.u64 %rd10, %rd1, %rd10;
    setp.eq.u32 %p1, %r1, 0; @%p1 bra TELL;
LOOK: ld.acquire.gpu.global.u32 %r20, [%rd10+-4]; setp.eq.u32 %p2, %r20, 0; @%p2 bra LOOK;
TELL: st.release.gpu.global.u32 [%rd10], 1;
MEET: bar.sync 0;
    setp.eq.u32 %p1, %r1, 0; @%p1 bra END;
    ld.global.u32 %r21, [%rd2+768]; ld.global.u32 %r22, [%rd1+1024];
END:"),
    ("the last block reads what all have written, each thread fenced", 4, 64, "
    .shared .align 4 .b32 last;
    st.global.u32 [%rd2+1024], %r2; membar.gl; bar.sync 0;
    setp.ne.u32 %p0, %r0, 0; @%p0 bra MEET;
    atom.global.inc.u32 %r20, [%rd1], 3; st.shared.u32 [last], %r20;
MEET: bar.sync 0; ld.shared.u32 %r21, [last]; setp.ne.u32 %p1, %r21, 3; @%p1 bra END;
    mul.wide.u32 %rd10, %r0, 16; add.u64 %rd10, %rd1, %rd10; ld.global.v4.u32 {%r22,%r23,%r24,%r25}, [%rd10+1024];
END:"),
    ("the last block reads what all have written, one thread fenced", 4, 64, "
    .shared .align 4 .b32 last;
    st.global.u32 [%rd2+1024], %r2; bar.sync 0;
    setp.ne.u32 %p0, %r0, 0; @%p0 bra MEET;
    fence.acq_rel.gpu; atom.global.add.u32 %r20, [%rd1], 1; st.shared.u32 [last], %r20;
MEET: bar.sync 0; ld.shared.u32 %r21, [last]; setp.ne.u32 %p1, %r21, 3; @%p1 bra END;
    mul.wide.u32 %rd10, %r0, 16; add.u64 %rd10, %rd1, %rd10; ld.global.v4.u32 {%r22,%r23,%r24,%r25}, [%rd10+1024];
END:"),
    ("all threads add under a lock with fences", 2, 64, "
L:  atom.global.cas.b32 %r20, [%rd1], 0, 1; setp.ne.u32 %p0, %r20, 0; @%p0 bra L;
    membar.gl; ld.global.u32 %r21, [%rd1+4]; add.u32 %r21, %r21, 1; st.global.u32 [%rd1+4], %r21;
    membar.gl; atom.global.exch.b32 %r22, [%rd1], 0;"),
    ("all threads add under a lock that acquires and releases", 2, 64, "
L:  atom.acquire.gpu.global.cas.b32 %r20, [%rd1], 0, 1; setp.ne.u32 %p0, %r20, 0; @%p0 bra L;
    ld.global.u32 %r21, [%rd1+4]; add.u32 %r21, %r21, 1; st.global.u32 [%rd1+4], %r21;
    st.release.gpu.global.u32 [%rd1], 0;"),
    ("a lock in shared memory", 1, 64, "
    .shared .align 4 .b32 lock; .shared .align 4 .b32 sum;
    setp.ne.u32 %p0, %r0, 0; @%p0 bra MEET; st.shared.u32 [lock], 0; st.shared.u32 [sum], 0;
MEET: bar.sync 0;
L:  atom.shared.cas.b32 %r20, [lock], 0, 1; setp.ne.u32 %p0, %r20, 0; @%p0 bra L;
    membar.cta; ld.shared.u32 %r21, [sum]; add.u32 %r21, %r21, 1; st.shared.u32 [sum], %r21;
    membar.cta; atom.shared.exch.b32 %r22, [lock], 0;"),
    ("warps meet at a named barrier, one of them only arriving", 1, 64, "
    setp.ge.u32 %p0, %r0, 32; @%p0 bra TAKE;
    st.global.u32 [%rd2], %r0; bar.arrive 1, 64; bra END;
TAKE: bar.sync 1, 64; ld.global.u32 %r20, [%rd2+-128];
END:"),
    ("threads that are done leave before the barrier", 1, 64, "
    .shared .align 4 .b8 s[256];
    setp.ge.u32 %p0, %r0, 50; @%p0 bra END;
    mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21; st.shared.u32 [%r22], %r0;
    bar.sync 0; sub.u32 %r23, %r20, %r21; ld.shared.u32 %r24, [%r23+196]; st.global.u32 [%rd2], %r24;
END:"),
    ("whole warps leave before the barrier", 1, 96, "
    st.global.u32 [%rd2], %r0;
    setp.ge.u32 %p0, %r0, 64; @%p0 bra END;
    bar.sync 0; mul.wide.u32 %rd10, %r0, 4; sub.u64 %rd10, %rd1, %rd10; ld.global.u32 %r24, [%rd10+252];
END:"),
    ("a warp stores one value in shared memory at once", 1, 64, "
    .shared .align 4 .b32 s; mov.u32 %r20, 7;
    setp.ge.u32 %p0, %r0, 32; @%p0 bra MEET; st.shared.u32 [s], %r20;
MEET: bar.sync 0; ld.shared.u32 %r21, [s];"),
    ("a warp stores one value in global memory at once", 1, 32, "
    mov.u32 %r20, 7; st.global.u32 [%rd1], %r20; bar.warp.sync -1; ld.global.u32 %r21, [%rd1];"),
    ("warps store one value in shared memory", 1, 128, "
    .shared .align 4 .b32 s; mov.u32 %r20, 7; st.shared.u32 [s], %r20; bar.sync 0; ld.shared.u32 %r21, [s];"),
    ("replicas of a row are stored by several warps", 1, 128, "
    .shared .align 4 .b8 s[128]; mov.u32 %r20, s; and.b32 %r21, %r0, 31; shl.b32 %r22, %r21, 2;
    add.u32 %r23, %r20, %r22; st.shared.u32 [%r23], %r21; bar.sync 0; ld.shared.u32 %r24, [%r23];"),
    ("blocks set one flag", 8, 64, "mov.u32 %r20, 1; st.global.u32 [%rd1], %r20;"),
    ("some threads of many blocks set one flag", 8, 64, "
    and.b32 %r20, %r0, 5; setp.ne.u32 %p0, %r20, 1; mov.u32 %r21, 1; @!%p0 st.global.u32 [%rd1], %r21;"),
    ("lanes exchange through global memory, with a meeting", 1, 64, "
    st.global.u32 [%rd2], %r0; bar.warp.sync -1;
    xor.b32 %r20, %r0, 1; mul.wide.u32 %rd10, %r20, 4; add.u64 %rd10, %rd1, %rd10; ld.global.u32 %r21, [%rd10];
    bar.warp.sync -1; st.global.u32 [%rd2], %r21;"),
    ("a shuffle is a meeting", 1, 32, "
    st.global.u32 [%rd2], %r0; shfl.sync.bfly.b32 %r20, %r0, 1, 31, -1;
    mul.wide.u32 %rd10, %r20, 4; add.u64 %rd10, %rd1, %rd10; ld.global.u32 %r21, [%rd10];"),
    ("each thread increments its own word, again and again", 3, 96, "
    mov.u32 %r20, 0;
L:  ld.global.u32 %r21, [%rd2]; add.u32 %r21, %r21, 1; st.global.u32 [%rd2], %r21;
    add.u32 %r20, %r20, 1; setp.lt.u32 %p0, %r20, 20; @%p0 bra L;"),
    ("threads exchange in a loop with barriers", 2, 96, "
    mov.u32 %r20, 0; mul.lo.u32 %r22, %r1, 96; add.u32 %r23, %r22, 95; sub.u32 %r23, %r23, %r0;
    mul.wide.u32 %rd10, %r23, 4; add.u64 %rd10, %rd1, %rd10;
L:  st.global.u32 [%rd2], %r20; bar.sync 0; ld.global.u32 %r21, [%rd10]; bar.sync 0;
    add.u32 %r20, %r20, 1; setp.lt.u32 %p0, %r20, 50; @%p0 bra L;"),
    ("a histogram by atomics", 4, 64, "
    and.b32 %r20, %r2, 7; mul.wide.u32 %rd10, %r20, 4; add.u64 %rd10, %rd1, %rd10; red.global.add.u32 [%rd10], 1;"),
    ("atomics with the scope of the block in one block", 1, 64, "atom.cta.global.add.u32 %r20, [%rd1], 1;"),
    ("atomics with the scope of the block on words of each", 4, 64, "
    mul.wide.u32 %rd10, %r1, 4; add.u64 %rd10, %rd1, %rd10; atom.cta.global.add.u32 %r20, [%rd10], 1;"),
    ("read-only loads of what only others read", 2, 64, "
    ld.global.nc.u32 %r20, [%rd2]; ld.global.nc.u32 %r21, [%rd1]; st.global.u32 [%rd2+4096], %r20;"),
    ("a volatile flag with fences", 2, 1, "
    setp.eq.u32 %p0, %r1, 1; @%p0 bra TAKE;
    st.global.u32 [%rd1+256], 7; membar.gl; st.volatile.global.u32 [%rd1], 1; bra END;
TAKE: ld.volatile.global.u32 %r20, [%rd1]; setp.eq.u32 %p1, %r20, 0; @%p1 bra TAKE;
    membar.gl; ld.global.u32 %r22, [%rd1+256];
END:"),
    ("an mbarrier orders global memory too", 1, 64, "
    .shared .align 8 .b64 bar;
    setp.ne.u32 %p0, %r0, 0; @%p0 bra MEET; mbarrier.init.shared.b64 [bar], 64;
MEET: bar.sync 0; st.global.u32 [%rd2], %r0; mbarrier.arrive.shared.b64 %rd10, [bar];
W:  mbarrier.test_wait.shared.b64 %p1, [bar], %rd10; @!%p1 bra W;
    mul.wide.u32 %rd11, %r0, 4; sub.u64 %rd11, %rd1, %rd11; ld.global.u32 %r20, [%rd11+252];"),
    ("blocks meet by a counter", 4, 64, "
    st.global.u32 [%rd2+1024], %r2; bar.sync 0; setp.ne.u32 %p0, %r0, 0; @%p0 bra MEET;
    red.release.gpu.global.add.u32 [%rd1], 1;
W:  ld.acquire.gpu.global.u32 %r20, [%rd1]; setp.lt.u32 %p1, %r20, 4; @%p1 bra W;
MEET: bar.sync 0; mul.wide.u32 %rd10, %r2, 4; sub.u64 %rd10, %rd1, %rd10; ld.global.u32 %r21, [%rd10+2044];"),
    ("bytes of one word by four threads", 1, 64, "cvt.u64.u32 %rd10, %r0; add.u64 %rd10, %rd1, %rd10; st.global.u8 [%rd10], %r0;"),
    ("an asynchronous copy is waited for and met", 1, 64, "
    .shared .align 16 .b8 s[256]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    cp.async.ca.shared.global [%r22], [%rd2], 4; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
    sub.u32 %r23, %r20, %r21; ld.shared.u32 %r24, [%r23+252]; st.global.u32 [%rd2], %r24;"),
    ("halves of a warp shuffle by masks of their own", 1, 32, "
    setp.lt.u32 %p0, %r0, 16; @%p0 bra LOW;
    shfl.sync.bfly.b32 %r20, %r0, 1, 31, 0xffff0000; bra MEET;
LOW: shfl.sync.bfly.b32 %r20, %r0, 1, 31, 0xffff;
MEET: st.global.u32 [%rd2], %r20;"),
    ("lanes that are there vote", 1, 40, "
    setp.lt.u32 %p0, %r0, 36; @!%p0 bra END; activemask.b32 %r20;
    vote.sync.ballot.b32 %r21, %p0, %r20; match.any.sync.b32 %r22, %r0, %r20; st.global.u32 [%rd2], %r21;
END:"),
    ("a lane reads an absent one and does not use it", 1, 20, "
    mov.u32 %r20, 0xfffff; shfl.sync.down.b32 %r21, %r0, 4, 31, %r20;
    add.u32 %r22, %r21, %r0; setp.lt.u32 %p0, %r0, 16; selp.b32 %r23, %r22, %r0, %p0; st.global.u32 [%rd2], %r23;"),
    ("arrays are read to their ends", 1, 64, "
    .shared .align 4 .b8 a[256]; .shared .align 4 .b8 b[256]; mov.u32 %r20, a; mov.u32 %r21, b; shl.b32 %r22, %r0, 2;
    add.u32 %r23, %r20, %r22; add.u32 %r24, %r21, %r22; st.shared.u32 [%r23], %r0; st.shared.u32 [%r24], %r0;
    bar.sync 0; sub.u32 %r25, %r21, %r22; ld.shared.u32 %r26, [%r25+252]; ld.shared.u32 %r27, [a+252]; ld.shared.u32 %r28, [b];"),
    ("one pointer to either of two arrays", 1, 64, "
    .shared .align 4 .b8 a[256]; .shared .align 4 .b8 b[256]; mov.u32 %r20, a; mov.u32 %r21, b; shl.b32 %r22, %r0, 2;
    setp.lt.u32 %p0, %r0, 32; mov.u32 %r23, %r20; @%p0 bra GO; mov.u32 %r23, %r21;
GO: add.u32 %r24, %r23, %r22; st.shared.u32 [%r24], %r0;"),
];

#[test]
fn ordered_kernels_give_no_finding_by_any_number_of_threads() {
    let mut wrong = Vec::new();
    for &kernel in CLEAN {
        for threads in [1, 3] {
            let outcome = run(kernel, CheckOptions::default(), threads);
            let found: Vec<String> = outcome.findings.iter().map(ToString::to_string).collect();
            if !found.is_empty() {
                wrong.push(format!("{}: {}", kernel.0, found.join("\n")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(CLEAN.len() >= 25);
}
