//! Rows of a trace's file or of standard input, whatever its kind.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;

use anyhow::{Result, bail};

use super::row::{RowVisitor, TraceReading};
use super::trace::{FileTraces, TraceBuilder};
use super::{history, log};
use crate::output::is_stream;

/// Larger files are rejected.
const LARGEST_FILE: u64 = 2 << 30;

/// Reads the rows of a file, or of standard input, in order; with call stacks if they are wanted.
pub(super) fn rows(path: &Path, with_stacks: bool, each: RowVisitor<'_>) -> Result<TraceReading> {
    if is_stream(path) {
        let stdin = std::io::stdin().lock();
        return rows_of(stdin.take(LARGEST_FILE + 1), with_stacks, each);
    }
    let file = File::open(path)?;
    let len_bytes = file.metadata()?.len();
    if len_bytes > LARGEST_FILE {
        bail!("it has {len_bytes} bytes; the maximum is {LARGEST_FILE}\ntry: a shorter trace");
    }
    rows_of(file.take(LARGEST_FILE + 1), with_stacks, each)
}

/// Reads the traces of all devices.
pub(super) fn traces(path: &Path) -> Result<FileTraces> {
    let mut making = TraceBuilder::default();
    let reading = rows(path, false, &mut |row| making.row(row))?;
    Ok(FileTraces {
        devices: making.finish(),
        notes: reading.notes(),
    })
}

/// The same rows of any input, up to the length at which it was cut.
fn rows_of<R: Read>(
    input: std::io::Take<R>,
    with_stacks: bool,
    each: RowVisitor<'_>,
) -> Result<TraceReading> {
    let mut reader = BufReader::new(input);
    let reading = match reader.fill_buf()?.first() {
        // Pickles of protocol 2 and later begin with this byte.
        Some(0x80) => {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes)?;
            history::read(&bytes, with_stacks, each)
        }
        // Earlier ones with a container or a name.
        Some(b'(' | b'}' | b']' | b'c') => bail!(
            "it is a pickle of protocol 0 or 1, or no trace\n\
             try: pickle.dump(snapshot, file, protocol=4)"
        ),
        _ => log::read(&mut reader, each),
    }?;
    if reader.get_ref().limit() == 0 {
        bail!("it has more than {LARGEST_FILE} bytes, the maximum\ntry: a shorter trace");
    }
    Ok(reading)
}
