//! Requests for blocks, and the blocks that answer them.
//!
//! Elsewhere: the path of a request ([`crate::pool`]).

use crate::blocks::{AllocLayout, BlockId, Span};
use crate::place::PoolPlace;

/// The number of distinct tenants; further ones count as the last.
pub(crate) const TENANTS: usize = u64::BITS as usize;

/// A tenant: the user that memory is charged to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u16);

impl TenantId {
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0).min(TENANTS - 1)
    }
}

/// A request. The note is the caller's own; the pool stores it with the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRequest<N = ()> {
    /// The requested size.
    pub bytes: u64,
    /// The address is a multiple of this power of two, and of 256.
    pub align_bytes: u64,
    /// Where work will use it.
    pub place: PoolPlace,
    /// The tenant to charge.
    pub tenant: TenantId,
    /// Stored with the block.
    pub note: N,
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock<N = ()> {
    /// Its address and size.
    pub span: Span,
    /// The tenant charged.
    pub tenant: TenantId,
    /// The request's note.
    pub note: N,
    /// The requested size, before it was rounded up.
    pub requested_bytes: u64,
}

/// A block as it was when it was freed.
pub type FreedBlock<N = ()> = LiveBlock<N>;

/// A normalised request for a block.
pub(crate) struct BlockRequest {
    pub(crate) place: PoolPlace,
    pub(crate) layout: AllocLayout,
    /// Before rounding.
    pub(crate) bytes: u64,
}

/// A block that was found.
pub(crate) type FoundBlock = (BlockId, Span);
