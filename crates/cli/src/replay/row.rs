//! Rows of an allocation trace, and what reading one returns besides them.
//!
//! Invariant: names are stored once, and their number and total size are bounded, whatever a
//! file contains.

use std::collections::HashMap;

use anyhow::Result;

/// Tenants with a name of their own; later ones are counted under [`OTHERS`].
const TENANTS: usize = 64;
/// Bytes of a tenant's name that are kept.
const TENANT_BYTES: usize = 128;
/// Distinct call stacks that are kept, and their total size.
const STACKS: usize = 1 << 16;
const STACK_BYTES: usize = 16 << 20;
/// The tenant of rows whose own has no room.
const OTHERS: &str = "(others)";
/// Devices in one file.
pub(super) const DEVICES: u64 = 64;

/// What a row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TraceAction {
    Allocate,
    Free,
    /// An allocation that was refused; its address means nothing.
    Fail,
    /// A block that was live before the first row of its device and after the last.
    Hold,
}

/// An operation as it is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TraceRow {
    pub(super) action: TraceAction,
    /// Less than [`DEVICES`].
    pub(super) device: u32,
    pub(super) address: u64,
    /// The size in the row; may be 0 for a free.
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) thread: u64,
    /// Microseconds since the file's own origin.
    pub(super) time_us: u64,
    /// Index in [`TraceReading::tenants`].
    pub(super) tenant: u32,
    /// Index in [`TraceReading::stacks`].
    pub(super) stack: Option<u32>,
}

/// Called for each row.
pub(super) type RowVisitor<'e> = &'e mut dyn FnMut(&TraceRow) -> Result<()>;

/// How the last line of a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LastLine {
    #[default]
    Whole,
    /// It has all cells and no line end, so the last cell may be incomplete.
    Open,
    /// It is incomplete, and was left out.
    Cut,
}

/// What a file contains besides its rows.
#[derive(Debug, Default)]
pub(super) struct TraceReading {
    pub(super) tenants: Vec<String>,
    /// Call stacks, innermost frame first, one frame a line.
    pub(super) stacks: Vec<String>,
    pub(super) last_line: LastLine,
    pub(super) left_out: LeftOut,
}

/// Counts of what was read and is in no row.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// Rows without an address or a size.
    pub(super) empty_rows: u64,
    /// Events of a snapshot whose action is not known.
    pub(super) unknown_events: u64,
    /// Blocks of a snapshot on devices from [`DEVICES`] on.
    pub(super) far_blocks: u64,
    /// Whether a snapshot has no history, and its live blocks are all that was read.
    pub(super) is_without_history: bool,
}

impl TraceReading {
    /// The notes for the user on what was left out.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        match self.last_line {
            LastLine::Whole => {}
            LastLine::Open => {
                notes.push("the last line has no end; its last number may be incomplete".to_owned())
            }
            LastLine::Cut => {
                notes.push("the last line is incomplete and was left out".to_owned());
            }
        }
        let left_out = &self.left_out;
        for (number, what, why) in [
            (left_out.empty_rows, "row", "without an address or a size"),
            (left_out.unknown_events, "event", "of unknown actions"),
            (left_out.far_blocks, "block", "of devices above 63"),
        ] {
            if number > 0 {
                let what = crate::terminal::count(number as usize, what);
                notes.push(format!("{what} {why} left out"));
            }
        }
        if left_out.is_without_history {
            notes.push(
                "the snapshot has no history of allocations: only the blocks live in it are read"
                    .to_owned(),
            );
        }
        notes
    }
}

/// Stores tenants' names and call stacks.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    tenants: Vec<String>,
    tenant_numbers: HashMap<String, u32>,
    stacks: Vec<String>,
    stack_numbers: HashMap<String, u32>,
    stack_bytes: usize,
}

impl NameTable {
    /// The index of a tenant's name.
    pub(super) fn tenant(&mut self, name: &str) -> u32 {
        let name = cut(name, TENANT_BYTES);
        if let Some(number) = self.tenant_numbers.get(name) {
            return *number;
        }
        let name = match self.tenants.len() {
            len if len + 1 < TENANTS => name,
            _ => OTHERS,
        };
        let next = self.tenants.len() as u32;
        let number = *self.tenant_numbers.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.tenants.push(name.to_owned());
        }
        number
    }

    /// The index of a call stack; `None` where there is no room for it.
    pub(super) fn stack(&mut self, text: String) -> Option<u32> {
        if text.is_empty() {
            return None;
        }
        if let Some(number) = self.stack_numbers.get(&text) {
            return Some(*number);
        }
        let bytes = self.stack_bytes + text.len();
        if self.stacks.len() == STACKS || bytes > STACK_BYTES {
            return None;
        }
        self.stack_bytes = bytes;
        let number = self.stacks.len() as u32;
        self.stack_numbers.insert(text.clone(), number);
        self.stacks.push(text);
        Some(number)
    }

    /// What is stored, as the result of reading.
    pub(super) fn into_reading(self, last_line: LastLine, left_out: LeftOut) -> TraceReading {
        TraceReading {
            tenants: self.tenants,
            stacks: self.stacks,
            last_line,
            left_out,
        }
    }
}

/// The first `len_bytes` bytes of a text, or a character less.
pub(super) fn cut(text: &str, len_bytes: usize) -> &str {
    let mut end = text.len().min(len_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stored_once_and_are_bounded() {
        let mut names = NameTable::default();
        assert_eq!(names.tenant("torch"), 0);
        assert_eq!(names.tenant("torch"), 0);
        for number in 0..1000 {
            names.tenant(&format!("tenant {number}"));
        }
        let last = names.tenant(&"x".repeat(1000));
        let long = "y".repeat(STACK_BYTES / 2);
        assert_eq!(names.stack(long.clone()), Some(0));
        assert_eq!(names.stack(long), Some(0));
        assert_eq!(names.stack(String::new()), None);
        assert_eq!(names.stack("z".repeat(STACK_BYTES)), None);
        let reading = names.into_reading(LastLine::Whole, LeftOut::default());
        assert_eq!(reading.tenants.len(), TENANTS);
        assert_eq!(reading.tenants[last as usize], OTHERS);
    }
}
