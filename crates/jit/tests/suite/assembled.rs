//! Generated code, checked by NVIDIA's assembler.

use fercuda_jit::{Binary, ExprGraph, Program, Reduction, Unary};
use fercuda_ptx::build::Arch;
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{of, random};
use crate::ptxas;
use crate::random::expression;

/// Every operation of a type, with casts of it.
fn operations(dtype: Dtype, len: u64) -> ExprGraph {
    let mut graph = ExprGraph::new();
    let a = graph.input("a", of(dtype, &[len])).unwrap();
    let b = graph.input("b", of(dtype, &[len])).unwrap();
    let mut made = Vec::new();
    for op in Unary::ALL.iter().filter(|op| op.class().has(dtype)) {
        made.push(graph.unary(*op, a).unwrap());
    }
    for op in Binary::ALL.iter().filter(|op| op.class().has(dtype)) {
        made.push(graph.binary(*op, a, b).unwrap());
    }
    // All combined into one, so that there are few outputs.
    let mut all = graph.constant(Dtype::Bool, true).unwrap();
    for node in made {
        let yes = graph.cast(node, Dtype::Bool).unwrap();
        all = graph.binary(Binary::Xor, all, yes).unwrap();
    }
    graph.output("all", all).unwrap();
    for to in Dtype::ALL {
        let cast = graph.cast(a, to).unwrap();
        graph.output(to.name(), cast).unwrap();
    }
    graph
}

fn reductions(dtype: Dtype, layout: Layout, axis: usize) -> ExprGraph {
    let mut graph = ExprGraph::new();
    let x = graph.input("x", layout).unwrap();
    for op in Reduction::ALL.iter().filter(|op| op.class().has(dtype)) {
        let y = graph.reduce(*op, x, &[axis], false).unwrap();
        graph.output(op.name(), y).unwrap();
    }
    if let Ok(y) = graph.softmax(x, axis) {
        graph.output("softmax", y).unwrap();
    }
    graph
}

#[test]
fn nvidias_assembler_accepts_all_generated_code() {
    let (Some(ptxas), mut random) = (ptxas::find(), random()) else {
        return;
    };
    let assemble = |graph: &ExprGraph, aligned: bool| {
        let program = Program::of(graph, Arch::SM_90, aligned).unwrap();
        ptxas.assemble(&program.ptx().unwrap(), Arch::SM_90);
    };
    for dtype in Dtype::ALL {
        assemble(&operations(dtype, 64), random.bool());
        let (shape, axis) = match random.u32(..5) {
            0 => ([9, 7], 1),
            1 => ([3, 6000], 1),
            2 => ([64, 33], 0),
            3 => ([2, 70000], 1),
            _ => ([4096, 8], 0),
        };
        assemble(&reductions(dtype, of(dtype, &shape), axis), true);
    }
    for _ in 0..10 {
        assemble(&expression(&mut random), random.bool());
    }
    // Offsets of 64 bits.
    let far = Layout::strided(Dtype::F16, &[100, 40], &[1 << 33, -3]).unwrap();
    assemble(&reductions(Dtype::F16, far, 1), true);
}
