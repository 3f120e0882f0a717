//! Time for which memory is charged to its session: until the driver has it back, whatever owns it
//! meanwhile.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and kernels are launched"
)]

mod adds;
mod bench;

use std::time::{Duration, Instant};

use adds::ADD;
use bench::Bench;
use fercuda_cuda::{Image, Launch};
use fercuda_runtime::jit::{Binary, ExprGraph as Expression};
use fercuda_runtime::{
    DispatchOptions, Dtype, Error, GraphBudget, GraphKey, Graphs, LaunchArgument, Layout,
    RecordOptions, Regime, Resident, Session, SessionConfig, TaskSet,
};

const MIB: u64 = 1 << 20;

fn bytes(len: u64) -> Layout {
    Layout::contiguous(Dtype::U8, &[len]).unwrap()
}

/// A resident kernel.
fn resident(session: &Session) -> Resident {
    let words = session.buffer(&[64], &[0u32; 64]).unwrap();
    let options = DispatchOptions {
        capacity: 8,
        threads: 64,
        // A loaded machine may run a kernel once in seconds.
        watchdog: Duration::from_secs(30),
        ..DispatchOptions::default()
    };
    let set = TaskSet::standard();
    session.dispatcher(&set, &[words], options).unwrap()
}

fn key(generation: u64) -> GraphKey {
    GraphKey {
        generation,
        kind: 1,
        bucket: 1,
        words: [1, 0],
    }
}

/// Waits until the memory of a dropped graph is freed: by a call that comes after the device has
/// done its work.
fn until(graphs: &Graphs<GraphKey>, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it stays");
        graphs.invalidate(&key(99));
        std::thread::yield_now();
    }
}

#[test]
fn limit_includes_deferred_frees() {
    let bench = Bench::new();
    let beside = bench.session("beside");
    for regime in [Regime::Managed, Regime::Driver] {
        let resident = resident(&beside);
        let config = SessionConfig {
            limit_bytes: Some(8 * MIB),
        };
        let session = bench.runtime.session("limited", config).unwrap();
        for _ in 0..2 {
            let id = session.alloc(bytes(4 * MIB), regime).unwrap();
            session.free(id).unwrap();
        }
        assert_eq!(session.held_bytes(), 8 * MIB, "{regime}");
        let memory = bench.runtime.memory().unwrap();
        assert_eq!(memory.parked_bytes, 8 * MIB, "{regime}");
        let refused = session.alloc(bytes(4 * MIB), regime).unwrap_err();
        assert!(
            matches!(&refused, Error::Limit(it) if it.freed_bytes == 8 * MIB),
            "{refused}"
        );
        assert!(
            refused.to_string().contains("8.0 MiB of it freed"),
            "{refused}"
        );
        assert!(
            refused.to_string().contains("stop dispatchers"),
            "{refused}"
        );
        resident.stop(Duration::from_secs(30)).unwrap();
        session.synchronize().unwrap();
        assert_eq!(session.held_bytes(), 0, "{regime}");
        assert_eq!(bench.runtime.memory().unwrap().parked_bytes, 0);
        let id = session.alloc(bytes(4 * MIB), regime).unwrap();
        assert_eq!(session.held_bytes(), 4 * MIB);
        session.free(id).unwrap();
        assert_eq!(session.held_bytes(), 0);
        session.close().unwrap();
    }
    beside.close().unwrap();
}

#[test]
fn memory_freed_in_a_host_callback_is_available_again() {
    let bench = Bench::new();
    let config = SessionConfig {
        limit_bytes: Some(8 * MIB),
    };
    let session = bench.runtime.session("limited", config).unwrap();
    for regime in [Regime::Pool, Regime::Managed] {
        let id = session.alloc(bytes(6 * MIB), regime).unwrap();
        let (within, is_freed) = (session.clone(), std::sync::mpsc::channel());
        let frees = move || is_freed.0.send(within.free(id)).unwrap();
        session.stream().host_callback(frees).unwrap();
        is_freed.1.recv().unwrap().unwrap();
        let id = session.alloc(bytes(6 * MIB), regime).unwrap();
        session.free(id).unwrap();
    }
    session.close().unwrap();
}

