//! Checks of accesses to the shared memory of other blocks of a cluster.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::registers::{LANES, each};
use super::super::state::BlockState;
use super::found::{found, report};
use super::global::CheckedAccess;
use super::site::ThreadFinding;
use crate::check::Strength;
use crate::check::clock::WarpClocks;
use crate::check::remote::{MeetingAccess, RemoteAccess};
use crate::report::{Access, AccessKind, Finding, FindingActor, FindingKind, MemSpace};

/// Another access, by which a report names it.
#[derive(Debug, Clone, Copy)]
struct OtherAccess {
    block: u32,
    thread: u32,
    pc: u32,
    kind: AccessKind,
}

/// What is wrong with an access to another block's memory, or to the own one that others access.
#[derive(Debug, Clone, Copy)]
enum ClusterFinding {
    NotBegun,
    Uninitialised,
    Race(OtherAccess),
    Narrow(OtherAccess),
    /// An asynchronous access that was not waited for.
    Pending(OtherAccess),
}

impl From<RemoteAccess> for OtherAccess {
    fn from(a: RemoteAccess) -> Self {
        OtherAccess {
            block: a.block,
            thread: a.thread,
            pc: a.pc,
            kind: a.kind,
        }
    }
}

/// Whether an access is strong for threads of other blocks.
fn reaches_cluster(strength: Strength) -> bool {
    strength.is_strong() && strength != Strength::Block
}

/// A thread at work, for what it knows to be before.
#[derive(Clone, Copy)]
struct Knowing<'a> {
    clocks: &'a WarpClocks,
    block: u32,
    thread: u32,
}

impl Knowing<'_> {
    /// Whether what `actor` of `block` did at `time` is before what this thread does now.
    fn has(self, block: u32, actor: u32, time: u32) -> bool {
        let (warp, lane) = ((self.thread / 32) as usize, self.thread % 32);
        match block == self.block && actor < 1024 {
            true => self.clocks.follows(self.thread, actor, time),
            false => self.clocks.views(warp).has(lane, block, actor, time),
        }
    }

    fn is_behind(self, was: &RemoteAccess) -> bool {
        self.has(was.block, was.actor, was.time)
    }

    /// Whether anything that it knows is of `block`.
    fn knows_block(self, block: u32) -> bool {
        let (warp, lane) = ((self.thread / 32) as usize, self.thread % 32);
        self.clocks.views(warp).has_block(lane, block)
    }
}

/// The bytes of each word that an access of `len` bytes at `at` touches.
fn words(at: u32, len: u32) -> impl Iterator<Item = (u32, u8)> {
    let end = at + len;
    (at / 4..end.div_ceil(4)).map(move |word| {
        let (first, last) = (
            at.max(word * 4) - word * 4,
            end.min(word * 4 + 4) - word * 4,
        );
        (word, ((1u32 << last) - (1 << first)) as u8)
    })
}

/// What an access finds in that of another block. Two strong ones meet only if the scope of one is
/// too narrow.
fn met_from_afar(was: RemoteAccess, now: Strength) -> ClusterFinding {
    if was.is_asynchronous() {
        ClusterFinding::Pending(was.into())
    } else if now.is_strong() && (was.strong || was.narrow) {
        ClusterFinding::Narrow(was.into())
    } else {
        ClusterFinding::Race(was.into())
    }
}

/// What an access finds in the records of another block's memory; `knows` is the thread's.
fn judge(
    knows: Knowing<'_>,
    peer: &BlockState,
    (word, bytes): (u32, u8),
    access: CheckedAccess<'_>,
) -> Option<ClusterFinding> {
    let theirs = peer.shadow.as_ref()?;
    let of_peer = peer.linear as u32;
    let reads = matches!(access.kind, AccessKind::Read | AccessKind::Atomic);
    let now = MeetingAccess {
        bytes,
        writes: access.kind != AccessKind::Read,
        strong: reaches_cluster(access.strength),
    };
    for (was, kind) in theirs.met_by(word, now) {
        if !knows.has(of_peer, was.thread(), was.time()) {
            let other = OtherAccess {
                block: of_peer,
                thread: was.thread(),
                pc: was.pc(),
                kind,
            };
            return Some(match access.strength.is_strong() && was.strong() {
                true => ClusterFinding::Narrow(other),
                false => ClusterFinding::Race(other),
            });
        }
    }
    if let Some(was) = theirs.remote.meets(word, now, |was| knows.is_behind(was)) {
        return Some(met_from_afar(was, access.strength));
    }
    (reads && theirs.written(word) & u64::from(bytes) != u64::from(bytes))
        .then_some(ClusterFinding::Uninitialised)
}

