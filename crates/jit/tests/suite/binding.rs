//! Bindings of an expression, and caching of its code.

use std::sync::Arc;
use std::thread;

use fercuda_cache::ProgramCache;
use fercuda_cuda::DeviceBuffer;
use fercuda_jit::{Binary, BoundArg, CodeOrigin, Compiler, Error, ExprGraph, Reduction, Unary};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, between, of, random};

fn doubled(len: u64) -> ExprGraph {
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F32, &[len])).unwrap();
    let y = graph.binary(Binary::Add, x, x).unwrap();
    graph.output("y", y).unwrap();
    graph
}

fn soft(rows: u64, len: u64) -> ExprGraph {
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F32, &[rows, len])).unwrap();
    let y = graph.softmax(x, 1).unwrap();
    graph.output("y", y).unwrap();
    graph
}

#[test]
fn map_may_overwrite_its_input() {
    let bench = Bench::new();
    for len in [1, 5, 64, 1027] {
        let values: Vec<f32> = (0..len).map(|n| n as f32).collect();
        let buffer = DeviceBuffer::from_host(&values, &bench.stream).unwrap();
        let (graph, both) = (doubled(len), BoundArg::of(&buffer));
        bench
            .compiler
            .run(&graph, &bench.stream, &[both], &[both])
            .unwrap();
        let got = buffer.to_vec(&bench.stream).unwrap();
        bench.sound(&graph);
        assert!(got.iter().zip(&values).all(|(got, x)| *got == x + x));
    }
}

#[test]
fn other_overlaps_of_an_output_are_refused() {
    let bench = Bench::new();
    let buffer = DeviceBuffer::<f32>::zeroed(&bench.stream, 200).unwrap();
    let all = BoundArg::of(&buffer);
    let refused = |graph: &ExprGraph, inputs: &[BoundArg<'_>], outputs: &[BoundArg<'_>]| {
        let error = bench.compiler.run(graph, &bench.stream, inputs, outputs);
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Overlap { .. }), "{error}");
    };
    // A little further on.
    refused(&doubled(100), &[all], &[all.first_at(16)]);
    // Rows, which other elements of the row read.
    refused(&soft(2, 10), &[all], &[all]);
    // Another order.
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F32, &[10, 10])).unwrap();
    let y = graph.permute(x, &[1, 0]).unwrap();
    graph.output("y", y).unwrap();
    refused(&graph, &[all], &[all]);
    // Another type at the same place.
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F32, &[8])).unwrap();
    let y = graph.cast(x, Dtype::F16).unwrap();
    graph.output("y", y).unwrap();
    refused(&graph, &[all], &[all]);
    // Two outputs.
    let mut graph = doubled(8);
    let x = graph.input("z", of(Dtype::F32, &[8])).unwrap();
    graph.output("w", x).unwrap();
    let other = DeviceBuffer::<f32>::zeroed(&bench.stream, 200).unwrap();
    let other = BoundArg::of(&other);
    refused(&graph, &[all, all], &[other, other.first_at(4)]);
    // Adjacent memory is fine.
    let right = all.first_at(400);
    bench
        .compiler
        .run(&doubled(100), &bench.stream, &[all], &[right])
        .unwrap();
}

#[test]
fn small_misaligned_or_missing_buffers_are_refused() {
    let bench = Bench::new();
    let buffer = DeviceBuffer::<f32>::zeroed(&bench.stream, 100).unwrap();
    let other = DeviceBuffer::<f32>::zeroed(&bench.stream, 100).unwrap();
    let (x, y) = (BoundArg::of(&buffer), BoundArg::of(&other));
    let run = |graph: &ExprGraph, inputs: &[BoundArg<'_>], outputs: &[BoundArg<'_>]| {
        bench.compiler.run(graph, &bench.stream, inputs, outputs)
    };
    run(&doubled(100), &[x], &[y]).unwrap();
    let error = run(&doubled(101), &[x], &[y]).unwrap_err();
    let said = "input \"x\" as f32[101] reaches bytes 0 to 404 of 400";
    assert!(error.to_string().contains(said), "{error}");
    let error = run(&doubled(100), &[x], &[y.first_at(4)]).unwrap_err();
    assert!(error.to_string().contains("output \"y\""), "{error}");
    let error = run(&doubled(99), &[x.first_at(u64::MAX)], &[y]).unwrap_err();
    assert!(matches!(error, Error::Reach { .. }), "{error}");
    let error = run(&doubled(10), &[x.first_at(2)], &[y]).unwrap_err();
    assert!(matches!(error, Error::Misaligned { .. }), "{error}");
    let error = run(&doubled(10), &[x, x], &[y]).unwrap_err();
    assert!(matches!(error, Error::Count { .. }), "{error}");
    let mut graph = ExprGraph::new();
    let backwards = Layout::strided(Dtype::F32, &[10], &[-1]).unwrap();
    let node = graph.input("x", backwards).unwrap();
    graph.output("y", node).unwrap();
    let error = run(&graph, &[x], &[y]).unwrap_err();
    assert!(error.to_string().contains("bytes -36 to 4"), "{error}");
    run(&graph, &[x.first_at(36)], &[y]).unwrap();
}

