//! Memory from an allocator of the program, in a session.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and its allocators vouch for what they give"
)]

mod bench;
mod lending;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bench::Bench;
use fercuda_cuda::{DeviceAddr, DeviceBuffer, Stream};
use fercuda_runtime::{
    Dtype, Error, GraphBudget, GraphKey, Layout, MemoryAllocator, RecordOptions, Regime, Runtime,
    Session, SessionConfig,
};
use lending::Slab;

type Given = Result<DeviceAddr, Box<dyn StdError + Send + Sync>>;

/// An allocator of two functions, which counts its frees.
struct Calls<A, F> {
    allocate: A,
    free: F,
    frees: AtomicU64,
}

// SAFETY: those of this file return memory of the device that they hold, or addresses that the
// session refuses before any use.
unsafe impl<A, F> MemoryAllocator for Calls<A, F>
where
    A: Fn(u64, &Stream) -> Given + Send + Sync,
    F: Fn(DeviceAddr, Option<&Stream>) + Send + Sync,
{
    fn allocate(&self, bytes: u64, alignment: u64, stream: &Stream) -> Given {
        assert_eq!(alignment, 256);
        (self.allocate)(bytes, stream)
    }

    fn free(&self, address: DeviceAddr, _: u64, stream: Option<&Stream>) {
        self.frees.fetch_add(1, SeqCst);
        (self.free)(address, stream);
    }
}

fn calls<A, F>(allocate: A, free: F) -> Arc<Calls<A, F>> {
    let frees = AtomicU64::new(0);
    Arc::new(Calls {
        allocate,
        free,
        frees,
    })
}

fn open(runtime: &Runtime, name: &str, allocator: Arc<dyn MemoryAllocator>) -> Session {
    let config = SessionConfig::default();
    runtime
        .session_with_allocator(name, config, allocator)
        .unwrap()
}

fn bytes(len: u64) -> Layout {
    Layout::contiguous(Dtype::U8, &[len]).unwrap()
}

/// Memory from the driver, by its address, until it is freed.
type Held = Arc<Mutex<HashMap<u64, DeviceBuffer<u8>>>>;

/// An allocator that calls the driver each time.
fn direct(held: &Held) -> Arc<dyn MemoryAllocator> {
    let (from, to) = (held.clone(), held.clone());
    calls(
        move |bytes, stream: &Stream| {
            let memory = DeviceBuffer::alloc_ordered(stream, bytes as usize)?;
            let address = memory.address();
            to.lock().unwrap().insert(address.0, memory);
            Ok(address)
        },
        move |address: DeviceAddr, stream: Option<&Stream>| {
            assert!(stream.is_some());
            drop(from.lock().unwrap().remove(&address.0).unwrap());
        },
    )
}