/// Checks the access of one lane to `len` bytes at `at` in another block's memory, and records it
/// as that of `actor` at a time; `None`: of the thread itself.
fn one_access(
    ctx: &mut Ctx<'_>,
    pc: u32,
    lane: u32,
    (rank, at): (u32, u32),
    access: CheckedAccess<'_>,
    actor: Option<(u32, u32)>,
) -> Option<ClusterFinding> {
    let (warp, thread) = (ctx.warp, ctx.linear_thread(lane));
    let block = ctx.block.linear as u32;
    let own = &mut *ctx.block;
    let shadow = own.shadow.as_mut()?;
    shadow.clocks.touch(warp);
    let time = shadow.clocks.now(warp);
    let knows = Knowing {
        clocks: &shadow.clocks,
        block,
        thread,
    };
    let peer = ctx.cluster.as_mut()?.peer(rank)?;
    let mut wrong = (!knows.knows_block(peer.linear as u32)).then_some(ClusterFinding::NotBegun);
    let (actor, time) = actor.unwrap_or((thread, time));
    for part in words(at, access.size) {
        let found = judge(knows, peer, part, access);
        wrong = wrong.or(found);
        let theirs = peer.shadow.as_mut()?;
        let now = RemoteAccess {
            block,
            thread,
            actor,
            time,
            pc,
            kind: access.kind,
            strong: reaches_cluster(access.strength),
            narrow: access.strength == Strength::Block,
            bytes: part.1,
        };
        theirs.remote.leave(part.0, now, |was| knows.is_behind(was));
        if access.kind != AccessKind::Read {
            theirs.initialise_bytes(part.0, part.1.into());
        }
    }
    wrong
}

/// Checks accesses to the memory of the block of `rank`; returns the lanes that may make them.
pub(crate) fn peer(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    rank: u32,
    at: &[u32; LANES],
    mask: u32,
    access: CheckedAccess<'_>,
) -> u32 {
    let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
    let len = ctx.run.shared_bytes;
    let mut allowed = 0;
    each(mask, |l| {
        let (at, lane) = (at[l], l as u32);
        let align = access.size.next_power_of_two();
        if u64::from(at) + u64::from(access.size) > u64::from(len) {
            let [x, y, z] = ctx.index_of(rank);
            let note = format!("block ({x},{y},{z}) has {len} bytes of shared memory");
            bad(ctx, i, (lane, at), access, FindingKind::OutOfBounds, note);
            return;
        }
        if !at.is_multiple_of(align) {
            let note = format!("must be a multiple of {align}");
            bad(ctx, i, (lane, at), access, FindingKind::Misaligned, note);
            return;
        }
        allowed |= 1 << l;
        if let Some(wrong) = one_access(ctx, pc, lane, (rank, at), access, None) {
            tell(ctx, i, (lane, at), access, Some(rank), wrong);
        }
    });
    allowed
}

