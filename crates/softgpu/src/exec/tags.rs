//! Tags of generic addresses, which say what space an address is in.

use fercuda_ptx::words::Word;

/// Tags of generic addresses that are not global. Offsets are the low 32 bits.
pub(crate) const SHARED_TAG: u64 = 1 << 56;
pub(crate) const LOCAL_TAG: u64 = 2 << 56;
pub(crate) const PARAM_TAG: u64 = 3 << 56;
/// Addresses of functions: the tag and the function's index in its module.
pub(crate) const FUNCTION_TAG: u64 = 4 << 56;
/// Of no address.
pub(crate) const NO_TAG: u64 = 5 << 56;
pub(crate) const TAG_MASK: u64 = 0xff << 56;

/// The tag of generic addresses into a space.
pub(crate) fn tag(space: Word) -> Option<u64> {
    Some(match space {
        Word::Shared | Word::SharedCta | Word::SharedCluster => SHARED_TAG,
        Word::Local => LOCAL_TAG,
        Word::Param | Word::ParamEntry => PARAM_TAG,
        Word::Global | Word::Const => 0,
        _ => return None,
    })
}

/// Where the rank, plus one, begins in an address of shared memory of a cluster.
pub(crate) const RANK_SHIFT: u32 = 24;
/// The offset in an address of shared memory of a cluster.
pub(crate) const CLUSTER_OFFSET: u32 = (1 << RANK_SHIFT) - 1;

/// The number of a generic or shared address in shared memory; `None` if it lies elsewhere.
pub(crate) fn shared_number(address: u64) -> Option<u32> {
    let is_shared =
        address & TAG_MASK == SHARED_TAG && (address & !TAG_MASK) >> 32 == 0 || address >> 32 == 0;
    is_shared.then_some(address as u32)
}

/// An address of `.shared::cluster`: `at` in the block of `rank`.
pub(crate) fn cluster_address(rank: u32, at: u32) -> u32 {
    (rank.min(0xfe) + 1) << RANK_SHIFT | at & CLUSTER_OFFSET
}

/// The offset of an address of `.shared::cluster` in whichever block's shared memory it is in.
pub(crate) fn offset_of(address: u32) -> u32 {
    address & CLUSTER_OFFSET
}

/// The rank that an address of `.shared::cluster` names; `None` if it is the executing block's.
pub(crate) fn rank_of(address: u32) -> Option<u32> {
    (address >> RANK_SHIFT).checked_sub(1)
}
