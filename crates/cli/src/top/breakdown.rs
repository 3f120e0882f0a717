//! Breakdown of a process's memory.

/// How a process's memory is broken down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Breakdown {
    /// By the library that allocated it.
    #[default]
    Tenant,
    /// By the stream in which it was allocated.
    Stream,
    /// By the thread that allocated it, summed over devices.
    Thread,
}

impl Breakdown {
    /// The one that the key `v` switches to.
    pub(super) fn next(self) -> Breakdown {
        match self {
            Self::Tenant => Self::Stream,
            Self::Stream => Self::Thread,
            Self::Thread => Self::Tenant,
        }
    }
}
