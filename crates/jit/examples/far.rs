//! Test of elements a gibibyte apart, beyond offsets of 32 bits.
//!
//! `far`: on whichever device `FERCUDA_DEVICE` selects; it takes 2 GiB there, and on the software
//! device with its checks 5 GB of the host, which is why it is not a test. It fails if an element
//! is wrong.
#![expect(clippy::print_stdout, reason = "figures for people")]

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
use fercuda_jit::{BoundArg, Compiler, ExprGraph, Reduction, Unary};
use fercuda_tensor::{Dtype, Layout};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const FAR: usize = 1 << 30;
/// Offset of the first element.
const FIRST: usize = 16;
/// Bytes that are set around each of the two elements.
const NEAR: usize = 40;

fn main() -> Result<()> {
    let device = Cuda::from_env()?.device(0)?;
    let context = Context::primary(device)?;
    let stream = Stream::new(&context)?;
    let layout = Layout::strided(Dtype::U8, &[2, 3, 5], &[FAR as i64, 7, -1])?;
    let mut graph = ExprGraph::new();
    let x = graph.input("x", layout)?;
    let y = graph.unary(Unary::Not, x)?;
    graph.output_as("y", y, layout)?;
    let sum = graph.reduce(Reduction::Sum, x, &[0, 2], false)?;
    graph.output("sum", sum)?;

    let mut from = DeviceBuffer::<u8>::alloc(&context, FAR + 64)?;
    let to = DeviceBuffer::<u8>::alloc(&context, FAR + 64)?;
    let sums = DeviceBuffer::<u64>::zeroed(&stream, 3)?;
    let near = |side: usize| -> Vec<u8> { (0..NEAR).map(|n| (n * 5 + side * 31) as u8).collect() };
    for side in [0, 1] {
        let start = side * FAR + 8;
        let mut place = from.slice_mut(start..start + NEAR)?;
        place.copy_from_host(&near(side), &stream)?;
    }
    let at = |buffer| BoundArg::of(buffer).first_at(FIRST as u64);
    let compiler = Compiler::with_cache(&context, None)?;
    let outputs = [at(&to), BoundArg::of(&sums)];
    compiler.run(&graph, &stream, &[at(&from)], &outputs)?;

    // Backwards along a row of five, which begins 7 elements further on in each row.
    let element = |side: usize, row: usize, col: usize| near(side)[FIRST + row * 7 - col - 8];
    for (row, got) in sums.to_vec(&stream)?.into_iter().enumerate() {
        let all = [0, 1].into_iter();
        let all = all.flat_map(|side| (0..5).map(move |col| (side, col)));
        let wanted: u64 = all
            .map(|(side, col)| u64::from(element(side, row, col)))
            .sum();
        if got != wanted {
            return Err(format!("the sum of {row} is {got}, should be {wanted}").into());
        }
    }
    for side in [0, 1] {
        for row in 0..3 {
            let last = FIRST + side * FAR + row * 7;
            let got = to.slice(last - 4..last + 1)?.to_vec(&stream)?;
            let wanted: Vec<u8> = (0..5).rev().map(|col| !element(side, row, col)).collect();
            if got != wanted {
                return Err(format!("row {row} of {side} is {got:?}, should be {wanted:?}").into());
            }
        }
    }
    println!("{device}: elements a gibibyte apart are where they should be");
    Ok(())
}