#[test]
fn memory_of_a_program_allocator_is_counted_and_freed_once() {
    let bench = Bench::new();
    let held = Held::default();
    let config = SessionConfig {
        limit_bytes: Some(5000),
    };
    let session = bench
        .runtime
        .session_with_allocator("own", config, direct(&held));
    let session = session.unwrap();
    let id = session.alloc(bytes(3000), Regime::Callbacks).unwrap();
    assert_eq!(session.regime(id).unwrap(), Regime::Callbacks);
    assert_eq!(
        (session.held_bytes(), held.lock().unwrap().len()),
        (3000, 1)
    );
    // The pool's block, charged to the session that called; and nothing else.
    let of_ledger = bench.runtime.holders();
    let of_ledger = of_ledger.iter().find(|it| it.tenant == "own").unwrap();
    assert_eq!(
        (of_ledger.pooled_bytes, of_ledger.governed_bytes),
        (3072, 0)
    );
    let refused = session.alloc(bytes(2001), Regime::Callbacks).unwrap_err();
    assert!(matches!(refused, Error::Limit(_)), "{refused}");
    let none = session.alloc(bytes(0), Regime::Callbacks).unwrap();
    assert_eq!(session.regime(none).unwrap(), Regime::Callbacks);
    assert_eq!(held.lock().unwrap().len(), 1, "it must not be called");
    let value: Vec<u8> = (0..3000).map(|at| at as u8).collect();
    session.upload(id, &value).unwrap();
    let view = session
        .view(id, |it| Ok(it.slice(0, 1000..2000, 1)?))
        .unwrap();
    session.free(id).unwrap();
    assert_eq!(session.download::<u8>(view).unwrap(), value[1000..2000]);
    assert_eq!(
        (session.held_bytes(), held.lock().unwrap().len()),
        (3000, 1)
    );
    session.free(view).unwrap();
    assert_eq!((session.held_bytes(), held.lock().unwrap().len()), (0, 0));
    // The rest is freed with the session, in the order of teardown.
    for _ in 0..3 {
        session.alloc(bytes(1000), Regime::Callbacks).unwrap();
    }
    session.close().unwrap();
    assert_eq!((session.held_bytes(), held.lock().unwrap().len()), (0, 0));
    let none = bench.session("none");
    let refused = none.alloc(bytes(9), Regime::Callbacks).unwrap_err();
    assert!(matches!(refused, Error::NoAllocator { .. }), "{refused}");
    assert_eq!(none.held_bytes(), 0);
    none.close().unwrap();
}

/// What an allocator does once instead of the right thing.
type Wrong = Box<dyn Fn() -> Given + Send>;

/// Addresses of no memory.
const ODD: DeviceAddr = DeviceAddr(1 << 40 | 8);
const LAST: DeviceAddr = DeviceAddr(u64::MAX - 255);

/// Panics when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("what was thrown throws again");
        }
    }
}

#[test]
fn addresses_from_an_allocator_are_validated() {
    let bench = Bench::new();
    let slab = Slab::new(&bench.runtime.context(), 4096);
    let next = Arc::new(Mutex::new(None::<Wrong>));
    let (wrong, good, back) = (next.clone(), slab.clone(), slab.clone());
    let allocator = calls(
        move |bytes, stream: &Stream| {
            let wrong = wrong.lock().unwrap().take();
            wrong.map_or_else(|| good.allocate(bytes, 256, stream), |wrong| wrong())
        },
        move |address: DeviceAddr, stream: Option<&Stream>| {
            if address != ODD && address != LAST {
                back.free(address, 512, stream);
            }
            panic!("a free that panics ends there");
        },
    );
    let session = open(&bench.runtime, "wrong", allocator.clone());
    let kept = session.alloc(bytes(512), Regime::Callbacks).unwrap();
    let there = session.export(kept).unwrap().address;
    let over = DeviceAddr(there.0 + 256);
    let mut frees = 0_u64;
    let mut refused = |what: Wrong, was_given_back: bool, says: &[&str]| {
        *next.lock().unwrap() = Some(what);
        let error = session.alloc(bytes(512), Regime::Callbacks).unwrap_err();
        assert!(matches!(error, Error::Allocator { .. }), "{error}");
        for part in ["wrong", "512 B", "try: "].iter().chain(says) {
            assert!(error.to_string().contains(part), "{error} lacks {part}");
        }
        frees += u64::from(was_given_back);
        assert_eq!(allocator.frees.load(SeqCst), frees, "{error}");
        assert_eq!(session.held_bytes(), 512);
    };
    let thrown = || -> Given { std::panic::panic_any(Grenade) };
    refused(Box::new(|| Err("no room".into())), false, &["no room"]);
    refused(Box::new(|| Ok(DeviceAddr(0))), false, &["address 0"]);
    refused(Box::new(|| panic!("by chance")), false, &["by chance"]);
    refused(Box::new(thrown), false, &["panicked"]);
    refused(Box::new(move || Ok(there)), false, &["in use", "not freed"]);
    refused(Box::new(move || Ok(over)), false, &["in use", "not freed"]);
    let odd = ["0x10000000008", "multiple of 256", "was freed"];
    refused(Box::new(|| Ok(ODD)), true, &odd);
    refused(Box::new(|| Ok(LAST)), true, &["end of the address space"]);
    // None of that prevents a correct allocation.
    let id = session.alloc(bytes(512), Regime::Callbacks).unwrap();
    session.upload(id, &[5u8; 512]).unwrap();
    assert_eq!(session.download::<u8>(id).unwrap(), [5; 512]);
    session.close().unwrap();
    assert_eq!(slab.given(), 0);
    assert_eq!(allocator.frees.load(SeqCst), frees + 2);
}

