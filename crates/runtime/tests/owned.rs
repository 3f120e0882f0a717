//! Resources of sessions besides buffers: graphs, and expressions over buffers.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and kernels are launched"
)]

mod adds;
mod bench;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use adds::ADD;
use bench::Bench;
use fercuda_cuda::{DeviceBuffer, Function, Image, Launch};
use fercuda_runtime::jit::{Binary, ExprGraph as Expression, Reduction, Unary};
use fercuda_runtime::{
    Dtype, EndReason, Error, GraphBudget, GraphError, GraphKey, Graphs, LaunchArgument, Layout,
    RecordOptions, Regime, Session, SessionConfig,
};

const KIB: u64 = 1 << 10;

fn key(generation: u64, batch: u32) -> GraphKey {
    GraphKey {
        generation,
        kind: 1,
        bucket: batch,
        words: [1, 0],
    }
}

fn add_of(session: &Session) -> Function {
    let module = session.load(&Image::ptx(ADD)).unwrap();
    module.function("add").unwrap()
}

fn graphs(session: &Session) -> Graphs<GraphKey> {
    session.graphs(GraphBudget::default()).unwrap()
}

/// Records a graph that adds each of `values`, through scratch memory.
fn record(
    graphs: &Graphs<GraphKey>,
    key: GraphKey,
    add: &Function,
    into: &DeviceBuffer<u8>,
    values: &[u32],
) -> fercuda_runtime::Result<fercuda_runtime::RecordedGraph> {
    let options = RecordOptions::default();
    let recorded = graphs.record(key, options, |recording| {
        let stream = recording.stream();
        let mut between = recording.alloc::<u8>(4)?;
        between
            .as_slice_mut()
            .copy_from(into.slice(0..4)?, stream)?;
        for value in values {
            // SAFETY: the kernel reads and writes one value, which is there.
            unsafe { Launch::new(1, 1).run(add, stream, (&*between, *value)) }?;
        }
        let mut into = into.part::<u8>(0, 4)?;
        into.copy_from(between.as_slice(), stream)?;
        Ok(())
    });
    Ok(recorded?.1)
}

#[test]
fn graphs_are_replayed_in_session_order_and_end_with_it() {
    let bench = Bench::new();
    let session = bench.session("replays");
    let add = add_of(&session);
    let id = session.buffer(&[1], &[0u32]).unwrap();
    let memory = session.memory(id).unwrap();
    let graphs = graphs(&session);
    let before = session.held_bytes();
    for batch in 0..4 {
        let values = [batch, 10, 100];
        let recorded = record(
            &graphs,
            key(u64::from(batch % 2), batch),
            &add,
            &memory,
            &values,
        );
        assert_eq!(recorded.unwrap().nodes, 5);
    }
    // Their memory is charged to the session, by its own counter and by the ledger's.
    assert_eq!(session.held_bytes() - before, 4 * 64 * KIB);
    let tenant = bench.runtime.holders();
    assert_eq!(tenant[0].tenant, "replays");
    assert!(tenant[0].pooled_bytes >= 4 * 64 * KIB, "{tenant:?}");
    let (mut expected, graphs) = (0, &graphs);
    for round in 0..50 {
        let batch = round % 4;
        // Also behind work that still waits on the host.
        let (go_on, wait) = channel();
        let held_back = (round % 5 == 0).then(|| {
            session.submit(move |_| {
                wait.recv().ok();
                Ok(())
            })
        });
        let bytes = bytemuck::bytes_of(&expected).to_vec();
        drop(session.upload_async(id, bytes).unwrap());
        let replayed = std::thread::scope(|scope| {
            let key = key(u64::from(batch % 2), batch);
            let replayed = scope.spawn(move || graphs.replay(&key).unwrap());
            go_on.send(()).ok();
            replayed.join().unwrap()
        });
        assert!(replayed);
        drop(held_back);
        expected += batch + 110;
        assert_eq!(session.download::<u32>(id).unwrap(), [expected], "{round}");
    }
    assert!(!graphs.replay(&key(7, 7)).unwrap());
    assert_eq!(graphs.invalidate_generation(1), 2);
    assert!(!graphs.contains(&key(1, 1)) && graphs.contains(&key(0, 2)));
    drop((memory, add));
    session.close().unwrap();
    let ended = graphs.replay(&key(0, 2)).unwrap_err();
    assert!(
        matches!(
            ended,
            Error::Ended {
                why: EndReason::Closed,
                ..
            }
        ),
        "{ended}"
    );
    let ended = graphs.record(key(0, 2), RecordOptions::default(), |_| Ok(()));
    assert!(matches!(ended.unwrap_err(), Error::Ended { .. }));
    assert_eq!(graphs.stats().entries, 0);
}

