//! Two threads and one block of another process: one thread closes it, and while it waits for the
//! block's last use the other opens it again, or closes it first.
//!
//! The other process is this one: a slab is allocated from the driver, or memory that can be
//! exported, and shares of its blocks are created in the folder of ledgers. A thread answers for
//! the owner, also with what no owner answers.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::*;
use fercuda_governor::{CaptureKey, ContextId, Governor, GovernorConfig};
use fercuda_ledger::{
    DescriptorBatch, DescriptorRequest, Folder, Ledger, OfferedShare, Share, ShareListener,
    ShareSource, Tenant,
};

const BLOCK: u64 = 1 << 20;
/// No step here takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

macro_rules! ok {
    ($driver:ident.$name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: live pointers of the right kind.
        assert_eq!(unsafe { $driver.$name($($arg),*) }.unwrap(), CUresult::CUDA_SUCCESS)
    };
}

/// What the shared memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Slab,
    Mapped,
}

/// What the owner of mapped memory answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Right,
    /// One piece of two.
    TooLittle,
    /// The pieces over and over.
    TooMuch,
    /// A size that is not the memory's.
    OtherSize,
    /// Descriptors of something else.
    OtherFile,
    /// None.
    Nothing,
}

/// Two blocks, both of them shared, of one slab or over two handles.
struct Shared {
    driver: &'static Driver,
    governor: Governor,
    folder: Arc<Folder>,
    memory: Memory,
    slab: u64,
    offered: Vec<OfferedShare>,
    context: CUcontext,
    id: ContextId,
    owner: Option<(Arc<ShareListener>, JoinHandle<()>)>,
    _root: tempfile::TempDir,
    _one: MutexGuard<'static, ()>,
}

/// The physical memory of two handles, each the size of the two blocks.
fn handles(driver: &'static Driver) -> [u64; 2] {
    [0, 1].map(|_| {
        let properties = CUmemAllocationProp {
            r#type: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: FD,
            location: CUmemLocation {
                r#type: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: 0,
            },
            ..Default::default()
        };
        let mut handle = 0;
        ok!(driver.cuMemCreate(&mut handle, 2 * BLOCK as usize, &properties, 0));
        handle
    })
}

const FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn descriptor(driver: &'static Driver, handle: u64) -> OwnedFd {
    let mut raw = -1i32;
    ok!(driver.cuMemExportToShareableHandle((&raw mut raw).cast(), handle, FD, 0));
    // SAFETY: the driver has just made it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

fn batch(
    driver: &'static Driver,
    handles: [u64; 2],
    request: &DescriptorRequest,
    kind: Answer,
) -> Option<DescriptorBatch> {
    let bytes = 2 * BLOCK;
    // One by one.
    let at = request.first as usize % 2;
    let mut piece = (bytes, descriptor(driver, handles[at]));
    let mut left = 1 - at as u64;
    match kind {
        Answer::Right => {}
        Answer::TooLittle => left = 0,
        Answer::TooMuch => left = 1,
        Answer::OtherSize => piece.0 = bytes / 2,
        Answer::OtherFile => piece.1 = File::open("/dev/null").unwrap().into(),
        Answer::Nothing => return None,
    }
    Some(DescriptorBatch {
        pieces: vec![piece],
        left,
    })
}

impl Shared {
    fn new(memory: Memory) -> Shared {
        Shared::answering(memory, Answer::Right)
    }

    fn answering(memory: Memory, kind: Answer) -> Shared {
        // One process has one device.
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let driver: &'static Driver = Box::leak(Box::new(fercuda_softgpu::driver()));
        let root = tempfile::tempdir().unwrap();
        let folder = Arc::new(Folder::at(&root.path().join("ledgers")).unwrap());
        let (ledger, warning) = Ledger::open_in(&folder, None);
        assert!(warning.is_none(), "{warning:?}");
        ok!(driver.cuInit(0));
        let (mut context, mut slab) = (CUcontext::NULL, 0);
        ok!(driver.cuCtxCreate_v2(&mut context, 0, 0));
        ok!(driver.cuMemAlloc_v2(&mut slab, 2 * BLOCK as usize));
        let path = ledger.path().unwrap();
        let owner = (memory == Memory::Mapped).then(|| {
            let handles = handles(driver);
            let listener = Arc::new(ShareListener::create(&folder, path).unwrap());
            let own = listener.clone();
            let thread = std::thread::spawn(move || {
                while let Some(asking) = own.accept() {
                    asking.serve(PATIENCE, |request| batch(driver, handles, request, kind));
                }
                for handle in handles {
                    ok!(driver.cuMemRelease(handle));
                }
            });
            (listener, thread)
        });
        // The mapped blocks lie on either side of the boundary between the handles.
        let share = |block| match memory {
            Memory::Slab => Share {
                source: ShareSource::Handle([7; 64]),
                offset_bytes: block * BLOCK,
                bytes: BLOCK,
                whole_bytes: 2 * BLOCK,
            },
            Memory::Mapped => Share {
                source: ShareSource::Descriptors,
                offset_bytes: block * BLOCK,
                bytes: BLOCK,
                whole_bytes: 4 * BLOCK,
            },
        };
        let offered = [0, 1].map(|block| folder.share(&share(block), path).unwrap());
        let offered = offered.into_iter().collect();
        let governor = Governor::new(driver, ledger, GovernorConfig::default());
        let (id, _) = governor.context(context).unwrap();
        Shared {
            driver,
            governor,
            folder,
            memory,
            slab,
            offered,
            context,
            id,
            owner,
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

    fn try_open(&self, block: usize) -> Option<Result<u64, CUresult>> {
        let tenant = || Tenant::OTHERS;
        let current = (self.id, 0);
        let open = |_| Ok(self.slab);
        let handle = self.handle(block);
        self.governor.import(&handle, 0, current, tenant, open)
    }

    fn open(&self, block: usize) -> u64 {
        let address = self.try_open(block).unwrap().unwrap();
        let begin = address - block as u64 * BLOCK;
        assert!(self.memory == Memory::Mapped || begin == self.slab);
        address
    }

    /// Whether the driver has memory at an address.
    fn is_mapped(&self, address: u64) -> bool {
        let (mut base, mut bytes) = (0, 0);
        let driver = self.driver;
        // SAFETY: both outlive the call.
        let asked = unsafe { driver.cuMemGetAddressRange_v2(&mut base, &mut bytes, address) };
        asked.unwrap() == CUresult::CUDA_SUCCESS
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
        if let Some((listener, thread)) = self.owner.take() {
            listener.stop();
            thread.join().unwrap();
        }
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
    for memory in [Memory::Slab, Memory::Mapped] {
        opened_again_while_closed(memory);
    }
}

fn opened_again_while_closed(memory: Memory) {
    let mut shared = Shared::new(memory);
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
    let shared = Shared::new(Memory::Slab);
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

#[test]
fn a_mapped_block_is_at_its_offset_and_gone_when_it_is_closed() {
    let mut shared = Shared::new(Memory::Mapped);
    let (one, other) = (shared.open(0), shared.open(1));
    assert_eq!(shared.open(1), other);
    let driver = shared.driver;
    // The whole is mapped twice: what is written by one is read by the other.
    ok!(driver.cuMemsetD8_v2(one + BLOCK + 5, 0x5a, 3));
    let mut read = [0u8; 5];
    ok!(driver.cuMemcpyDtoH_v2(read.as_mut_ptr().cast(), other + 4, 5));
    assert_eq!(read, [0, 0x5a, 0x5a, 0x5a, 0]);
    // Over the boundary of the two handles too.
    ok!(driver.cuMemsetD8_v2(one + 2 * BLOCK - 5, 1, 10));
    let governor = &shared.governor;
    assert!(governor.is_in_imported_memory(one + 4 * BLOCK - 1));
    assert!(governor.imported(one + BLOCK - 1).is_some());
    assert!(governor.imported(one + BLOCK).is_none());
    for opens in [1, 0] {
        assert!(shared.is_mapped(other));
        let closed = governor.close_import(other);
        assert_eq!(closed, Some(CUresult::CUDA_SUCCESS), "{opens}");
    }
    assert!(!shared.is_mapped(other) && shared.is_mapped(one));
    assert_eq!(governor.close_import(other), None);
    assert!(!shared.is_open_somewhere(1) && shared.is_open_somewhere(0));
}

#[test]
fn a_mapped_block_closed_during_a_capture_stays_mapped_until_that_ends() {
    let mut shared = Shared::new(Memory::Mapped);
    let one = shared.open(0);
    let governor = &shared.governor;
    let capture = CaptureKey::new(CUstream::NULL, false);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let done = || CUresult::CUDA_SUCCESS;
    governor.begin_capture(capture, (shared.id, mode), done);
    let closed = governor.close_import(one);
    assert_eq!(closed, Some(CUresult::CUDA_SUCCESS));
    governor.end_lingering();
    assert!(shared.number(one).is_none() && shared.is_mapped(one));
    governor.end_capture(capture, done);
    governor.end_lingering();
    assert!(!shared.is_mapped(one) && !shared.is_open_somewhere(0));
}

#[test]
fn owners_that_answer_wrongly_or_are_gone_get_nothing_mapped() {
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let kinds = [
        Answer::TooLittle,
        Answer::TooMuch,
        Answer::OtherSize,
        Answer::OtherFile,
        Answer::Nothing,
    ];
    for kind in kinds {
        let mut shared = Shared::answering(Memory::Mapped, kind);
        // The folder of shares stays open.
        let before = open_files() + 1;
        for _ in 0..3 {
            let opened = shared.try_open(0);
            assert!(!matches!(opened, Some(Ok(_))), "{kind:?}: {opened:?}");
        }
        // The owner's thread may be about to close its end.
        until(|| open_files() <= before);
        assert!(!shared.is_open_somewhere(0), "{kind:?}");
    }
    let mut shared = Shared::new(Memory::Mapped);
    if let Some((listener, _)) = &shared.owner {
        listener.stop();
    }
    assert_eq!(shared.try_open(0), None);
    assert!(!shared.is_open_somewhere(0));
}
