//! Standard input, read to its end within a limit.

use std::io::Read as _;

use anyhow::{Context as _, Result};

use crate::status::bail_usage;
use crate::terminal::bytes;

/// Reads standard input, which is to contain `what`.
///
/// # Errors
/// It cannot be read, or, as a usage error, it has more than `most` bytes.
pub(crate) fn read_stdin(what: &str, most: u64) -> Result<Vec<u8>> {
    let mut read = Vec::new();
    let mut stdin = std::io::stdin().lock().take(most.saturating_add(1));
    stdin
        .read_to_end(&mut read)
        .with_context(|| format!("cannot read {what} from standard input"))?;
    if read.len() as u64 > most {
        bail_usage!(
            "standard input has more than {}, the maximum for {what}\ntry: less input",
            bytes(most)
        );
    }
    Ok(read)
}
