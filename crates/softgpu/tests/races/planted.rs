//! Kernels with one defect each, and what is reported of it.

use fercuda_softgpu::check::CheckOptions;
use fercuda_softgpu::report::{Finding, FindingActor, FindingKind};

use super::machine::{Kernel, run};

/// A kernel, the kind of its finding, and a part of the report.
type Defect = (Kernel, FindingKind, &'static str);

use FindingKind::{GlobalRace, NarrowScope, OutOfBounds, ReadOnlyData, SharedRace, WarpMask};

const DEFECTS: &[Defect] = &[
    (("a thread clears a counter that others add to at once", 1, 64, "
    .shared .align 4 .b32 count;
    setp.ne.u32 %p0, %r0, 0; @%p0 bra ADD; st.shared.u32 [count], 0;
ADD: atom.shared.add.u32 %r20, [count], 1;"),
    SharedRace, "against a write"),
    (("so does a lane of one warp", 1, 32, "
    .shared .align 4 .b32 count;
    setp.ne.u32 %p0, %r0, 0; @%p0 bra ADD; st.shared.u32 [count], 0;
ADD: red.shared.max.u32 [count], %r0;"),
    SharedRace, "against a write"),
    (("a plain load of another word than the one that is swapped", 1, 64, "
    ld.global.u32 %r20, [%rd1+8];
    atom.global.cas.b32 %r22, [%rd1], %r20, 1; red.global.add.u32 [%rd1+8], 1;"),
    GlobalRace, "the two"),
    (("threads of two warps increment a word", 1, 64, "
    ld.global.u32 %r20, [%rd1]; add.u32 %r20, %r20, 1; st.global.u32 [%rd1], %r20;"),
    GlobalRace, "the two"),
    (("lanes of a warp increment a word", 1, 32, "
    ld.global.u32 %r20, [%rd1]; add.u32 %r20, %r20, 1; st.global.u32 [%rd1], %r20;"),
    GlobalRace, "nothing orders the two lanes of the warp"),
    (("the barrier between two warps is missing", 1, 64, "
    st.global.u32 [%rd2], %r0; mul.wide.u32 %rd10, %r0, 4; sub.u64 %rd10, %rd1, %rd10; ld.global.u32 %r20, [%rd10+252];"),
    GlobalRace, "no barrier between the two threads"),
    (("lanes exchange without a meeting", 1, 32, "
    st.global.u32 [%rd2], %r0; xor.b32 %r20, %r0, 1; mul.wide.u32 %rd10, %r20, 4; add.u64 %rd10, %rd1, %rd10; ld.global.u32 %r21, [%rd10];"),
    GlobalRace, "nothing orders the two lanes of the warp"),
    (("a fence is no meeting of lanes", 1, 32, "
    st.global.u32 [%rd2], %r0; membar.gl; xor.b32 %r20, %r0, 1; mul.wide.u32 %rd10, %r20, 4; add.u64 %rd10, %rd1, %rd10; ld.global.u32 %r21, [%rd10];"),
    GlobalRace, "nothing orders the two lanes of the warp"),
    (("a meeting of lanes orders no warps", 1, 64, "
    st.global.u32 [%rd2], %r0; bar.warp.sync -1; mul.wide.u32 %rd10, %r0, 4; sub.u64 %rd10, %rd1, %rd10; ld.global.u32 %r20, [%rd10+252];"),
    GlobalRace, "no barrier between the two threads"),
    (("one warp writes what another one reads before it", 1, 64, "
    setp.ge.u32 %p0, %r0, 32; @%p0 bra PUT; ld.global.u32 %r20, [%rd2]; bra END;
PUT: st.global.u32 [%rd2+-128], %r0;
END:"),
    GlobalRace, "no barrier between the two threads"),
    (("the last of two readers writes", 1, 64, "
    ld.global.u32 %r20, [%rd1]; setp.ne.u32 %p0, %r0, 63; @%p0 bra END; st.global.u32 [%rd1], %r0;
END:"),
    GlobalRace, "the two"),
    (("lanes write different values at once", 1, 32, "st.global.u32 [%rd1], %r0;"),
    GlobalRace, "lanes of a warp write different values at once"),
    (("an atomic beside a plain load", 1, 64, "
    setp.ge.u32 %p0, %r0, 32; @%p0 bra ADD; ld.global.u32 %r20, [%rd1]; bra END;
ADD: red.global.add.u32 [%rd1], 1;
END:"),
    GlobalRace, "no barrier between the two threads"),
    (("an atomic beside a plain store of a lane", 1, 32, "
    setp.ne.u32 %p0, %r0, 3; @%p0 bra ADD; st.global.u32 [%rd1], 5; bra END;
ADD: red.global.add.u32 [%rd1], 1;
END:"),
    GlobalRace, "nothing orders the two lanes of the warp"),
    (("a named barrier leaves one warp out", 1, 96, "
    setp.ge.u32 %p0, %r0, 64; @%p0 bra OUT;
    st.global.u32 [%rd2], %r0; bar.sync 1, 64; bra END;
OUT: ld.global.u32 %r20, [%rd2+-128];
END:"),
    GlobalRace, "no barrier between the two threads"),
    (("what is written behind the release", 2, 1, "
    setp.eq.u32 %p0, %r1, 1; @%p0 bra TAKE;
    st.release.gpu.global.u32 [%rd1], 1; st.global.u32 [%rd1+256], 7; bra END;
TAKE: ld.acquire.gpu.global.u32 %r20, [%rd1]; setp.eq.u32 %p1, %r20, 0; @%p1 bra TAKE;
    ld.global.u32 %r21, [%rd1+256];
END:"),
    GlobalRace, "nothing orders the two blocks"),
    (("a relaxed flag without a fence", 2, 1, "
    setp.eq.u32 %p0, %r1, 1; @%p0 bra TAKE;
    st.global.u32 [%rd1+256], 7; st.relaxed.gpu.global.u32 [%rd1], 1; bra END;
TAKE: ld.acquire.gpu.global.u32 %r20, [%rd1]; setp.eq.u32 %p1, %r20, 0; @%p1 bra TAKE;
    ld.global.u32 %r21, [%rd1+256];
END:"),
    GlobalRace, "nothing orders the two blocks"),
    (("one thread releases before its block has met", 2, 64, "
    setp.eq.u32 %p0, %r1, 1; @%p0 bra TAKE;
    st.global.u32 [%rd2+256], %r0; setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    st.release.gpu.global.u32 [%rd1], 1; bra END;
TAKE: setp.ne.u32 %p1, %r0, 0; @%p1 bra MEET;
W:  ld.acquire.gpu.global.u32 %r20, [%rd1]; setp.eq.u32 %p1, %r20, 0; @%p1 bra W;
MEET: bar.sync 0; ld.global.u32 %r21, [%rd2];
END:"),
    GlobalRace, "nothing orders the two blocks"),
    (("a warp reads what another one has acquired", 2, 64, "
    setp.eq.u32 %p0, %r1, 1; @%p0 bra TAKE;
    st.global.u32 [%rd2+256], %r0; bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    st.release.gpu.global.u32 [%rd1], 1; bra END;
TAKE: setp.ne.u32 %p1, %r0, 0; @%p1 bra GO;
W:  ld.acquire.gpu.global.u32 %r20, [%rd1]; setp.eq.u32 %p1, %r20, 0; @%p1 bra W;
GO: ld.global.u32 %r21, [%rd2];
END:"),
    GlobalRace, "nothing orders the two blocks"),
    (("a lock without fences", 1, 64, "
L:  atom.global.cas.b32 %r20, [%rd1], 0, 1; setp.ne.u32 %p0, %r20, 0; @%p0 bra L;
    ld.global.u32 %r21, [%rd1+4]; add.u32 %r21, %r21, 1; st.global.u32 [%rd1+4], %r21;
    atom.global.exch.b32 %r22, [%rd1], 0;"),
    GlobalRace, "the two"),
    (("one of two warps does not take the lock", 1, 64, "
    setp.ge.u32 %p0, %r0, 32; @%p0 bra PLAIN;
L:  atom.global.cas.b32 %r20, [%rd1], 0, 1; setp.ne.u32 %p0, %r20, 0; @%p0 bra L;
    membar.gl; ld.global.u32 %r21, [%rd1+4]; add.u32 %r21, %r21, 1; st.global.u32 [%rd1+4], %r21;
    membar.gl; atom.global.exch.b32 %r22, [%rd1], 0; bra END;
PLAIN: setp.ne.u32 %p0, %r0, 32; @%p0 bra END; ld.global.u32 %r21, [%rd1+4];
END:"),
    GlobalRace, "no barrier between the two threads"),
    (("blocks write different values to one word", 4, 1, "st.global.u32 [%rd1], %r1;"),
    GlobalRace, "nothing orders the two blocks"),
    (("bytes that overlap a word", 1, 64, "
    setp.eq.u32 %p0, %r0, 0; @%p0 st.global.u32 [%rd1], 77; setp.eq.u32 %p1, %r0, 40; @%p1 st.global.u8 [%rd1+1], %r0;"),
    GlobalRace, "no barrier between the two threads"),
    (("a race far behind in time", 1, 64, "
    mov.u32 %r20, 0;
L:  st.global.u32 [%rd2+1024], %r20; bar.sync 0; add.u32 %r20, %r20, 1; setp.lt.u32 %p0, %r20, 40; @%p0 bra L;
    st.global.u32 [%rd2], %r0; mul.wide.u32 %rd10, %r0, 4; sub.u64 %rd10, %rd1, %rd10; ld.global.u32 %r21, [%rd10+252];"),
    GlobalRace, "no barrier between the two threads"),
    (("a read-only load of a word that the thread has written", 1, 32, "
    st.global.u32 [%rd2], %r0; ld.global.nc.u32 %r20, [%rd2];"),
    ReadOnlyData, "reads it as read-only data"),
    (("a read-only load of what another warp writes, in spite of a barrier", 1, 64, "
    st.global.u32 [%rd2], %r0; bar.sync 0; mul.wide.u32 %rd10, %r0, 4; sub.u64 %rd10, %rd1, %rd10; ld.global.nc.u32 %r20, [%rd10+252];"),
    ReadOnlyData, "reads it as read-only data"),
    (("data that was read as read-only is written", 1, 32, "
    ld.global.nc.u32 %r20, [%rd2]; add.u32 %r20, %r20, 1; st.global.u32 [%rd2], %r20;"),
    ReadOnlyData, "reads it as read-only data"),
    (("read-only data that another block writes", 2, 32, "
    ld.global.nc.u32 %r20, [%rd1]; st.global.u32 [%rd2], 5;"),
    ReadOnlyData, "reads it as read-only data"),
    (("atomics of the block's scope on a word of all blocks", 4, 32, "atom.cta.global.add.u32 %r20, [%rd1], 1;"),
    NarrowScope, "scope of its block only"),
    (("one atomic of the block's scope among others", 2, 1, "
    setp.eq.u32 %p0, %r1, 0; @%p0 atom.cta.global.add.u32 %r20, [%rd1], 1; @!%p0 atom.global.add.u32 %r20, [%rd1], 1;"),
    NarrowScope, "scope of its block only"),
    (("a strong store of the block's scope", 2, 1, "st.relaxed.cta.global.u32 [%rd1], %r1;"),
    NarrowScope, "scope of its block only"),
    (("a lane meets others by a mask without itself", 1, 32, "bar.warp.sync 0xff;"),
    WarpMask, "lane 8 is not in its mask 0x000000ff"),
    (("lanes shuffle by a mask without them", 1, 32, "
    shfl.sync.idx.b32 %r20, %r0, 0, 31, 0xffff; st.global.u32 [%rd2], %r20;"),
    WarpMask, "lane 16 is not in its mask"),
    (("lanes vote by a mask without them", 1, 32, "
    setp.lt.u32 %p0, %r0, 7; vote.sync.any.pred %p1, %p0, 0xfff;"),
    WarpMask, "lane 12 is not in its mask"),
    (("lanes match by a mask without them", 1, 32, "match.any.sync.b32 %r20, %r0, 0xfff;"),
    WarpMask, "lane 12 is not in its mask"),
    (("lanes that name each other have two masks", 1, 32, "
    setp.lt.u32 %p0, %r0, 16; selp.b32 %r20, 0xffffffff, 0xfffffffe, %p0; vote.sync.any.pred %p1, %p0, %r20;"),
    WarpMask, "has the mask"),
    (("a lane uses the value of one that has exited", 1, 32, "
    setp.eq.u32 %p0, %r0, 20; @%p0 exit;
    shfl.sync.idx.b32 %r20, %r0, 20, 31, -1; st.global.u32 [%rd2], %r20;"),
    WarpMask, "of lane 20, which has exited"),
    (("a lane uses the value of one that was not launched", 1, 20, "
    shfl.sync.down.b32 %r20, %r0, 16, 31, -1; add.u32 %r21, %r20, %r0; st.global.u32 [%rd2], %r21;"),
    WarpMask, "which has exited or was not launched"),
    (("a lane uses the value of one outside the mask", 1, 32, "
    setp.ge.u32 %p0, %r0, 16; @%p0 bra END;
    shfl.sync.idx.b32 %r20, %r0, 20, 31, 0xffff; st.global.u32 [%rd2], %r20;
END:"),
    WarpMask, "of lane 20, which is not in its mask"),
    (("lanes write different values to shared memory at once", 1, 32, "
    .shared .align 4 .b32 s; st.shared.u32 [s], %r0;"),
    SharedRace, "nothing orders the two lanes of the warp"),
    (("a lane reads from shared memory what another of its warp writes", 1, 32, "
    .shared .align 4 .b8 s[132]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    st.shared.u32 [%r22], %r0; st.shared.u32 [%r22+4], %r0;"),
    SharedRace, "nothing orders the two lanes of the warp"),
    (("the barrier between two warps is missing in shared memory", 1, 64, "
    .shared .align 4 .b8 s[256]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    st.shared.u32 [%r22], 0; bar.sync 0; st.shared.u32 [%r22], %r0; sub.u32 %r23, %r20, %r21; ld.shared.u32 %r24, [%r23+252];"),
    SharedRace, "no barrier"),
    (("an array in shared memory runs into the next one", 1, 64, "
    .shared .align 4 .b8 a[248]; .shared .align 4 .b8 b[64]; mov.u32 %r20, a; shl.b32 %r22, %r0, 2;
    add.u32 %r23, %r20, %r22; st.shared.u32 [%r23], %r0; mov.u32 %r24, b; st.shared.u32 [%r24+60], 1;"),
    OutOfBounds, "past the end of the shared variable `a` of 248 bytes"),
    (("one is read from before its start", 1, 32, "
    .shared .align 4 .b8 a[64]; .shared .align 4 .b8 b[64];
    setp.ne.u32 %p0, %r0, 0; @%p0 bra END; st.shared.u32 [a+60], 1; mov.u64 %rd10, b; cvta.shared.u64 %rd11, %rd10; ld.u32 %r20, [%rd11+-4];
END:"),
    OutOfBounds, "4 bytes before the start of the shared variable `b`"),
    (("a pointer walks past the end in a loop", 1, 1, "
    .shared .align 4 .b8 a[16]; .shared .align 4 .b8 b[16]; mov.u32 %r20, a; mov.u32 %r21, 0; st.shared.u32 [b], 1;
L:  st.shared.u32 [%r20], %r21; add.u32 %r20, %r20, 4; add.u32 %r21, %r21, 1; setp.le.u32 %p0, %r21, 4; @%p0 bra L;"),
    OutOfBounds, "0 bytes past the end of the shared variable `a`"),
    (("an atomic past the end of an array", 1, 1, "
    .shared .align 4 .b8 a[16]; .shared .align 4 .b8 b[16]; st.shared.u32 [b], 1; mov.u32 %r20, a; atom.shared.add.u32 %r21, [%r20+16], 1;"),
    OutOfBounds, "the shared variable `a`"),
    (("a local array runs into the next one", 1, 32, "
    .local .align 4 .b8 a[16]; .local .align 4 .b8 b[16]; mov.u64 %rd10, a; st.local.u32 [%rd10+16], %r0; st.local.u32 [b], 1;"),
    OutOfBounds, "past the end of the local variable `a` of 16 bytes"),
    (("a local array is left together with its frame", 1, 32, "
    .local .align 4 .b8 a[16]; mov.u64 %rd10, a; st.local.u32 [%rd10+80], %r0; ld.local.u32 %r20, [%rd10+80];"),
    OutOfBounds, "64 bytes past the end of the local variable `a` of 16 bytes"),
    (("a local address of no known array lies before the frame", 1, 32, "
    .local .align 4 .b8 a[16]; .local .align 4 .b8 b[16]; mov.u64 %rd10, a; mov.u64 %rd11, b; setp.lt.u32 %p0, %r0, 9;
    selp.b64 %rd12, %rd10, %rd11, %p0; st.local.u32 [%rd12+-64], %r0;"),
    OutOfBounds, "the thread has 32 bytes of local memory"),
    (("an array in shared memory is left together with the block's", 1, 32, "
    .shared .align 4 .b8 a[64]; mov.u32 %r20, a; st.shared.u32 [%r20+68], %r0;"),
    OutOfBounds, "4 bytes past the end of the shared variable `a` of 64 bytes"),
    (("so it is by an asynchronous copy", 1, 1, "
    .shared .align 16 .b8 a[64]; mov.u32 %r20, a; cp.async.ca.shared.global [%r20+64], [%rd1], 16; cp.async.wait_all;"),
    OutOfBounds, "0 bytes past the end of the shared variable `a` of 64 bytes"),
    (("a parameter is read past the last", 1, 1, "
    mov.u64 %rd10, buffer; mul.wide.u32 %rd11, %r0, 4; add.u64 %rd12, %rd10, %rd11; ld.param.u32 %r20, [%rd12+8];"),
    OutOfBounds, "the kernel has 8 bytes of parameters"),
];

fn judged(defect: &Defect, options: CheckOptions, threads: usize) -> Result<Vec<String>, String> {
    let (kernel, kind, part) = *defect;
    let found = run(kernel, options, threads).findings;
    let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    let is_it = |(f, text): (&Finding, &String)| f.kind == kind && text.contains(part);
    if !found.iter().zip(&texts).any(is_it) || found.iter().any(|f| f.kind != kind) {
        return Err(format!("{}: {}", kernel.0, texts.join("\n")));
    }
    // Both sides of a race are named with their places.
    let has_line = |actor: &FindingActor| matches!(actor, FindingActor::Thread(p, _) if p.ptx_line > 0 && !p.opcode.is_empty());
    let sides = found.iter().all(|f| {
        let other = f.other.as_ref().is_none_or(|(_, actor)| has_line(actor));
        let pair = matches!(kind, GlobalRace | SharedRace | ReadOnlyData | NarrowScope);
        has_line(&f.actor) && other && f.other.is_some() == pair
    });
    if sides {
        Ok(texts)
    } else {
        Err(format!("{}: no places: {}", kernel.0, texts.join("\n")))
    }
}

#[test]
fn each_defect_is_reported_with_its_kind_and_both_sides() {
    let mut wrong = Vec::new();
    for defect in DEFECTS {
        for threads in [1, 3] {
            wrong.extend(judged(defect, CheckOptions::default(), threads).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Silent by default, and reported on request.
const ON_REQUEST: &[(Defect, CheckOptions)] = &[
    (
        (("volatile words of other warps", 1, 64, "
    .shared .align 4 .b8 s[256]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    st.shared.u32 [%r22], 0; bar.sync 0; st.volatile.shared.u32 [%r22], %r0; sub.u32 %r23, %r20, %r21; ld.volatile.shared.u32 %r24, [%r23+252];"),
        SharedRace, "no barrier"),
        CheckOptions { volatile_races: true, same_values: false },
    ),
    (
        (("volatile words of other blocks", 2, 64, "
    st.volatile.global.u32 [%rd2], %r0; mul.wide.u32 %rd10, %r2, 4; sub.u64 %rd10, %rd1, %rd10; ld.volatile.global.u32 %r20, [%rd10+508];"),
        GlobalRace, "nothing orders the two blocks"),
        CheckOptions { volatile_races: true, same_values: false },
    ),
    (
        (("a reduction of a warp by volatile words", 1, 32, "
    .shared .align 4 .b8 s[256]; mov.u32 %r20, s; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21;
    st.shared.u32 [%r22], %r0; st.shared.u32 [%r22+128], 0; bar.warp.sync -1;
    ld.volatile.shared.u32 %r23, [%r22]; ld.volatile.shared.u32 %r24, [%r22+64]; add.u32 %r23, %r23, %r24; st.volatile.shared.u32 [%r22], %r23;
    ld.volatile.shared.u32 %r23, [%r22]; ld.volatile.shared.u32 %r24, [%r22+32]; add.u32 %r23, %r23, %r24; st.volatile.shared.u32 [%r22], %r23;"),
        SharedRace, "nothing orders the two lanes of the warp"),
        CheckOptions { volatile_races: true, same_values: false },
    ),
    (
        (("warps write one value", 1, 64, "
    .shared .align 4 .b32 s; mov.u32 %r20, 7; st.shared.u32 [s], %r20;"),
        SharedRace, "both write the same value"),
        CheckOptions { volatile_races: false, same_values: true },
    ),
    (
        (("blocks write one value", 4, 64, "mov.u32 %r20, 1; st.global.u32 [%rd1], %r20;"),
        GlobalRace, "both write the same value"),
        CheckOptions { volatile_races: false, same_values: true },
    ),
];

#[test]
fn volatile_races_and_equal_values_are_reported_on_request_only() {
    for (defect, options) in ON_REQUEST {
        let quiet = run(defect.0, CheckOptions::default(), 1).findings;
        assert!(quiet.is_empty(), "{}: {quiet:?}", defect.0.0);
        judged(defect, *options, 1).unwrap();
    }
}
