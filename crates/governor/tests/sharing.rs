//! Two threads and one block of another process: one thread closes it, and while it waits for the
//! block's last use the other opens it again, or closes it first.
//!
//! The other process is this one: a slab is allocated from the driver, and shares of its blocks are
//! created in the folder of ledgers.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::*;
use fercuda_governor::{CaptureKey, ContextId, Governor, GovernorConfig};
use fercuda_ledger::{Folder, Ledger, OfferedShare, Share, Tenant};

const BLOCK: u64 = 1 << 20;
/// No step here takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

macro_rules! ok {
    ($driver:ident.$name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: live pointers of the right kind.
        assert_eq!(unsafe { $driver.$name($($arg),*) }.unwrap(), CUresult::CUDA_SUCCESS)
    };
}

/// A slab of two blocks, both of them shared.
struct Shared {
    driver: &'static Driver,
    governor: Governor,
    folder: Folder,
    slab: u64,
    offered: Vec<OfferedShare>,
    context: CUcontext,
    id: ContextId,
    _root: tempfile::TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Shared {
    fn new() -> Shared {
        // One process has one device.
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let driver: &'static Driver = Box::leak(Box::new(fercuda_softgpu::driver()));
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(&root.path().join("ledgers")).unwrap();
        let (ledger, warning) = Ledger::open_in(&folder, None);
        assert!(warning.is_none(), "{warning:?}");
        ok!(driver.cuInit(0));
        let (mut context, mut slab) = (CUcontext::NULL, 0);
        ok!(driver.cuCtxCreate_v2(&mut context, 0, 0));
        ok!(driver.cuMemAlloc_v2(&mut slab, 2 * BLOCK as usize));
        let share = |block| Share {
            handle: [7; 64],
            offset_bytes: block * BLOCK,
            bytes: BLOCK,
            whole_bytes: 2 * BLOCK,
        };
        let path = ledger.path().unwrap();
        let offered = [0, 1].map(|block| folder.share(&share(block), path).unwrap());
        let offered = offered.into_iter().collect();
        let governor = Governor::new(driver, ledger, GovernorConfig::default());
        let (id, _) = governor.context(context).unwrap();
        Shared {
            driver,
            governor,
            folder,
            slab,
            offered,
            context,
            id,
            _root: root,
            _one: one,
        }
    }

    /// The handle by which a block is passed on, in the layout of the README.
    fn handle(&self, block: usize) -> CUipcMemHandle {
        let mut bytes = Vec::from(*b"feRcuIPC");
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(self.offered[block].name.0);
        bytes.extend((block as u64 * BLOCK).to_le_bytes());
        bytes.extend(BLOCK.to_le_bytes());
        bytes.resize(64, 0);
        let mut handle = CUipcMemHandle::default();
        for (to, from) in handle.reserved.iter_mut().zip(bytes) {
            *to = from as _;
        }
        handle
    }

    fn open(&self, block: usize) -> u64 {
        let tenant = || Tenant::OTHERS;
        let current = (self.id, 0);
        let open = |_| Ok(self.slab);
        let opened = self
            .governor
            .import(&self.handle(block), 0, current, tenant, open);
        let address = opened.unwrap().unwrap();
        assert_eq!(address, self.slab + block as u64 * BLOCK);
        address
    }

    /// Its buffer id here, if a block is open.
    fn number(&self, address: u64) -> Option<u64> {
        self.governor.imported(address).map(|it| it.buffer)
    }

    /// Queues work that ends when it is released.
    fn queue(&self, work: &'static Work) {
        unsafe extern "C" fn run(work: *mut c_void) {
            // SAFETY: the pointer given by `queue`, which is valid forever.
            let work = unsafe { &*work.cast::<Work>() };
            work.has_begun.store(true, Release);
            // Longer than any test waits for anything; nothing may unwind here.
            let begun = Instant::now();
            while !work.may_end.load(Acquire) && begun.elapsed() < 2 * PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let driver = self.driver;
        let data = (&raw const *work).cast_mut().cast();
        ok!(driver.cuLaunchHostFunc(CUstream::NULL, Some(run), data));
    }

    /// Whether a block is open in some process, as its owner would find out.
    fn is_open_somewhere(&mut self, block: usize) -> bool {
        let offered = self.offered.remove(block);
        let lingering = self.folder.withdraw(offered);
        lingering.is_some_and(|it| !it.is_over())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let driver = self.driver;
        ok!(driver.cuCtxDestroy_v2(self.context));
    }
}

/// Work of a stream.
#[derive(Default)]
struct Work {
    has_begun: AtomicBool,
    may_end: AtomicBool,
}

fn work() -> &'static Work {
    Box::leak(Box::default())
}

fn until(done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Time for a thread to reach its wait.
fn a_while() {
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn a_block_that_is_opened_again_while_it_is_closed_stays_open() {
    let mut shared = Shared::new();
    let (one, _other) = (shared.open(0), shared.open(1));
    let number = shared.number(one).unwrap();
    let busy = work();
    shared.queue(busy);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| shared.governor.close_import(one));
        until(|| busy.has_begun.load(Acquire));
        a_while();
        assert!(!closing.is_finished());
        assert_eq!(shared.open(0), one);
        busy.may_end.store(true, Release);
        assert_eq!(closing.join().unwrap(), Some(CUresult::CUDA_SUCCESS));
    });
    assert_eq!(shared.number(one), Some(number));
    assert!(shared.is_open_somewhere(0));
    let closed = shared.governor.close_import(one);
    assert_eq!(closed, Some(CUresult::CUDA_SUCCESS));
    assert_eq!(shared.number(one), None);
    assert_eq!(shared.governor.close_import(one), None);
}

#[test]
fn a_block_that_was_closed_and_reopened_meanwhile_is_waited_for_again() {
    let shared = Shared::new();
    let (one, _other) = (shared.open(0), shared.open(1));
    let number = shared.number(one).unwrap();
    let (first, second) = (work(), work());
    shared.queue(first);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| shared.governor.close_import(one));
        until(|| first.has_begun.load(Acquire));
        a_while();
        // While anything captures no thread waits; so it is closed here first.
        let capture = CaptureKey::new(CUstream::NULL, false);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let done = || CUresult::CUDA_SUCCESS;
        shared
            .governor
            .begin_capture(capture, (shared.id, mode), done);
        let closed = shared.governor.close_import(one);
        assert_eq!(closed, Some(CUresult::CUDA_SUCCESS));
        assert_eq!(shared.number(one), None);
        assert_eq!(shared.open(0), one);
        assert_ne!(shared.number(one), Some(number));
        shared.governor.end_capture(capture, done);
        assert!(!shared.governor.anything_captures());
        // Work that uses the block that is open now.
        shared.queue(second);
        first.may_end.store(true, Release);
        until(|| second.has_begun.load(Acquire));
        a_while();
        assert!(!closing.is_finished());
        assert!(shared.number(one).is_some());
        second.may_end.store(true, Release);
        assert_eq!(closing.join().unwrap(), Some(CUresult::CUDA_SUCCESS));
    });
    assert_eq!(shared.number(one), None);
}
