//! Sizes in bytes on the command line, in the forms that `FERCUDA_LIMIT` has too.
//!
//! Options that may not be 0 are of the type `fercuda_governor::MemorySize`, with the same parser.

use fercuda_governor::parse_byte_count;

/// A size that may be 0 and is below 4 GiB, for clap's `value_parser`: `48K`, `4KiB`, `512`.
///
/// # Errors
/// Names the accepted forms.
pub(crate) fn parse_u32_bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_byte_count(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes).map_err(|_| "it is 4 GiB or more\ntry: less, such as 48K".to_owned())
}