#[test]
fn graph_captured_during_teardown_is_not_kept() {
    let bench = Bench::new();
    let session = bench.session("ends");
    let graphs = graphs(&session);
    let ended = graphs.record(key(0, 0), RecordOptions::default(), |recording| {
        let kept = recording.alloc::<u8>(1000)?;
        session.close().unwrap();
        drop(kept);
        Ok(())
    });
    let ended = ended.unwrap_err();
    let Error::Graph(why) = &ended else {
        panic!("{ended}");
    };
    assert!(matches!(**why, GraphError::Invalidated), "{ended}");
}

#[test]
fn work_of_other_threads_is_not_captured() {
    let bench = Bench::new();
    let session = bench.session("apart");
    let add = add_of(&session);
    let ids = [0, 1].map(|_| session.buffer(&[1], &[0u32]).unwrap());
    let memory = session.memory(ids[0]).unwrap();
    let graphs = graphs(&session);
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut launched = 0;
            while !done.load(Relaxed) {
                let arguments = [LaunchArgument::from(ids[1]), 1u32.into()];
                // SAFETY: the kernel reads and writes one value, which is there.
                unsafe { session.launch(&add, Launch::new(1, 1), &arguments) }.unwrap();
                launched += 1;
            }
            launched
        });
        for batch in 0..40 {
            let recorded = record(&graphs, key(0, batch % 3), &add, &memory, &[1, 2]).unwrap();
            assert_eq!(recorded.nodes, 4);
            assert!(graphs.replay(&key(0, batch % 3)).unwrap());
        }
        done.store(true, Relaxed);
        let launched: u32 = other.join().unwrap();
        assert_eq!(session.download::<u32>(ids[0]).unwrap(), [40 * 3]);
        assert_eq!(session.download::<u32>(ids[1]).unwrap(), [launched]);
    });
    drop((graphs, memory, add));
    session.close().unwrap();
}

#[test]
fn memory_of_a_capture_is_within_the_sessions_limit() {
    let bench = Bench::new();
    let config = SessionConfig {
        limit_bytes: Some(1 << 20),
    };
    let session = bench.runtime.session("narrow", config).unwrap();
    let graphs = graphs(&session);
    let take = |bytes: usize| {
        graphs.record(key(0, 0), RecordOptions::default(), |recording| {
            Ok(recording.alloc::<u8>(bytes)?)
        })
    };
    let refused = take(2 << 20).unwrap_err();
    assert!(
        matches!(&refused, Error::Limit(it) if it.asked_bytes == 2_097_152),
        "{refused}"
    );
    let (scratch, _) = take(512 << 10).unwrap();
    // Charged as long as it has any owner.
    assert_eq!(graphs.invalidate_all(), 1);
    session.synchronize().unwrap();
    assert_eq!(session.held_bytes(), 512 * KIB);
    drop(scratch);
    // Dropped graphs are polled by the next calls.
    let begun = Instant::now();
    while graphs.stats().retired > 0 && begun.elapsed() < Duration::from_secs(10) {
        assert_eq!(graphs.invalidate_all(), 0);
    }
    assert_eq!(session.held_bytes(), 0);
    assert_eq!(session.peak_bytes(), 512 * KIB);
    session.close().unwrap();
}

/// `sum over rows of exp(a) * b`, and `a + b`.
fn expression(rows: u64, columns: u64) -> Expression {
    let mut graph = Expression::new();
    let whole = Layout::contiguous(Dtype::F32, &[rows, columns]).unwrap();
    let turned = Layout::contiguous(Dtype::F32, &[columns, rows]).unwrap();
    let a = graph.input("a", whole).unwrap();
    let b = graph.input("b", turned.permute(&[1, 0]).unwrap()).unwrap();
    let exp = graph.unary(Unary::Exp, a).unwrap();
    let product = graph.binary(Binary::Mul, exp, b).unwrap();
    let sums = graph.reduce(Reduction::Sum, product, &[0], false).unwrap();
    let both = graph.binary(Binary::Add, a, b).unwrap();
    graph.output("sums", sums).unwrap();
    graph.output("both", both).unwrap();
    graph
}

