//! Allocation trace: comma-separated values in RMM's format, which `fercuda replay` reads.
//! Written only if `FERCUDA_TRACE` is set.
//!
//! Invariant: without a trace a call costs one load.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use fercuda_pool::PoolPlace;

use crate::{print_diagnostic, settings};

/// The file is flushed after this many lines.
const LINES_PER_FLUSH: u64 = 256;

struct TraceFile {
    file: Mutex<BufWriter<File>>,
    lines: AtomicU64,
    failed: AtomicBool,
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
    let create = |path: &std::path::Path| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(path)
    };
    let file = create(named).or_else(|_| {
        let mut name = named.clone().into_os_string();
        name.push(format!(".{}", std::process::id()));
        create(name.as_ref())
    });
    let file = match file {
        Ok(file) => file,
        Err(error) => {
            print_diagnostic(&format!(
                "cannot create the trace {}: {error}\ntry: a name that no file has",
                named.display()
            ));
            return None;
        }
    };
    let mut file = BufWriter::new(file);
    let failed = writeln!(file, "Thread,Time,Action,Pointer,Size,Stream").is_err();
    Some(Box::new(TraceFile {
        file: Mutex::new(file),
        lines: AtomicU64::new(0),
        failed: AtomicBool::new(failed),
    }))
}

/// Records that the program was given a block.
#[inline]
pub fn record_allocation(address: u64, bytes: u64, place: PoolPlace) {
    if let Some(trace) = trace() {
        trace.write("allocate", address, bytes, place);
    }
}

/// Records that the program freed a block.
#[inline]
pub fn record_free(address: u64, bytes: u64, place: PoolPlace) {
    if let Some(trace) = trace() {
        trace.write("free", address, bytes, place);
    }
}

impl TraceFile {
    #[cold]
    fn write(&self, action: &str, address: u64, bytes: u64, place: PoolPlace) {
        if self.failed.load(Relaxed) {
            return;
        }
        let stream = match place {
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
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let line = writeln!(
            file,
            "{thread},{hour:02}:{minute:02}:{second:02}.{micros:06},{action},{address:#x},{bytes},{stream:#x}"
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

/// Flushes the lines that are still buffered.
pub(crate) fn flush() {
    if let Some(trace) = trace() {
        let mut file = trace.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.flush() {
            print_diagnostic(&format!(
                "the trace's last lines are missing, flushing it failed: {error}"
            ));
        }
    }
}
