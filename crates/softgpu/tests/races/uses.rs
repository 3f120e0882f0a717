//! Instructions that a whole warp, a valid mbarrier or a finished copy has to stand behind.

use fercuda_softgpu::check::CheckOptions;
use fercuda_softgpu::report::{Finding, FindingActor, FindingKind};

use super::machine::{Kernel, run};
use FindingKind::{BarrierDivergence, GlobalRace, Misaligned, SharedRace, Uninitialised, WarpMask};

/// A kernel, and of each report its kind, how the opcode at fault begins, and a part of the text.
type Misuse = (Kernel, &'static [(FindingKind, &'static str, &'static str)]);

const MISUSES: &[Misuse] = &[
    (("half a warp multiplies when the rest has gone", 1, 32, "
    setp.ge.u32 %p0, %r0, 16; @%p0 exit;
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r20,%r21,%r22,%r23}, {%r0,%r0}, {%r0}, {%r0,%r0,%r0,%r0};"),
    &[(WarpMask, "mma", "lanes 0x0000ffff of warp 0 execute it without lanes 0xffff0000, which have exited")]),
    (("half a warp multiplies while the rest is at a barrier", 1, 64, "
    setp.ge.u32 %p0, %r0, 16; @%p0 bra MEET;
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r20,%r21,%r22,%r23}, {%r0,%r0}, {%r0}, {%r0,%r0,%r0,%r0};
MEET: bar.sync 0;"),
    &[(WarpMask, "mma", "0xffff0000, which do not reach it")]),
    (("two halves multiply in two branches", 1, 32, "
    setp.ge.u32 %p0, %r0, 16; @%p0 bra HIGH;
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r20,%r21,%r22,%r23}, {%r0,%r0}, {%r0}, {%r0,%r0,%r0,%r0}; bra MEET;
HIGH:
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r24,%r25,%r26,%r27}, {%r0,%r0}, {%r0}, {%r0,%r0,%r0,%r0};
MEET: st.global.u32 [%rd2], %r0;"),
    &[(WarpMask, "mma", "lanes 0x0000ffff"), (WarpMask, "mma", "lanes 0xffff0000")]),
    (("a lane waits at a barrier for the others, which multiply", 1, 32, "
    setp.eq.u32 %p0, %r0, 31; @%p0 bra MEET;
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r20,%r21,%r22,%r23}, {%r0,%r0}, {%r0}, {%r0,%r0,%r0,%r0};
MEET: barrier.sync 1, 32;"),
    &[(WarpMask, "mma", "lanes 0x7fffffff of warp 0 execute it without lanes 0x80000000")]),
    (("a block of twenty threads loads a matrix", 1, 20, "
    .shared .align 16 .b8 s[512]; mov.u32 %r20, s; shl.b32 %r21, %r0, 4; add.u32 %r22, %r20, %r21;
    st.shared.u32 [%r22], 1; st.shared.u32 [%r22+4], 1; st.shared.u32 [%r22+8], 1; st.shared.u32 [%r22+12], 1; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r23}, [%r22];"),
    &[(WarpMask, "ldmatrix", "which the block does not have")]),
    (("lanes turn a matrix in a loop that they leave one by one", 1, 32, "
    mov.u32 %r20, 0;
L:  movmatrix.sync.aligned.m8n8.trans.b16 %r21, %r0;
    add.u32 %r20, %r20, 1; shr.u32 %r22, %r0, 4; setp.le.u32 %p0, %r20, %r22; @%p0 bra L;"),
    &[(WarpMask, "movmatrix", "lanes 0xffff0000 of warp 0 execute it without lanes 0x0000ffff")]),
    (("a fragment's matrix begins at an odd half", 1, 32, "
    wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r20,%r21,%r22,%r23,%r24,%r25,%r26,%r27}, [%rd1+2], 16;"),
    &[(Misaligned, "wmma.load.a", "must begin at a multiple of 32 bytes")]),
    (("a fragment's rows are 17 halves apart", 1, 32, "
    wmma.load.b.sync.aligned.col.m16n16k16.global.f16 {%r20,%r21,%r22,%r23,%r24,%r25,%r26,%r27}, [%rd1], 17;"),
    &[(Misaligned, "wmma.load.b", "34 bytes apart, which must be a multiple of 16")]),
    (("a result goes to half a matrix's alignment in shared memory", 1, 32, "
    .shared .align 32 .b8 s[2048];
    wmma.store.d.sync.aligned.row.m16n16k16.shared.s32 [s+16], {%r0,%r0,%r0,%r0,%r0,%r0,%r0,%r0}, 16;"),
    &[(Misaligned, "wmma.store.d", "32-byte shared write")]),
    (("each lane names a matrix of its own", 1, 32, "
    wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r20,%r21,%r22,%r23,%r24,%r25,%r26,%r27}, [%rd2], 16;"),
    &[(WarpMask, "wmma.load.a", "lanes 0 and 1 name different matrices")]),
    (("a thread overwrites the source of its copy", 1, 64, "
    .shared .align 16 .b8 s[256]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    cp.async.ca.shared.global [%r22], [%rd2], 4;
    st.global.u32 [%rd2], 5; cp.async.wait_all;"),
    &[(GlobalRace, "st.global", "the copy that reads this has not been waited for")]),
    (("another thread does, behind a barrier", 1, 64, "
    .shared .align 16 .b8 s[1024]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    cp.async.ca.shared.global [%r22], [%rd2], 4; cp.async.commit_group; bar.sync 0;
    mul.wide.u32 %rd10, %r21, 1; sub.u64 %rd10, %rd1, %rd10; st.global.u32 [%rd10+252], %r0; cp.async.wait_group 0;"),
    &[(GlobalRace, "st.global", "the copy that reads this has not been waited for")]),
    (("an atomic changes the middle of a wide source", 1, 32, "
    .shared .align 16 .b8 s[512]; mov.u32 %r20, s; shl.b32 %r21, %r0, 4; add.u32 %r22, %r20, %r21;
    mul.wide.u32 %rd10, %r0, 16; add.u64 %rd10, %rd1, %rd10;
    cp.async.cg.shared.global [%r22], [%rd10], 16; cp.async.commit_group; cp.async.wait_group 1;
    red.global.add.u32 [%rd10+8], 1; cp.async.wait_group 0;"),
    &[(GlobalRace, "red.global", "the copy that reads this has not been waited for")]),
    (("an mbarrier tells of a copy whose source is overwritten", 1, 32, "
    .shared .align 16 .b8 s[256]; .shared .align 8 .b64 b;
    mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21; setp.ne.u32 %p0, %r0, 0;
    @!%p0 mbarrier.init.shared.b64 [b], 32; bar.sync 0;
    cp.async.ca.shared.global [%r22], [%rd2], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [b];
    st.global.u32 [%rd2], 5;
W:  mbarrier.try_wait.parity.shared.b64 %p1, [b], 0; @!%p1 bra W;"),
    &[(GlobalRace, "st.global", "against an asynchronous copy")]),
    (("a barrier that no block has", 1, 64, "mov.u32 %r20, 17; bar.sync %r20;"),
    &[(BarrierDivergence, "bar.sync", "barrier 17: a block has barriers 0 to 15")]),
    (("a barrier for one warp and a half", 1, 64, "mov.u32 %r20, 48; bar.sync 1, %r20;"),
    &[(BarrierDivergence, "bar.sync", "barrier 1 for 48 threads")]),
    (("a barrier for half a warp", 1, 32, "
    setp.ge.u32 %p0, %r0, 16; @%p0 bra END; mov.u32 %r20, 16; barrier.sync 2, %r20;
END: st.global.u32 [%rd2], %r0;"),
    &[(BarrierDivergence, "barrier.sync", "barrier 2 for 16 threads")]),
    (("an mbarrier begins anew while some have arrived", 1, 64, "
    .shared .align 8 .b64 b; setp.ne.u32 %p0, %r0, 0; setp.lt.u32 %p1, %r0, 32;
    @!%p0 mbarrier.init.shared.b64 [b], 64; bar.sync 0;
    @%p1 mbarrier.arrive.shared.b64 %rd10, [b]; bar.sync 0;
    @!%p0 mbarrier.init.shared.b64 [b], 64;"),
    &[(SharedRace, "mbarrier.init", "initialised again while arrivals")]),
    (("bytes are expected of an mbarrier before it is ordered", 1, 64, "
    .shared .align 8 .b64 b; setp.ne.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 32;
    @!%p0 mbarrier.init.shared.b64 [b], 1;
    @%p1 mbarrier.expect_tx.relaxed.cta.shared.b64 [b], 64;"),
    &[(SharedRace, "mbarrier.expect_tx", "no barrier between the mbarrier's initialisation and its use")]),
    (("a copy arrives at an mbarrier before it is ordered", 1, 64, "
    .shared .align 16 .b8 s[256]; .shared .align 8 .b64 b;
    mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21; setp.ne.u32 %p0, %r0, 0;
    @!%p0 mbarrier.init.shared.b64 [b], 64;
    cp.async.ca.shared.global [%r22], [%rd2], 4;
    cp.async.mbarrier.arrive.noinc.shared.b64 [b];
    bar.sync 0;"),
    &[(SharedRace, "cp.async.mbarrier", "no barrier between the mbarrier's initialisation and its use")]),
    (("threads ask for the phase of what is no mbarrier", 1, 32, "
    .shared .align 8 .b64 b;
    mbarrier.test_wait.parity.shared.b64 %p1, [b], 1;"),
    &[(Uninitialised, "mbarrier.test_wait", "no thread has initialised this mbarrier")]),
];

const USES: &[Kernel] = &[
    ("the second of two warps multiplies", 1, 64, "
    setp.lt.u32 %p0, %r0, 32; @%p0 bra END;
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r20,%r21,%r22,%r23}, {%r0,%r0}, {%r0}, {%r0,%r0,%r0,%r0};
END: st.global.u32 [%rd2], %r0;"),
    ("lanes that have diverged multiply together", 1, 32, "
    and.b32 %r20, %r0, 7; mov.u32 %r21, 0;
L:  add.u32 %r21, %r21, 1; setp.le.u32 %p0, %r21, %r20; @%p0 bra L;
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r20,%r21,%r22,%r23}, {%r0,%r0}, {%r0}, {%r0,%r0,%r0,%r0};
    setp.ge.u32 %p0, %r0, 16; @%p0 exit;"),
    ("halves of two warps meet before both multiply", 1, 64, "
    and.b32 %r20, %r0, 16; setp.eq.u32 %p0, %r20, 0; @%p0 bra GO; barrier.sync 1, 32;
GO: movmatrix.sync.aligned.m8n8.trans.b16 %r21, %r0;
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r20,%r21,%r22,%r23}, {%r0,%r0}, {%r0}, {%r0,%r0,%r0,%r0};"),
    ("fragments of padded rows, and of bytes", 1, 32, "
    .shared .align 32 .b8 s[2048];
    wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r20,%r21,%r22,%r23,%r24,%r25,%r26,%r27}, [%rd1+32], 24;
    wmma.load.a.sync.aligned.row.m16n16k16.global.s8 {%r20,%r21}, [%rd1+8], 24;
    wmma.store.d.sync.aligned.row.m16n16k16.shared.s32 [s], {%r0,%r0,%r0,%r0,%r0,%r0,%r0,%r0}, 20;"),
    ("a fragment goes to the start of an array, wherever that lies", 1, 32, "
    .shared .align 4 .b32 before; .shared .align 2 .b8 s[2048]; st.shared.u32 [before], 1;
    mov.u32 %r20, s; add.u32 %r20, %r20, 1024;
    wmma.store.d.sync.aligned.row.m16n16k16.shared.s32 [%r20], {%r0,%r0,%r0,%r0,%r0,%r0,%r0,%r0}, 16;"),
    ("a copy's source is written behind the wait", 1, 64, "
    .shared .align 16 .b8 s[256]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    cp.async.ca.shared.global [%r22], [%rd2], 4; cp.async.wait_all; st.global.u32 [%rd2], 5; bar.sync 0;
    cp.async.ca.shared.global [%r22], [%rd2], 4; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
    mul.wide.u32 %rd10, %r21, 1; sub.u64 %rd10, %rd1, %rd10; st.global.u32 [%rd10+252], %r0;"),
    ("the source of the older of two copies, and what lies beside both", 1, 32, "
    .shared .align 16 .b8 s[512]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    cp.async.ca.shared.global [%r22], [%rd2], 4; cp.async.commit_group;
    cp.async.ca.shared.global [%r22+128], [%rd2+1024], 4; cp.async.commit_group;
    cp.async.wait_group 1; st.global.u32 [%rd2], 5; st.global.u32 [%rd2+512], 6; cp.async.wait_group 0;"),
    ("a copy that reads nothing", 1, 32, "
    .shared .align 16 .b8 s[128]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    cp.async.ca.shared.global [%r22], [%rd2], 4, 0; st.global.u32 [%rd2], 5; cp.async.wait_all;"),
    ("an mbarrier tells of a copy before its source is overwritten", 1, 32, "
    .shared .align 16 .b8 s[256]; .shared .align 8 .b64 b;
    mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21; setp.ne.u32 %p0, %r0, 0;
    @!%p0 mbarrier.init.shared.b64 [b], 32; bar.warp.sync -1;
    cp.async.ca.shared.global [%r22], [%rd2], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [b];
W:  mbarrier.try_wait.parity.shared.b64 %p1, [b], 0; @!%p1 bra W;
    st.global.u32 [%rd2], 5;"),
    ("the last of the barriers, for two warps", 1, 64, "
    mov.u32 %r20, 15; mov.u32 %r21, 64; bar.sync %r20, %r21; barrier.sync 7, 64; bar.sync 0;"),
    ("an mbarrier begins anew when it has ended, or its phase has", 1, 64, "
    .shared .align 8 .b64 b; setp.ne.u32 %p0, %r0, 0; setp.lt.u32 %p1, %r0, 32;
    @!%p0 mbarrier.init.shared.b64 [b], 64; bar.sync 0;
    @%p1 mbarrier.arrive.shared.b64 %rd10, [b]; bar.sync 0;
    @%p0 bra MEET; mbarrier.inval.shared.b64 [b]; mbarrier.init.shared.b64 [b], 64;
MEET: bar.sync 0; mbarrier.arrive.shared.b64 %rd10, [b]; bar.sync 0;
    @!%p0 mbarrier.init.shared.b64 [b], 64;"),
];

#[test]
fn each_misuse_is_reported_where_it_is() {
    let mut wrong = Vec::new();
    for (kernel, wanted) in MISUSES {
        for threads in [1, 3] {
            let found = run(*kernel, CheckOptions::default(), threads).findings;
            let all = wanted.len() == found.len()
                && wanted.iter().all(|(kind, opcode, part)| {
                    let is_at = |f: &Finding| matches!(&f.actor, FindingActor::Thread(p, _) if p.opcode.starts_with(opcode) && p.ptx_line > 0);
                    let mut same = found.iter().filter(|f| f.kind == *kind && is_at(f));
                    same.any(|f| f.to_string().contains(part))
                });
            if !all {
                let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
                wrong.push(format!("{}: {}", kernel.0, texts.join("\n")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn proper_uses_give_no_finding() {
    let mut wrong = Vec::new();
    for &kernel in USES {
        for threads in [1, 3] {
            let found = run(kernel, CheckOptions::default(), threads).findings;
            let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
            if !texts.is_empty() {
                wrong.push(format!("{}: {}", kernel.0, texts.join("\n")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
