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