#[test]
fn expressions_are_evaluated_in_session_order() {
    const ROWS: usize = 7;
    const COLUMNS: usize = 33;
    let bench = Bench::new();
    let session = bench.session("computes");
    let graph = expression(ROWS as u64, COLUMNS as u64);
    let shape = [ROWS as u64, COLUMNS as u64];
    let seed = fastrand::Rng::new();
    let mut random = seed.clone();
    for _ in 0..5 {
        let mut values = || -> Vec<f32> { (0..ROWS * COLUMNS).map(|_| random.f32()).collect() };
        let (a, b) = (values(), values());
        let left = session.buffer(&shape, &vec![9f32; ROWS * COLUMNS]).unwrap();
        let right = session.buffer(&[shape[1], shape[0]], &b).unwrap();
        let turned = session
            .view(right, |layout| Ok((layout.permute(&[1, 0])?, 0)))
            .unwrap();
        // Behind work that still waits on the host.
        let (go_on, wait) = channel();
        let held_back = session.submit(move |_| {
            wait.recv().ok();
            Ok(())
        });
        let upload = session
            .upload_async(left, bytemuck::cast_slice(&a).to_vec())
            .unwrap();
        let outputs = std::thread::scope(|scope| {
            let outputs = scope.spawn(|| session.evaluate(&graph, &[left, turned]).unwrap());
            go_on.send(()).unwrap();
            outputs.join().unwrap()
        });
        drop((held_back, upload));
        let sums = session.download::<f32>(outputs[0]).unwrap();
        let both = session.download::<f32>(outputs[1]).unwrap();
        for column in 0..COLUMNS {
            let products = (0..ROWS).map(|row| {
                f64::from(a[row * COLUMNS + column]).exp() * f64::from(b[column * ROWS + row])
            });
            let (sum, got) = (products.sum::<f64>(), f64::from(sums[column]));
            // Each product is off by an exponential's few ulps and a rounding; a sum of
            // seven rounds six times. All are positive.
            let most = 16.0 * f64::from(f32::EPSILON) * sum;
            assert!(
                (got - sum).abs() <= most,
                "seed {}: {got} {sum}",
                seed.get_seed()
            );
            for row in 0..ROWS {
                let sum = a[row * COLUMNS + column] + b[column * ROWS + row];
                assert_eq!(both[row * COLUMNS + column], sum);
            }
        }
        for id in [left, right, turned, outputs[0], outputs[1]] {
            session.free(id).unwrap();
        }
    }
    session.close().unwrap();
}