/// Blocks the stream until the returned sender sends.
fn held(stream: &Stream) -> Sender<()> {
    let (go_on, waits) = channel();
    let until_released = move || waits.recv_timeout(Duration::from_secs(60)).is_ok();
    let held = move || assert!(until_released(), "it was waited for");
    stream.host_callback(held).unwrap();
    go_on
}

#[test]
fn memory_is_reused_behind_the_work_of_all_streams_without_waiting() {
    let bench = Bench::new();
    let slab = Slab::new(&bench.runtime.context(), 1024);
    let session = open(&bench.runtime, "order", slab.clone());
    let other = Stream::new(&bench.runtime.context()).unwrap();
    let first = session.alloc(bytes(1024), Regime::Callbacks).unwrap();
    let mut memory = session.memory(first).unwrap();
    let go_on = held(&other);
    memory.fill_bytes(7, &other).unwrap();
    session.free(first).unwrap();
    assert_eq!(slab.given(), 1, "it still has an owner");
    drop(memory);
    assert_eq!(slab.given(), 0);
    // The same memory, which must be 1 in the end.
    let second = session.alloc(bytes(1024), Regime::Callbacks).unwrap();
    session.fill_bytes(second, 1).unwrap();
    // All of that was freed before the other stream has done anything.
    go_on.send(()).unwrap();
    assert_eq!(session.download::<u8>(second).unwrap(), [1; 1024]);
    other.synchronize().unwrap();
    // And another stream, which gets memory last used in the session's stream.
    let go_on = held(session.stream());
    session.fill_bytes(second, 2).unwrap();
    session.free(second).unwrap();
    let third = session.alloc(bytes(1024), Regime::Callbacks).unwrap();
    let mut memory = session.memory(third).unwrap();
    memory.fill_bytes(3, &other).unwrap();
    go_on.send(()).unwrap();
    assert_eq!(memory.to_vec(&other).unwrap(), [3; 1024]);
    session.synchronize().unwrap();
    assert_eq!(memory.to_vec(&other).unwrap(), [3; 1024]);
    drop(memory);
    session.close().unwrap();
    assert_eq!(slab.given(), 0);
}

