//! Order and choice of the processes that are shown.

use std::cmp::Reverse;

use fercuda_ledger::{DeviceSnapshot, LedgerSnapshot};

/// The longest text that processes are filtered by.
pub(super) const FILTER_CHARS: usize = 64;

/// What processes are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProcessOrder {
    /// Their start, the oldest first.
    Start,
    /// Live memory, the most first.
    Live,
    /// The peak of live memory, the highest first.
    Peak,
    /// The pool's physical memory, the most first.
    Pool,
    /// Memory that the driver allocated, the most first.
    Governed,
    /// Name, then PID.
    Name,
    /// PID.
    Pid,
}

impl ProcessOrder {
    /// The one that the key `s` switches to.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Start => Self::Live,
            Self::Live => Self::Peak,
            Self::Peak => Self::Pool,
            Self::Pool => Self::Governed,
            Self::Governed => Self::Name,
            Self::Name => Self::Pid,
            Self::Pid => Self::Start,
        }
    }

    /// Its name, as the option `--sort` takes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Live => "live",
            Self::Peak => "peak",
            Self::Pool => "pool",
            Self::Governed => "governed",
            Self::Name => "name",
            Self::Pid => "pid",
        }
    }

    /// Sorts the devices of processes. Equal ones are in the order of their start.
    pub(super) fn sort(self, rows: &mut [(&LedgerSnapshot, &DeviceSnapshot)]) {
        rows.sort_by_key(|(process, device)| {
            (process.begun_at_unix_ns, process.pid, device.device)
        });
        let most = |of: fn(&DeviceSnapshot) -> u64| {
            move |row: &(&LedgerSnapshot, &DeviceSnapshot)| Reverse(of(row.1))
        };
        match self {
            Self::Start => {}
            Self::Live => rows.sort_by_key(most(|it| it.live_bytes)),
            Self::Peak => rows.sort_by_key(most(|it| it.peak_bytes)),
            Self::Pool => rows.sort_by_key(most(|it| it.pooled_bytes)),
            Self::Governed => rows.sort_by_key(most(DeviceSnapshot::governed_bytes)),
            Self::Name => {
                rows.sort_by(|(a, _), (b, _)| (&a.program, a.pid).cmp(&(&b.program, b.pid)))
            }
            Self::Pid => rows.sort_by_key(|(process, _)| process.pid),
        }
    }
}

/// Whether a process's name, or a tenant's of it, contains a text, in upper or lower case.
pub(super) fn matches(process: &LedgerSnapshot, filter: &str) -> bool {
    let filter = filter.to_lowercase();
    let contains = |name: &str| name.to_lowercase().contains(&filter);
    contains(&process.program) || process.tenants.iter().any(|tenant| contains(&tenant.name))
}