#[test]
fn bound_buffers_are_used_in_session_order_and_outlive_their_handles() {
    let bench = Bench::new();
    let session = bench.session("binds");
    let (rows, columns) = (4, 8);
    let graph = expression(rows, columns);
    let shape = [rows, columns];
    let numbers = |from: f32| -> Vec<f32> { (0..32).map(|n| from + n as f32 / 8.0).collect() };
    let (a, b) = (numbers(-2.0), numbers(1.0));
    let left = session.buffer(&shape, &[9f32; 32]).unwrap();
    let right = session.buffer(&[columns, rows], &b).unwrap();
    let turned = session.view(right, |layout| Ok((layout.permute(&[1, 0])?, 0)));
    // From the last row back: its first element is not where its memory begins.
    let layout = Layout::contiguous(Dtype::F32, &shape).unwrap();
    let reversed = Layout::strided(Dtype::F32, &shape, &[-(columns as i64), 1]).unwrap();
    let back = session.alloc(reversed, Regime::Pool).unwrap();
    let copied = session.alloc(layout, Regime::Pool).unwrap();
    let turned = turned.unwrap();
    let compiled = session.compile(&graph).unwrap();
    let sums = session.evaluate(&graph, &[left, turned]).unwrap();
    let (go_on, wait) = channel();
    let held_back = session.submit(move |_| {
        wait.recv().ok();
        Ok(())
    });
    let upload = session.upload_async(left, bytemuck::cast_slice(&a).to_vec());
    let mut graph = Expression::new();
    let x = graph.input("x", layout).unwrap();
    graph.output("y", x).unwrap();
    graph.lay_out("y", reversed).unwrap();
    let copy = session.compile(&graph).unwrap();
    let [x, y] = [left, back].map(|id| session.bind(id).unwrap());
    assert_eq!((x.layout(), y.layout()), (&layout, &reversed));
    let inputs = [left, turned].map(|id| session.bind(id).unwrap());
    let outputs: Vec<_> = sums.iter().map(|id| session.bind(*id).unwrap()).collect();
    session.free(left).unwrap();
    let queued = std::thread::scope(|scope| {
        let queued = scope.spawn(|| {
            session.queue(move |stream| {
                copy.run(stream, &[x.arg()], &[y.arg()])?;
                let [a, b] = [inputs[0].arg(), inputs[1].arg()];
                let outputs: Vec<_> = outputs.iter().map(|it| it.arg()).collect();
                compiled.run(stream, &[a, b], &outputs)?;
                Ok("queued")
            })
        });
        go_on.send(()).unwrap();
        queued.join().unwrap()
    });
    assert_eq!(queued.unwrap(), "queued");
    drop((held_back, upload));
    session.copy(copied, &session, back).unwrap();
    assert_eq!(session.download::<f32>(copied).unwrap(), a);
    let both = session.download::<f32>(sums[1]).unwrap();
    let turned = |at: usize| b[at % 8 * 4 + at / 8];
    assert!((0..32).all(|at| both[at] == a[at] + turned(at)));
    let stale = session.bind(left).unwrap_err();
    assert!(matches!(stale, Error::Stale(_)), "{stale}");
    session.close().unwrap();
    let ended = session.queue(|_| Ok(())).unwrap_err();
    assert!(matches!(ended, Error::Ended { .. }), "{ended}");
}

#[test]
fn expressions_over_wrong_buffers_are_refused() {
    let bench = Bench::new();
    let config = SessionConfig {
        limit_bytes: Some(4 * KIB),
    };
    let session = bench.runtime.session("refuses", config).unwrap();
    let graph = expression(4, 8);
    let a = session.buffer(&[4, 8], &[1f32; 32]).unwrap();
    let b = session.buffer(&[8, 4], &[2f32; 32]).unwrap();
    let held = session.held_bytes();
    let refused = session.evaluate(&graph, &[a]).unwrap_err();
    assert!(
        refused.to_string().contains("1 inputs are bound"),
        "{refused}"
    );
    let refused = session.evaluate(&graph, &[a, a]).unwrap_err();
    assert!(
        matches!(refused, Error::Operand { what: "input", ref name, .. } if name == "b"),
        "{refused}"
    );
    let turned = session
        .view(b, |layout| Ok((layout.permute(&[1, 0])?, 0)))
        .unwrap();
    let wrong = [turned, a];
    let refused = session
        .evaluate_into(&graph, &[a, turned], &wrong)
        .unwrap_err();
    assert!(
        matches!(refused, Error::Operand { what: "output", .. }),
        "{refused}"
    );
    // An output on an input that other elements are computed from.
    let sums = session.buffer(&[8], &[0f32; 8]).unwrap();
    let refused = session
        .evaluate_into(&graph, &[a, turned], &[sums, a])
        .unwrap_err();
    assert!(matches!(refused, Error::Expression(_)), "{refused}");
    session.free(sums).unwrap();
    let layout = Layout::contiguous(Dtype::U8, &[3 * KIB]).unwrap();
    let most = session.alloc(layout, Regime::Pool).unwrap();
    let refused = session.evaluate(&graph, &[a, turned]).unwrap_err();
    assert!(matches!(refused, Error::Limit(_)), "{refused}");
    session.free(most).unwrap();
    // Refused calls have left nothing.
    assert_eq!(session.held_bytes(), held);
    session.free(a).unwrap();
    let refused = session.evaluate(&graph, &[a, turned]).unwrap_err();
    assert!(matches!(refused, Error::Stale(_)), "{refused}");
    session.close().unwrap();
    let refused = session.compile(&graph).err().unwrap();
    assert!(matches!(refused, Error::Ended { .. }), "{refused}");
}
