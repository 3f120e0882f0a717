//! Mbarriers of other blocks of a cluster: what arrives at them from afar.

use super::checks;
use super::cluster::in_memory_of;
use super::ctx::{Ctx, DecodedInst};
use super::mbarrier_state::MbarrierState;

/// What a lane does to an mbarrier from afar.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RemoteArrival {
    /// Arrivals that it makes.
    pub(crate) arrivals: i64,
    /// Whether they are expected in no later phase.
    pub(crate) drops: bool,
    /// Bytes of transactions that it has the phase expect; less than zero: that are complete.
    pub(crate) bytes: i64,
    /// Whether what the thread did before is before the phase's end.
    pub(crate) releases: bool,
}

/// Lane `l` arrives at the mbarrier at an offset inside the memory of the block of a rank.
pub(crate) fn arrive(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    (rank, at): (u32, u32),
    it: RemoteArrival,
) {
    if ctx.run.spec.checks.is_some() {
        checks::peer_mbarrier(ctx, i, l as u32, (rank, at), Some(it.releases));
    }
    change(ctx, (rank, at), it);
}

/// Changes the mbarrier as an arrival says.
fn change(ctx: &mut Ctx<'_>, (rank, at): (u32, u32), it: RemoteArrival) {
    let ended = in_memory_of(ctx, rank, |ctx| {
        let cell = ctx.block.shared.get_mut(at as usize..at as usize + 8)?;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(cell);
        let mut s = MbarrierState::unpack(u64::from_le_bytes(bytes));
        s.pending = (s.pending - it.arrivals).max(0);
        s.bytes += it.bytes;
        if it.drops {
            s.expected = (s.expected - it.arrivals).max(0);
        }
        let mut ends = false;
        // An expectation alone ends no phase.
        if it.arrivals != 0 || it.bytes < 0 {
            (s, ends) = s.settled();
        }
        cell.copy_from_slice(&s.pack().to_le_bytes());
        Some(ends)
    });
    let Some(ends) = ended.flatten() else {
        return;
    };
    let own = rank == ctx.rank();
    let peer = ctx.cluster.as_mut().and_then(|cluster| cluster.peer(rank));
    let block = match (own, peer) {
        (true, _) => &mut *ctx.block,
        (false, Some(peer)) => peer,
        (false, None) => return,
    };
    if it.bytes > 0 {
        block.book.expects(at, it.bytes);
    }
    block.book.changed(at, ends);
    if ends {
        block.mbarriers.phase_over(at);
    }
}

/// Ends transactions of `bytes` at the mbarrier at an offset inside the memory of the block of a
/// rank, which may be the own one.
pub(crate) fn complete_tx(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    place: (u32, u32),
    bytes: u32,
) {
    if ctx.run.spec.checks.is_some() {
        checks::peer_mbarrier(ctx, i, l as u32, place, None);
    }
    let done = RemoteArrival {
        bytes: -i64::from(bytes),
        ..RemoteArrival::default()
    };
    change(ctx, place, done);
}