/// Checks an asynchronous access to the memory of the block of `rank`, which may be the own
/// one, and has the mbarrier at `bar` there report it. Returns whether it may be made.
pub(crate) fn asynchronous(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: u32,
    (rank, at, bar): (u32, u32, u32),
    access: CheckedAccess<'_>,
) -> bool {
    let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
    let len = ctx.run.shared_bytes;
    if u64::from(at) + u64::from(access.size) > u64::from(len) {
        let note = format!("the block of rank {rank} has {len} bytes of shared memory");
        bad(ctx, i, (lane, at), access, FindingKind::OutOfBounds, note);
        return false;
    }
    let block = ctx.block.linear as u32;
    let is_own = rank == ctx.rank();
    let target = match is_own {
        true => Some(&mut *ctx.block),
        false => ctx.cluster.as_mut().and_then(|c| c.peer(rank)),
    };
    let Some(theirs) = target.and_then(|t| t.shadow.as_mut()) else {
        return true;
    };
    let (actor, time) = theirs.remote.actor(block, (rank, bar));
    let wrong = match is_own {
        true => own_async(ctx, pc, lane, at, access, (actor, time)),
        false => one_access(ctx, pc, lane, (rank, at), access, Some((actor, time))),
    };
    // What has an order with nothing need not have waited either.
    let wrong = wrong.map(|wrong| match wrong {
        ClusterFinding::Pending(other) => ClusterFinding::Race(other),
        wrong => wrong,
    });
    if let Some(wrong) = wrong {
        let away = (!is_own).then_some(rank);
        tell(ctx, i, (lane, at), access, away, wrong);
    }
    let target = match is_own {
        true => Some(&mut *ctx.block),
        false => ctx.cluster.as_mut().and_then(|c| c.peer(rank)),
    };
    if let Some(target) = target
        && let Some(theirs) = target.shadow.as_mut()
    {
        let known = theirs.clocks.completes(bar, block, actor, time);
        target.mbarriers.gather(bar, &known);
    }
    true
}

/// The same of the own memory.
fn own_async(
    ctx: &mut Ctx<'_>,
    pc: u32,
    lane: u32,
    at: u32,
    access: CheckedAccess<'_>,
    (actor, time): (u32, u32),
) -> Option<ClusterFinding> {
    let (block, thread) = (ctx.block.linear as u32, ctx.linear_thread(lane));
    let it = &mut *ctx.block;
    it.shadow.as_mut()?.clocks.touch((thread / 32) as usize);
    let mut wrong = None;
    for part in words(at, access.size) {
        let shadow = it.shadow.as_ref()?;
        let knows = Knowing {
            clocks: &shadow.clocks,
            block,
            thread,
        };
        let found = judge(knows, it, part, access);
        wrong = wrong.or(found);
        let now = RemoteAccess {
            block,
            thread,
            actor,
            time,
            pc,
            kind: access.kind,
            strong: reaches_cluster(access.strength),
            narrow: access.strength == Strength::Block,
            bytes: part.1,
        };
        let shadow = it.shadow.as_mut()?;
        shadow.remote.leave(part.0, now, |_| false);
        shadow.initialise_bytes(part.0, part.1.into());
    }
    wrong
}

/// Checks accesses to the block's own memory against those of other blocks.
#[cold]
pub(super) fn own_memory(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    access: CheckedAccess<'_>,
) {
    let (warp, block) = (ctx.warp, ctx.block.linear as u32);
    let now = |bytes| MeetingAccess {
        bytes,
        writes: access.kind != AccessKind::Read,
        strong: reaches_cluster(access.strength),
    };
    each(mask, |l| {
        let thread = warp as u32 * 32 + l as u32;
        let Some(shadow) = &ctx.block.shadow else {
            return;
        };
        let knows = Knowing {
            clocks: &shadow.clocks,
            block,
            thread,
        };
        let met = words(off[l], access.size).find_map(|(word, bytes)| {
            shadow
                .remote
                .meets(word, now(bytes), |was| knows.is_behind(was))
        });
        let Some(was) = met else { return };
        let wrong = met_from_afar(was, access.strength);
        tell(ctx, i, (l as u32, off[l]), access, None, wrong);
    });
}

