//! Constants of the GGUF format.

pub(super) const MAGIC: &[u8; 4] = b"GGUF";
/// Versions with this layout; 1 had counts of 32 bits.
pub(super) const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// The alignment of tensors' data, if the metadata name no other.
pub(super) const ALIGNMENT: u64 = 32;
/// The key of another.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
/// Dimensions of a tensor, as llama.cpp has them.
pub(super) const RANK: u32 = 4;
/// Bytes of a tensor's name, of which llama.cpp keeps no more.
pub(super) const NAME_BYTES: usize = 63;