#[test]
fn memory_without_alignment_of_sixteen_works() {
    let (bench, mut random) = (Bench::new(), random());
    let len = 1000;
    let values: Vec<f32> = (0..len + 8).map(|_| random.f32()).collect();
    let buffer = DeviceBuffer::from_host(&values, &bench.stream).unwrap();
    for (from, to) in [(0, 1), (1, 0), (3, 3)] {
        let out = DeviceBuffer::from_host(&vec![7f32; len + 8], &bench.stream).unwrap();
        let graph = doubled(len as u64);
        let x = BoundArg::of(&buffer).first_at(4 * from as u64);
        let y = BoundArg::of(&out).first_at(4 * to as u64);
        bench
            .compiler
            .run(&graph, &bench.stream, &[x], &[y])
            .unwrap();
        let got = out.to_vec(&bench.stream).unwrap();
        bench.sound(&graph);
        for at in 0..len {
            assert_eq!(got[to + at], 2.0 * values[from + at]);
        }
        assert!(got[..to].iter().chain(&got[to + len..]).all(|x| *x == 7.0));
    }
}

#[test]
fn caller_may_provide_the_memory_between_kernels() {
    let (bench, mut random) = (Bench::new(), random());
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F32, &[8, 12])).unwrap();
    let y = graph.softmax(x, 0).unwrap();
    let y = graph.reduce(Reduction::Sum, y, &[1], false).unwrap();
    graph.output("y", y).unwrap();
    let compiled = bench.compiler.compile(&graph).unwrap();
    let wanted = compiled.program().scratch_bytes as usize;
    assert!(wanted > 0);
    let bits = between(&mut random, Dtype::F32, 96, (-1.0, 1.0));
    let values: Vec<f32> = bits
        .iter()
        .map(|bits| f32::from_bits(*bits as u32))
        .collect();
    let x = DeviceBuffer::from_host(&values, &bench.stream).unwrap();
    let [one, other] = [(); 2].map(|()| DeviceBuffer::<f32>::zeroed(&bench.stream, 8).unwrap());
    let scratch = DeviceBuffer::<u8>::alloc(&bench.context, wanted).unwrap();
    let (stream, x) = (&bench.stream, [BoundArg::of(&x)]);
    compiled.run(stream, &x, &[BoundArg::of(&one)]).unwrap();
    compiled
        .run_with(stream, &x, &[BoundArg::of(&other)], BoundArg::of(&scratch))
        .unwrap();
    assert_eq!(one.to_vec(stream).unwrap(), other.to_vec(stream).unwrap());
    bench.sound(&graph);
    let small = BoundArg::of(&scratch).first_at(16);
    let error = compiled.run_with(stream, &x, &[BoundArg::of(&other)], small);
    assert!(matches!(error, Err(Error::Reach { .. })));
    let error = compiled.run_with(
        stream,
        &x,
        &[BoundArg::of(&scratch)],
        BoundArg::of(&scratch),
    );
    assert!(matches!(error, Err(Error::Overlap { .. })));
}

fn compiler(bench: &Bench, folder: &std::path::Path) -> Compiler {
    Compiler::with_cache(&bench.context, Some(ProgramCache::at_for(folder, "jit"))).unwrap()
}