/// Checks and records that a lane arrives at the mbarrier at `at` in the memory of the block of
/// `rank`: whether what it did before is before the phase's end. `None`: an asynchronous access of
/// its does, whose own record there is.
pub(crate) fn peer_mbarrier(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: u32,
    (rank, at): (u32, u32),
    releases: Option<bool>,
) {
    if rank == ctx.rank() {
        return;
    }
    let access = CheckedAccess {
        strength: Strength::Strong,
        ..CheckedAccess::plain(8, AccessKind::Atomic)
    };
    let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
    let (warp, thread) = (ctx.warp, ctx.linear_thread(lane));
    let block = ctx.block.linear as u32;
    let own = &mut *ctx.block;
    let peer = ctx.cluster.as_mut().and_then(|c| c.peer(rank));
    let (Some(shadow), Some(peer)) = (own.shadow.as_mut(), peer) else {
        return;
    };
    let of_peer = peer.linear as u32;
    let knows = Knowing {
        clocks: &shadow.clocks,
        block,
        thread,
    };
    let born = peer.mbarriers.born(at);
    let wrong = match born {
        None => Some(ClusterFinding::Uninitialised),
        Some(mark) if !knows.has(of_peer, mark.thread, mark.time()) => {
            Some(ClusterFinding::Race(OtherAccess {
                block: of_peer,
                thread: mark.thread,
                pc: mark.pc,
                kind: AccessKind::Write,
            }))
        }
        Some(_) => None,
    };
    shadow.clocks.touch(warp);
    let time = shadow.clocks.now(warp);
    if let (Some(releases), Some(theirs)) = (releases, peer.shadow.as_mut()) {
        let clocks = &shadow.clocks;
        for (word, bytes) in words(at, 8) {
            let now = RemoteAccess {
                block,
                thread,
                actor: thread,
                time,
                pc,
                kind: AccessKind::Atomic,
                strong: true,
                narrow: false,
                bytes,
            };
            let knows = Knowing {
                clocks,
                block,
                thread,
            };
            theirs.remote.leave(word, now, |was| knows.is_behind(was));
        }
        if releases {
            let known = shadow.clocks.published(warp, 1 << lane);
            theirs.clocks.receive(at, &known);
            peer.mbarriers.gather(at, &known);
        }
    }
    match wrong {
        Some(ClusterFinding::Uninitialised) => {
            let note =
                format!("no thread of the block of rank {rank} has initialised this mbarrier");
            bad(ctx, i, (lane, at), access, FindingKind::Uninitialised, note);
        }
        Some(wrong) => tell(ctx, i, (lane, at), access, Some(rank), wrong),
        None => {}
    }
}

/// What is behind the end of the block at work must not touch its memory: accesses of others that
/// nothing orders before it are reported.
pub(crate) fn leaves_cluster(ctx: &mut Ctx<'_>) {
    let block = &mut *ctx.block;
    let Some(shadow) = &block.shadow else {
        return;
    };
    let own = block.linear as u32;
    let is_before = |was: &RemoteAccess| {
        (0..block.warps.len()).any(|w| {
            shadow
                .clocks
                .views(w)
                .any_has(was.block, was.actor, was.time)
        })
    };
    // The block may have seen what a strong access left, such as a flag, by polling it.
    let is_seen = |word: u32, was: &RemoteAccess| was.strong && shadow.is_watched(word);
    let late = shadow
        .remote
        .all()
        .filter(|(word, was)| was.block != own && !is_before(was) && !is_seen(*word, was));
    let mut late: Vec<(u32, RemoteAccess)> = late.collect();
    late.sort_by_key(|(word, was)| (was.pc, was.block, was.thread, *word));
    late.dedup_by_key(|(_, was)| (was.pc, was.block));
    let [x, y, z] = block.index;
    for (word, was) in late {
        let (function, pc) = ctx.run.prepared.locate(was.pc);
        let index = ctx.run.block_index(was.block.into());
        let thread = ctx.run.thread_index(was.thread);
        let place = ctx.run.place(function, pc, index, thread);
        let finding = Finding {
            kind: FindingKind::AbsentPeer,
            access: Some(Access {
                kind: was.kind,
                space: MemSpace::Shared,
                addr: u64::from(word) * 4,
                len: u64::from(was.bytes.count_ones()),
            }),
            actor: FindingActor::Thread(Box::new(place), None),
            note: format!(
                "nothing keeps block ({x},{y},{z}), whose memory it is, from exiting before the \
                 access is done"
            ),
            allocation: None,
            other: None,
            count: 1,
        };
        found(ctx, finding);
    }
}

