//! Views of a matrix: a transposition, every second column, a broadcast and a refused reshape.
//!
//! `cargo run -p fercuda-tensor --example views`
//!
//! Nothing is copied, as there is no memory: a view is arithmetic. It prints:
//! ```text
//! matrix: f32[4, 6], bytes 0..96
//! transposed: f32[6, 4] by [1, 6], bytes 0..96
//! odd columns: f32[4, 3] by [6, 2], bytes 4..96
//! row 2, repeated: f32[4, 6] by [0, 1], bytes 48..72, may overlap
//! refused: [6, 4] with strides [1, 6] has no view as [24]
//! try: a contiguous copy first
//! ```
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use fercuda_tensor::{Dtype, Layout, LayoutError};

fn main() -> Result<(), LayoutError> {
    let matrix = Layout::contiguous(Dtype::F32, &[4, 6])?;
    show("matrix", &matrix, 0);

    let transposed = matrix.permute(&[1, 0])?;
    show("transposed", &transposed, 0);

    // Columns 1, 3 and 5 of it. The offset is that of the view's first element.
    let (columns, offset_bytes) = matrix.slice(1, 1..6, 2)?;
    show("odd columns", &columns, offset_bytes);

    // One row, repeated: several indices name the same element, so nothing may write through it.
    let (row, offset_bytes) = matrix.slice(0, 2..3, 1)?;
    let rows = row.broadcast(&[4, 6])?;
    show("row 2, repeated", &rows, offset_bytes);

    match transposed.reshape(&[24]) {
        Ok(flat) => show("flat", &flat, 0),
        Err(error) => println!("refused: {error}"),
    }
    Ok(())
}

/// Prints a view, and where its first and last bytes are in the matrix's memory.
fn show(name: &str, layout: &Layout, offset_bytes: i64) {
    let reach = layout.reach_bytes();
    let (start, end) = (reach.start + offset_bytes, reach.end + offset_bytes);
    let overlap = if layout.may_overlap() {
        ", may overlap"
    } else {
        ""
    };
    println!("{name}: {layout}, bytes {start}..{end}{overlap}");
}