/// Runs a softmax and checks that its sum is 1.
fn works(bench: &Bench, compiler: &Compiler, graph: &ExprGraph) -> CodeOrigin {
    let compiled = compiler.compile(graph).unwrap();
    let x = DeviceBuffer::from_host(&[0.5f32; 60], &bench.stream).unwrap();
    let y = DeviceBuffer::<f32>::zeroed(&bench.stream, 60).unwrap();
    compiled
        .run(&bench.stream, &[BoundArg::of(&x)], &[BoundArg::of(&y)])
        .unwrap();
    let y = y.to_vec(&bench.stream).unwrap();
    assert!(y.iter().all(|y| (y * 20.0 - 1.0).abs() < 1e-5), "{y:?}");
    compiled.origin()
}

#[test]
fn compiled_code_is_found_by_other_processes() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let graph = soft(3, 20);
    let first = compiler(&bench, folder.path());
    assert_eq!(works(&bench, &first, &graph), CodeOrigin::Compiled);
    // With another number of rows it is the same code.
    let more = soft(5, 20);
    assert_eq!(first.compile(&more).unwrap().origin(), CodeOrigin::Memory);
    let second = compiler(&bench, folder.path());
    assert_eq!(works(&bench, &second, &graph), CodeOrigin::Disk);
    assert_eq!(second.take_warnings(), []);
    let none = Compiler::with_cache(&bench.context, None).unwrap();
    assert_eq!(works(&bench, &none, &graph), CodeOrigin::Compiled);
}

#[test]
fn damaged_files_are_never_loaded() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let graph = soft(3, 20);
    works(&bench, &compiler(&bench, folder.path()), &graph);
    let entry = std::fs::read_dir(folder.path()).unwrap().next().unwrap();
    let path = entry.unwrap().path();
    let whole = std::fs::read(&path).unwrap();
    let mut random = random();
    for round in 0..12 {
        let mut bytes = whole.clone();
        match round {
            0 => bytes.clear(),
            1..4 => bytes.truncate(random.usize(..bytes.len())),
            4 => bytes = b"not a cache file".to_vec(),
            // A file of the right format with other PTX; for machine code another byte.
            5 => match std::str::from_utf8(&whole) {
                Ok(text) => bytes = text.replace("add.rn.f32", "sub.rn.f32").into_bytes(),
                Err(_) => bytes[whole.len() / 2] ^= 0xff,
            },
            _ => {
                let at = random.usize(..bytes.len());
                bytes[at] ^= 1 << random.u32(..8);
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        let again = compiler(&bench, folder.path());
        assert_eq!(works(&bench, &again, &graph), CodeOrigin::Compiled);
        assert_eq!(again.take_warnings().len(), 1);
        // And the file is intact again.
        assert!(std::fs::read(&path).unwrap() == whole);
        let last = compiler(&bench, folder.path());
        assert_eq!(works(&bench, &last, &graph), CodeOrigin::Disk);
    }
}

#[test]
fn concurrent_compilations_of_one_expression_all_succeed() {
    let (bench, folder) = (Arc::new(Bench::new()), tempfile::tempdir().unwrap());
    for round in 0..4 {
        let graph = soft(3, 20 + round);
        let path = folder.path().to_owned();
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (bench, graph, path) = (bench.clone(), graph.clone(), path.clone());
                // Two threads share a compiler, two have their own, as processes do.
                let own = compiler(&bench, &path);
                thread::spawn(move || {
                    let one = if n < 2 { &bench.compiler } else { &own };
                    one.compile(&graph).unwrap();
                    own.take_warnings()
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), []);
        }
    }
    let last = compiler(&bench, folder.path());
    let origin = last.compile(&soft(3, 20)).unwrap().origin();
    assert_eq!(origin, CodeOrigin::Disk);
}

#[test]
fn empty_expressions_launch_nothing() {
    let bench = Bench::new();
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F32, &[0, 5])).unwrap();
    let y = graph.unary(Unary::Neg, x).unwrap();
    graph.output("y", y).unwrap();
    let compiled = bench.compiler.compile(&graph).unwrap();
    assert!(compiled.program().launches.is_empty());
    let empty = DeviceBuffer::<f32>::alloc(&bench.context, 0).unwrap();
    compiled
        .run(
            &bench.stream,
            &[BoundArg::of(&empty)],
            &[BoundArg::of(&empty)],
        )
        .unwrap();
}