/// Reports a rank that no block of the cluster has.
#[cold]
pub(crate) fn no_such_rank(ctx: &mut Ctx<'_>, i: &DecodedInst, lane: u32, rank: u32) {
    if ctx.run.spec.checks.is_none() {
        return;
    }
    let place = ctx.place(ctx.pc_of(i), lane);
    let finding = Finding {
        kind: FindingKind::OutOfBounds,
        access: None,
        actor: FindingActor::Thread(Box::new(place), None),
        note: format!(
            "rank {rank} in a cluster of {} blocks",
            ctx.run.cluster_size
        ),
        allocation: None,
        other: None,
        count: 1,
    };
    found(ctx, finding);
}

/// Reports an access to the memory of a block that has exited, which ends the kernel.
#[cold]
pub(crate) fn peer_has_ended(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: u32,
    (rank, at): (u32, u32),
    access: CheckedAccess<'_>,
) {
    if ctx.run.spec.checks.is_none() {
        return;
    }
    let [x, y, z] = ctx.index_of(rank);
    let note = format!("block ({x},{y},{z}), whose memory it is, has exited");
    bad(ctx, i, (lane, at), access, FindingKind::AbsentPeer, note);
}

/// Reports an asynchronous access whose mbarrier is in another block's memory than the data.
#[cold]
pub(crate) fn other_mbarrier(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: u32,
    (rank, at): (u32, u32),
    of_bar: u32,
    access: CheckedAccess<'_>,
) {
    if ctx.run.spec.checks.is_none() {
        return;
    }
    let note = format!(
        "the data go to the block of rank {rank}, and the mbarrier is named in that of rank {of_bar}"
    );
    bad(ctx, i, (lane, at), access, FindingKind::OutOfBounds, note);
}

fn access_at(at: u32, access: CheckedAccess<'_>) -> Access {
    Access {
        kind: access.kind,
        space: MemSpace::Shared,
        addr: at.into(),
        len: access.size.into(),
    }
}

fn bad(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    (lane, at): (u32, u32),
    access: CheckedAccess<'_>,
    kind: FindingKind,
    note: String,
) {
    let finding = ThreadFinding {
        kind,
        access: access_at(at, access),
        note,
        allocation: None,
        other: None,
    };
    report(ctx, i, lane, finding);
}

/// Reports what an access has met; `rank`: in the memory of another block.
#[cold]
fn tell(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    (lane, at): (u32, u32),
    access: CheckedAccess<'_>,
    rank: Option<u32>,
    wrong: ClusterFinding,
) {
    let place = match rank.map(|rank| (rank, ctx.index_of(rank))) {
        Some((rank, [x, y, z])) => format!("in block ({x},{y},{z}) of rank {rank}"),
        None => "in the block's own memory".to_owned(),
    };
    let originator = |ctx: &Ctx<'_>, m: OtherAccess| {
        let (function, pc) = ctx.run.prepared.locate(m.pc);
        let index = ctx.run.block_index(m.block.into());
        let thread = ctx.run.thread_index(m.thread);
        let place = ctx.run.place(function, pc, index, thread);
        (m.kind, FindingActor::Thread(Box::new(place), None))
    };
    let (kind, note, other) = match wrong {
        ClusterFinding::NotBegun => (
            FindingKind::AbsentPeer,
            format!("{place}, which may not have begun: no barrier of the cluster before"),
            None,
        ),
        ClusterFinding::Uninitialised => (
            FindingKind::Uninitialised,
            format!("{place}, where no thread wrote it"),
            None,
        ),
        ClusterFinding::Race(m) => (
            FindingKind::SharedRace,
            format!("{place}; nothing that the cluster shares orders the two"),
            Some(originator(ctx, m)),
        ),
        ClusterFinding::Narrow(m) => (
            FindingKind::NarrowScope,
            format!("{place}; one of the two has the scope of its block"),
            Some(originator(ctx, m)),
        ),
        ClusterFinding::Pending(m) => (
            FindingKind::MissingAsyncWait,
            format!("{place}; the mbarrier of the asynchronous store was not waited for"),
            Some(originator(ctx, m)),
        ),
    };
    let finding = ThreadFinding {
        kind,
        access: access_at(at, access),
        note,
        allocation: None,
        other,
    };
    report(ctx, i, lane, finding);
}
