//! A trace of allocations, if one is wanted: lines of comma-separated values as
//! RMM writes them, which `fercuda replay` reads.
//!
//! Invariant: without a trace a call costs one load.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use fercuda_pool::PoolPlace;

use crate::{say, settings};

/// Lines are written out after so many.
const LINES: u64 = 256;

struct Trace {
    file: Mutex<BufWriter<File>>,
    lines: AtomicU64,
    failed: AtomicBool,
}

fn trace() -> Option<&'static Trace> {
    static TRACE: OnceLock<Option<Box<Trace>>> = OnceLock::new();
    TRACE.get_or_init(begin).as_deref()
}

#[cold]
fn begin() -> Option<Box<Trace>> {
    let named = settings::config().trace.as_ref()?;
    // Each process of a run writes its own: the first has the name, others
    // their number behind it.
    let open = |path: &std::path::Path| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(path)
    };
    let file = open(named).or_else(|_| {
        let mut name = named.clone().into_os_string();
        name.push(format!(".{}", std::process::id()));
        open(name.as_ref())
    });
    let file = match file {
        Ok(file) => file,
        Err(error) => {
            say(&format!(
                "cannot write a trace to {}: {error}\ntry: a name that no file has",
                named.display()
            ));
            return None;
        }
    };
    let mut file = BufWriter::new(file);
    let failed = writeln!(file, "Thread,Time,Action,Pointer,Size,Stream").is_err();
    Some(Box::new(Trace {
        file: Mutex::new(file),
        lines: AtomicU64::new(0),
        failed: AtomicBool::new(failed),
    }))
}

/// A block was given to the program.
#[inline]
pub fn allocated(address: u64, bytes: u64, place: PoolPlace) {
    if let Some(trace) = trace() {
        trace.write("allocate", address, bytes, place);
    }
}

/// A block was freed by the program.
#[inline]
pub fn freed(address: u64, bytes: u64, place: PoolPlace) {
    if let Some(trace) = trace() {
        trace.write("free", address, bytes, place);
    }
}

impl Trace {
    #[cold]
    fn write(&self, action: &str, address: u64, bytes: u64, place: PoolPlace) {
        if self.failed.load(Relaxed) {
            return;
        }
        let stream = match place {
            PoolPlace::Stream(stream) => stream.0,
            PoolPlace::Anywhere => 0,
        };
        // SAFETY: it takes nothing and fails never.
        let thread = unsafe { libc::gettid() };
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
        let full = self.lines.fetch_add(1, Relaxed) % LINES == LINES - 1;
        let written = line.and_then(|()| if full { file.flush() } else { Ok(()) });
        if let Err(error) = written {
            self.failed.store(true, Relaxed);
            say(&format!("the trace ends here: {error}"));
        }
    }
}

/// Writes out what is left.
pub(crate) fn finish() {
    if let Some(trace) = trace() {
        let mut file = trace.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.flush() {
            say(&format!("the trace's last lines are missing: {error}"));
        }
    }
}
