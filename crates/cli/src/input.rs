//! Standard input and files, read to their ends within a limit.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

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

/// Reads a file, of which no more than one byte beyond `most` is kept: a device may have no end.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut read = Vec::new();
    File::open(path)
        .and_then(|file| file.take(most.saturating_add(1)).read_to_end(&mut read))
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(read)
}
