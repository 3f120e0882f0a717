//! The property of any text of an expression; mutations and cargo-fuzz both call it.

use fercuda_jit::text::{MAX_BYTES, parse};
use fercuda_jit::{ExprGraph, Program};
use fercuda_ptx::build::Arch;
use fercuda_tensor::{Dtype, Layout};

/// Longer texts are parsed, and no kernels are made of them: of those of a few mutations each
/// would take as long as a thousand texts.
const COMPILED_BYTES: usize = 400;

fn inputs() -> ExprGraph {
    let mut graph = ExprGraph::new();
    for (name, dtype, shape) in [
        ("x", Dtype::F32, &[2, 3][..]),
        ("v", Dtype::F32, &[3]),
        ("i", Dtype::I32, &[2, 3]),
    ] {
        let layout = Layout::contiguous(dtype, shape).expect("a small shape");
        graph.input(name, layout).expect("a new name");
    }
    graph
}

/// Parses `bytes`: a refused text leaves the graph as it was, and its error points into the text;
/// of an accepted one a program can be made, or is refused with its reason.
pub(crate) fn holds_for(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut graph = inputs();
    if let Err(wrong) = parse(&mut graph, &text) {
        assert!(graph == inputs(), "{text}");
        assert!(text.is_char_boundary(wrong.at), "{text:?}");
        assert!(wrong.to_string().len() < 2000, "{wrong}");
        return;
    }
    assert!(text.len() <= MAX_BYTES);
    if text.len() > COMPILED_BYTES {
        return;
    }
    let Ok(program) = Program::of(&graph, Arch::SM_90, true) else {
        return;
    };
    if let Ok(ptx) = program.ptx() {
        let module = fercuda_ptx::parse(&ptx).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let wrong = fercuda_ptx::check::check(&module);
        assert!(wrong.is_empty(), "{wrong:?}\n{text}");
    }
}
