//! Printer of docs/ops.md.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(fercuda_ops::coverage::page().as_bytes())
}
