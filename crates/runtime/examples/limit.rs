//! A session with a limit: what it may hold, what is refused, and that nothing is left of it.
//!
//! `cargo run -p fercuda-runtime --example limit`
//!
//! Runs on a GPU if there is one, else on the software device (`FERCUDA_DEVICE=soft` chooses it
//! anyway). It prints the values of a view, the bytes that the session holds, the error of a buffer
//! beyond the limit, and the error of a handle that outlived its session.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use fercuda_runtime::{Dtype, Layout, Regime, Result, Runtime, RuntimeConfig, SessionConfig};

const MIB: u64 = 1 << 20;

fn main() -> Result<()> {
    let runtime = Runtime::open(RuntimeConfig::default())?;
    println!("device: {}", runtime.device().name()?);
    let config = SessionConfig {
        limit_bytes: Some(8 * MIB),
    };
    let session = runtime.session("example", config)?;

    // A buffer is named by a handle. A view is another one, and keeps the memory alive.
    let matrix = session.buffer(&[2, 3], &[1u32, 2, 3, 4, 5, 6])?;
    let column = session.view(matrix, |layout| Ok(layout.slice(1, 1..2, 1)?))?;
    println!("column 1: {:?}", session.download::<u32>(column)?);

    let large = Layout::contiguous(Dtype::U8, &[6 * MIB])?;
    let first = session.alloc(large, Regime::Pool)?;
    println!("holds {} bytes", session.held_bytes());
    match session.alloc(large, Regime::Pool) {
        Ok(_) => println!("the limit was not kept"),
        Err(error) => println!("refused: {error}"),
    }
    // Freed memory may be taken again at once: later work of the session runs later.
    session.free(first)?;
    session.alloc(large, Regime::Pool)?;
    println!("holds {} bytes again", session.held_bytes());

    session.close()?;
    println!("holds {} bytes when it is closed", session.held_bytes());
    match session.download::<u32>(matrix) {
        Ok(values) => println!("the handle still names {values:?}"),
        Err(error) => println!("refused: {error}"),
    }
    Ok(())
}
