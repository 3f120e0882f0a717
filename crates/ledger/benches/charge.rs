//! Latency of a charge: each operation alone, in one thread and in several of one tenant and
//! stream.
//!
//! `cargo bench -p fercuda-ledger --bench charge`. Prints nanoseconds per operation, of one
//! thread's time; fails if adding to one counter in one thread takes more than 5 at the median.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Instant;

use fercuda_ledger::{
    EventKind, Folder, Gauge, Governed, Ledger, LedgerDevice, LedgerEvent, LedgerReader,
};

const ROUNDS: usize = 200;
const OPERATIONS: u32 = 10_000;
const LIMIT_NS: f64 = 5.0;

fn main() -> ExitCode {
    let root = std::env::temp_dir().join(format!("fercuda-charge-{}", std::process::id()));
    let folder = Folder::at(&root).expect("a folder");
    let (ledger, warning) = Ledger::open_in(&folder, None);
    assert!(warning.is_none(), "{warning:?}");
    println!("{ROUNDS} rounds of {OPERATIONS}, ns per operation: median, p99");

    let device = LedgerDevice::new(0);
    let torch = ledger.tenant("tenant 0");
    let add = print("add to a counter", &ledger, |ledger| {
        ledger.add(device, Gauge::Ready, black_box(1));
    });
    print("set a counter", &ledger, |ledger| {
        ledger.set(device, Gauge::Waiting, black_box(1));
    });
    print("govern and release", &ledger, |ledger| {
        ledger.govern(device, torch, Governed::Array, black_box(64));
        ledger.release(device, torch, Governed::Array, black_box(64));
    });
    let mut local = ledger.local(1);
    print("charge and discharge", &ledger, |_| {
        let charge = local.charge(device, torch, 7, black_box(64));
        local.discharge(charge, black_box(64));
    });
    let mut stream = 0;
    print("the same, in four streams by turns", &ledger, |_| {
        stream = (stream + 1) % 4;
        let charge = local.charge(device, torch, stream, black_box(64));
        local.discharge(charge, black_box(64));
    });
    print("the same, freed by another thread", &ledger, |_| {
        let charge = local.charge(device, torch, 7, black_box(64));
        ledger.discharge(charge, black_box(64));
    });
    print("find a known tenant", &ledger, |ledger| {
        black_box(ledger.tenant(black_box("tenant 0")));
    });
    print("record an event", &ledger, |ledger| {
        ledger.record(LedgerEvent {
            kind: EventKind::Growth,
            device,
            tenant: torch,
            bytes: black_box(64),
            address: 0,
            detail: 0,
            stream: 0,
            thread: 0,
        });
    });
    snapshots(&ledger);
    let most = thread::available_parallelism().map_or(1, usize::from);
    for threads in [2, 4, 8, 16, 32]
        .into_iter()
        .filter(|threads| *threads <= most)
    {
        let (device, torch) = (LedgerDevice::new(0), ledger.tenant("tenant 0"));
        contend("charge and discharge", threads, |number| {
            let mut local = ledger.local(number);
            move || {
                let charge = local.charge(device, torch, 7, black_box(64));
                local.discharge(charge, black_box(64));
            }
        });
        let shared: [BaselineCounters; 3] = Default::default();
        contend("the same in shared counters", threads, |_| {
            let (shared, own) = (&shared, BaselineCounters::default());
            move || {
                for line in shared.iter().chain([&own]) {
                    line.live_bytes.fetch_add(black_box(64), Relaxed);
                    line.allocs.fetch_add(1, Relaxed);
                }
                for line in shared.iter().chain([&own]) {
                    line.live_bytes.fetch_sub(black_box(64), Relaxed);
                    line.frees.fetch_add(1, Relaxed);
                }
            }
        });
    }
    std::fs::remove_dir_all(root).expect("our own folder");
    if add <= LIMIT_NS {
        return ExitCode::SUCCESS;
    }
    println!("adding to a counter takes {add:.1} ns, the limit is {LIMIT_NS}");
    ExitCode::FAILURE
}

/// Measures `operation`; prints and returns its median.
fn print(name: &str, ledger: &Ledger, mut operation: impl FnMut(&Ledger)) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            for _ in 0..OPERATIONS {
                operation(ledger);
            }
            started.elapsed().as_nanos() as f64 / f64::from(OPERATIONS)
        })
        .collect();
    let (median, p99) = figures(&mut rounds);
    println!("{name:<36} {median:8.2} {p99:8.2}");
    median
}

/// The time of a reader's snapshot, in microseconds, while no thread writes.
fn snapshots(ledger: &Ledger) {
    let path = ledger.path().expect("it has a file");
    let reader = LedgerReader::open(path).expect("our own file");
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            black_box(reader.snapshot().expect("our own file"));
            started.elapsed().as_nanos() as f64 / 1000.0
        })
        .collect();
    let (median, p99) = figures(&mut rounds);
    println!(
        "{:<36} {median:8.2} {p99:8.2} us",
        "read a snapshot, full ring"
    );
}

/// The baseline: one counter each for a device, a tenant and a stream, which all threads add to,
/// and one for the thread.
#[derive(Default)]
#[repr(align(64))]
struct BaselineCounters {
    live_bytes: AtomicU64,
    allocs: AtomicU64,
    frees: AtomicU64,
}

/// Runs the operations made by `work` in several threads at once, as of one tenant and in one
/// stream.
fn contend<F: FnMut()>(name: &str, threads: usize, work: impl Fn(u64) -> F + Sync) {
    let begin = Barrier::new(threads);
    let mut rounds: Vec<f64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads as u64)
            .map(|number| {
                let (begin, work) = (&begin, &work);
                scope.spawn(move || {
                    let mut operation = work(number);
                    let mut rounds = Vec::with_capacity(ROUNDS);
                    begin.wait();
                    for _ in 0..ROUNDS {
                        let started = Instant::now();
                        for _ in 0..OPERATIONS {
                            operation();
                        }
                        let elapsed_ns = started.elapsed().as_nanos() as f64;
                        rounds.push(elapsed_ns / f64::from(OPERATIONS));
                    }
                    rounds
                })
            })
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .flat_map(|rounds| rounds.expect("no panic"))
            .collect()
    });
    let (median, p99) = figures(&mut rounds);
    let name = format!("{name}, {threads} threads");
    println!("{name:<36} {median:8.2} {p99:8.2}");
}

/// Median and 99th percentile.
fn figures(rounds: &mut [f64]) -> (f64, f64) {
    rounds.sort_by(f64::total_cmp);
    let at = |part: f64| rounds[((rounds.len() - 1) as f64 * part) as usize];
    (at(0.5), at(0.99))
}
