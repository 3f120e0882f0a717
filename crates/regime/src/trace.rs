//! Allocation trace: comma-separated values in RMM's format with two more columns, the device and
//! the tenant. `fercuda replay` reads it. Written only if `FERCUDA_TRACE` is set.
//!
//! Invariant: without a trace a call costs one load.

use std::borrow::Cow;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use fercuda_governor::{Governor, ReleasedBlock};
use fercuda_ledger::Tenant;
use fercuda_pool::PoolPlace;

use crate::{print_diagnostic, settings};

/// The file is flushed after this many lines.
const LINES_PER_FLUSH: u64 = 256;
const HEAD: &str = "Thread,Time,Action,Pointer,Size,Stream,Device,Tenant";
/// Characters of a tenant's name that are written.
const NAME_CHARS: usize = 64;

struct TraceFile {
    out: Mutex<TraceWriter>,
    lines: AtomicU64,
    failed: AtomicBool,
}

struct TraceWriter {
    file: BufWriter<File>,
    /// Tenants' names by index, as they are written; empty where not known yet.
    names: Vec<String>,
}

/// What the program asked for, and where.
#[derive(Clone, Copy)]
pub struct TracedRequest {
    /// The ordinal of the device.
    pub device: u32,
    /// The tenant that asked.
    pub tenant: Tenant,
    /// The size that it asked for.
    pub bytes: u64,
    /// The stream in whose order it is allocated.
    pub place: PoolPlace,
}

fn trace() -> Option<&'static TraceFile> {
    static TRACE: OnceLock<Option<Box<TraceFile>>> = OnceLock::new();
    TRACE.get_or_init(open).as_deref()
}

#[cold]
fn open() -> Option<Box<TraceFile>> {
    let named = settings::config().trace.as_ref()?;
    // Each process of a run writes its own file: the first uses the given name, others
    // append their process ID to it.
    let create = |path: &Path| -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        // Whatever the umask.
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(file)
    };
    let mut path = Cow::Borrowed(named.as_path());
    let file = create(named).or_else(|_| {
        let mut name = named.clone().into_os_string();
        name.push(format!(".{}", std::process::id()));
        path = Cow::Owned(name.into());
        create(&path)
    });
    let file = match file {
        Ok(file) => {
            // A file of that name may be of an earlier run, so it is said which one this is.
            print_diagnostic(&format!("trace of this process: {}", path.display()));
            file
        }
        Err(error) => {
            print_diagnostic(&format!(
                "cannot create the trace {}: {error}\ntry: a name that no file has",
                named.display()
            ));
            return None;
        }
    };
    let mut file = BufWriter::new(file);
    let failed = writeln!(file, "{HEAD}").is_err();
    let names = Vec::new();
    Some(Box::new(TraceFile {
        out: Mutex::new(TraceWriter { file, names }),
        lines: AtomicU64::new(0),
        failed: AtomicBool::new(failed),
    }))
}

/// Records that the program was given a block.
#[inline]
pub fn record_allocation(governor: &Governor, address: u64, request: TracedRequest) {
    if let Some(trace) = trace() {
        trace.write(governor, "allocate", address, request);
    }
}

/// Records that the program was refused a block.
#[cold]
pub fn record_failure(governor: &Governor, request: TracedRequest) {
    if let Some(trace) = trace() {
        trace.write(governor, "allocate failure", 0, request);
    }
}

/// Records that a block was freed, by the program or with its context.
#[inline]
pub fn record_free(governor: &Governor, released: &ReleasedBlock<'_>) {
    if let Some(trace) = trace() {
        let request = TracedRequest {
            device: released.device.ordinal(),
            tenant: released.tenant(),
            bytes: released.block.requested_bytes,
            place: released.place,
        };
        let address = released.block.span.address;
        trace.write(governor, "free", address, request);
    }
}

impl TraceFile {
    #[cold]
    fn write(&self, governor: &Governor, action: &str, address: u64, request: TracedRequest) {
        if self.failed.load(Relaxed) {
            return;
        }
        let stream = match request.place {
            PoolPlace::Stream(stream) => stream.0,
            PoolPlace::Anywhere => 0,
        };
        // SAFETY: it takes no argument and never fails. glibc has a function for it since
        // 2.30 only.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let since = since.unwrap_or_default();
        let (seconds, micros) = (since.as_secs(), since.subsec_micros());
        let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
        let second = seconds % 60;
        let (bytes, device) = (request.bytes, request.device);
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let TraceWriter { file, names } = &mut *out;
        let tenant = name(names, governor, request.tenant);
        let line = writeln!(
            file,
            "{thread},{hour:02}:{minute:02}:{second:02}.{micros:06},{action},{address:#x},{bytes},\
             {stream:#x},{device},{tenant}"
        );
        let full = self.lines.fetch_add(1, Relaxed) % LINES_PER_FLUSH == LINES_PER_FLUSH - 1;
        let written = line.and_then(|()| if full { file.flush() } else { Ok(()) });
        if let Err(error) = written {
            self.failed.store(true, Relaxed);
            print_diagnostic(&format!(
                "the trace is incomplete, writing to it failed: {error}"
            ));
        }
    }
}

/// A tenant's name as it is written: one line's rest, whatever is in it.
fn name<'n>(names: &'n mut Vec<String>, governor: &Governor, tenant: Tenant) -> &'n str {
    let at = tenant.index();
    if at >= names.len() {
        names.resize(at + 1, String::new());
    }
    let known = &mut names[at];
    if known.is_empty() {
        let all = governor.tenants();
        let found = all.iter().find(|(it, _)| *it == tenant);
        let full = match found {
            Some((_, name)) if tenant != Tenant::OTHERS => name,
            _ => "others",
        };
        let line_ends = |c: char| if c.is_control() { ' ' } else { c };
        known.extend(full.chars().map(line_ends).take(NAME_CHARS));
    }
    known
}

/// Flushes the lines that are still buffered.
pub(crate) fn flush() {
    if let Some(trace) = trace() {
        let mut out = trace.out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = out.file.flush() {
            print_diagnostic(&format!(
                "the trace's last lines are missing, flushing it failed: {error}"
            ));
        }
    }
}