#[test]
fn an_allocator_may_use_its_session() {
    let bench = Bench::new();
    let slab = Slab::new(&bench.runtime.context(), 1 << 16);
    let own = Arc::new(Mutex::new(None::<Session>));
    let log = Arc::new(Mutex::new(Vec::new()));
    let session_of = |own: &Arc<Mutex<Option<Session>>>| {
        let own = own.clone();
        move || own.lock().unwrap().clone()
    };
    let (in_allocate, in_free) = (session_of(&own), session_of(&own));
    let (given, back, noted) = (slab.clone(), slab.clone(), log.clone());
    let allocator = calls(
        move |bytes: u64, stream: &Stream| {
            if let Some(session) = in_allocate() {
                match bytes {
                    // Memory of another regime, and its work.
                    1000 => {
                        let id = session.buffer(&[4], &[1u8, 2, 3, 4])?;
                        assert_eq!(session.download::<u8>(id)?, [1, 2, 3, 4]);
                        session.free(id)?;
                    }
                    // Its own, which would recurse for ever.
                    1001 => {
                        let error = session.alloc(self::bytes(1001), Regime::Callbacks);
                        return Err(error.unwrap_err().into());
                    }
                    1002 => session.close()?,
                    _ => {}
                }
            }
            given.allocate(bytes.next_multiple_of(256), 256, stream)
        },
        move |address: DeviceAddr, stream: Option<&Stream>| {
            back.free(address, 1024, stream);
            let Some(session) = in_free() else { return };
            let said = session.buffers().map(|ids| ids.len());
            noted.lock().unwrap().push(said.ok());
            session.close().unwrap();
        },
    );
    let session = open(&bench.runtime, "recursive", allocator.clone());
    *own.lock().unwrap() = Some(session.clone());
    session.alloc(bytes(1000), Regime::Callbacks).unwrap();
    let refused = session.alloc(bytes(1001), Regime::Callbacks).unwrap_err();
    assert!(refused.to_string().contains("recursively"), "{refused}");
    // It was closed meanwhile, with its buffer; memory that came too late is freed too.
    let refused = session.alloc(bytes(1002), Regime::Callbacks).unwrap_err();
    assert!(matches!(refused, Error::Ended { .. }), "{refused}");
    assert_eq!((slab.given(), session.held_bytes()), (0, 0));
    assert_eq!(*log.lock().unwrap(), [None, None]);
    log.lock().unwrap().clear();
    let session = open(&bench.runtime, "closes", allocator.clone());
    *own.lock().unwrap() = Some(session.clone());
    let ids = [(); 3].map(|()| session.alloc(bytes(1000), Regime::Callbacks).unwrap());
    session.free(ids[1]).unwrap();
    assert_eq!((slab.given(), session.held_bytes()), (0, 0));
    assert_eq!(*log.lock().unwrap(), [Some(2), None, None]);
    own.lock().unwrap().take();
    assert_eq!(allocator.frees.load(SeqCst), 5);
}

#[test]
fn memory_with_another_owner_outlives_its_session_and_is_freed_later() {
    let bench = Bench::new();
    let held = Held::default();
    let lent = || held.lock().unwrap().len();
    let session = open(&bench.runtime, "outlived", direct(&held));
    let graphs = session.graphs::<GraphKey>(GraphBudget::default()).unwrap();
    let [captured, kept, left] =
        [(); 3].map(|()| session.alloc(bytes(64), Regime::Callbacks).unwrap());
    let key = GraphKey {
        generation: 0,
        kind: 1,
        bucket: 1,
        words: [1, 0],
    };
    let mut memory = session.memory(captured).unwrap();
    let recorded = graphs.record(key, RecordOptions::default(), |recording| {
        memory.fill_bytes(9, recording.stream())?;
        let refused = session.alloc(bytes(64), Regime::Callbacks);
        session.free(refused.unwrap())?;
        Ok(())
    });
    recorded.unwrap();
    drop(memory);
    session.free(captured).unwrap();
    assert_eq!(lent(), 3, "the graph has it");
    assert!(graphs.replay(&key).unwrap());
    let memory = session.memory(kept).unwrap();
    session.upload(left, &[1u8; 64]).unwrap();
    let begun = bench.runtime.reboot().unwrap();
    assert_eq!(begun.sessions, 1);
    assert_eq!(lent(), 1, "it still has an owner");
    drop(memory);
    assert_eq!((lent(), session.held_bytes()), (0, 0));
}

#[test]
fn threads_that_allocate_while_a_session_ends_leave_nothing() {
    let bench = Bench::new();
    for _ in 0..20 {
        let slab = Slab::new(&bench.runtime.context(), 1 << 16);
        let session = open(&bench.runtime, "threads", slab.clone());
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    loop {
                        let made = session.alloc(bytes(700), Regime::Callbacks);
                        let used = made.and_then(|id| {
                            session.fill_bytes(id, 1)?;
                            session.free(id)
                        });
                        match used {
                            Ok(()) => {}
                            Err(Error::Ended { .. }) => return,
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(2));
            session.close().unwrap();
        });
        assert_eq!((slab.given(), session.held_bytes()), (0, 0));
    }
}