#[test]
fn out_of_memory_error_reports_deferred_frees() {
    let bench = Bench::new();
    let session = bench.session("short");
    let resident = resident(&session);
    let id = session.alloc(bytes(3 * MIB), Regime::Managed).unwrap();
    let total = bench.runtime.memory().unwrap().total_bytes;
    for regime in [Regime::Pool, Regime::Managed, Regime::Driver] {
        let refused = session.alloc(bytes(total), regime).unwrap_err().to_string();
        assert!(!refused.contains("were released"), "{refused}");
    }
    session.free(id).unwrap();
    for regime in [Regime::Pool, Regime::Managed, Regime::Driver] {
        let refused = session.alloc(bytes(total), regime).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
        let said = refused.to_string();
        assert!(said.contains("3.0 MiB were released"), "{said}");
        assert!(said.contains("stop the dispatchers"), "{said}");
    }
    drop(resident);
    session.close().unwrap();
}

#[test]
fn memory_of_a_graph_is_charged_until_the_graph_is_dropped() {
    let bench = Bench::new();
    let config = SessionConfig {
        limit_bytes: Some(5 * MIB),
    };
    let session = bench.runtime.session("captured", config).unwrap();
    let module = session.load(&Image::ptx(ADD)).unwrap();
    let add = module.function("add").unwrap();
    let graphs: Graphs<GraphKey> = session.graphs(GraphBudget::default()).unwrap();
    let record = |generation| {
        let id = session.alloc(bytes(2 * MIB), Regime::Pool)?;
        let shape = Launch::new(1, 1);
        let arguments = [LaunchArgument::Buffer(id), 1u32.into()];
        let launch = session.prepare_launch(&add, shape, &arguments)?;
        let part = session.memory(id)?;
        let recorded = graphs.record(key(generation), RecordOptions::default(), |recording| {
            match generation {
                // By a handle of the buffer, and by memory that the caller holds.
                // SAFETY: the kernel writes one value, which is there.
                0 => unsafe { launch.run(recording.stream()) }?,
                // SAFETY: as above.
                _ => unsafe { shape.run(&add, recording.stream(), (&part, 1u32)) }?,
            }
            Ok(())
        });
        drop((launch, part));
        session.free(id)?;
        recorded.map(drop)
    };
    record(0).unwrap();
    assert_eq!(session.held_bytes(), 2 * MIB);
    record(1).unwrap();
    assert_eq!(session.held_bytes(), 4 * MIB);
    let refused = record(2).unwrap_err();
    assert!(
        matches!(&refused, Error::Limit(it) if it.freed_bytes == 4 * MIB),
        "{refused}"
    );
    assert!(refused.to_string().contains("release graphs"), "{refused}");
    assert!(graphs.replay(&key(0)).unwrap() && graphs.replay(&key(1)).unwrap());
    session.synchronize().unwrap();
    assert!(graphs.invalidate(&key(0)));
    until(&graphs, || session.held_bytes() == 2 * MIB);
    session.close().unwrap();
    assert_eq!(session.held_bytes(), 0);
}

#[test]
fn memory_of_an_expression_in_a_graph_is_charged_until_the_graph_is_dropped() {
    let bench = Bench::new();
    let session = bench.session("expressed");
    let graphs: Graphs<GraphKey> = session.graphs(GraphBudget::default()).unwrap();
    let layout = Layout::contiguous(Dtype::F32, &[MIB]).unwrap();
    let mut expression = Expression::new();
    let x = expression.input("x", layout).unwrap();
    let twice = expression.binary(Binary::Add, x, x).unwrap();
    expression.output("y", twice).unwrap();
    let ids = [(); 2].map(|()| session.alloc(layout, Regime::Pool).unwrap());
    let ready = session.prepare(&expression, &ids[..1], &ids[1..]).unwrap();
    let recorded = graphs.record(key(0), RecordOptions::default(), |it| ready.record(it));
    recorded.unwrap();
    drop(ready);
    ids.into_iter().for_each(|id| session.free(id).unwrap());
    assert_eq!(session.held_bytes(), 8 * MIB);
    assert!(graphs.invalidate(&key(0)));
    until(&graphs, || session.held_bytes() == 0);
    session.close().unwrap();
}
