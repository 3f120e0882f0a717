//! Loan state of a file.

/// The processes that borrow a file's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LoanState {
    #[default]
    No,
    /// This many processes read it.
    Readers(u32),
    /// One process writes it.
    Writer,
}
