//! Parser of expressions as text. The README has the grammar.
//!
//! Statements are separated by `;`, and may be named: `t = x * 0.5; softmax(t)`. A statement that
//! no later one uses is an output. Operators have C's precedence; functions have the names that the
//! printed forms use. A number literal has the type of its other operand, else f32.
//!
//! Invariants: an error has the position at which the text is invalid, and leaves the graph
//! unchanged. For any text, parsing takes no more stack than the maximum nesting, and time linear
//! in its length, which is bounded. Elsewhere: semantics of the operations (`op`, `graph`).

mod lower;
mod problem;
mod syntax;

use crate::graph::ExprGraph;

pub use lower::MAX_BYTES;
pub use problem::TextError;
pub use syntax::MAX_DEPTH;

/// Parses a text that names a graph's inputs, and adds its nodes and outputs to the graph.
///
/// # Errors
/// The problem and its position; the graph is unchanged.
pub fn parse(graph: &mut ExprGraph, text: &str) -> Result<(), TextError> {
    let mut located = graph.clone();
    match lower::read(&mut located, text) {
        Ok(()) => {
            *graph = located;
            Ok(())
        }
        Err(wrong) => Err(TextError::new(wrong, text)),
    }
}

#[cfg(test)]
mod tests {
    use fercuda_tensor::Layout;

    use super::*;
    use fercuda_tensor::Dtype;

    use crate::graph::MAX_NODES;
    use crate::reference::{self, ExactValue};

    fn inputs() -> ExprGraph {
        let mut graph = ExprGraph::new();
        for (name, dtype, shape) in [
            ("x", Dtype::F32, &[2, 3][..]),
            ("v", Dtype::F32, &[3]),
            ("i", Dtype::I32, &[2, 3]),
        ] {
            let layout = Layout::contiguous(dtype, shape).unwrap();
            graph.input(name, layout).unwrap();
        }
        graph
    }

    fn graph(text: &str) -> std::result::Result<ExprGraph, TextError> {
        let mut graph = inputs();
        let parsed = parse(&mut graph, text);
        // A refused text leaves the graph unchanged.
        assert!(parsed.is_ok() || graph == inputs(), "{text}");
        parsed.map(|()| graph)
    }

    /// The elements of the first output.
    fn values(text: &str) -> Vec<f64> {
        let graph = match graph(text) {
            Ok(graph) => graph,
            Err(wrong) => panic!("{wrong}"),
        };
        let floats = |values: &[f32]| values.iter().map(|x| u64::from(x.to_bits())).collect();
        let inputs = [
            floats(&[1.0, 2.0, 3.0, -4.0, 5.0, 6.0]),
            floats(&[10.0, 20.0, 30.0]),
            vec![1, 2, 3, 4, 5, 6],
        ];
        let outputs = reference::evaluate(&graph, &inputs);
        let value = |near: &reference::Near| match near.value {
            ExactValue::Float(value) => value,
            ExactValue::Int(value) => value as f64,
        };
        outputs[0].iter().map(value).collect()
    }

    #[test]
    fn operators_have_the_precedence_of_c_and_functions_their_meaning() {
        assert_eq!(values("x + v * 2"), [21.0, 42.0, 63.0, 16.0, 45.0, 66.0]);
        assert_eq!(values("(x + v) * 2"), [22.0, 44.0, 66.0, 12.0, 50.0, 72.0]);
        assert_eq!(values("10 - 4 - 3"), [3.0]);
        assert_eq!(values("-x * 2 - 1")[0], -3.0);
        assert_eq!(values("i << 1 | 1"), [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]);
        assert_eq!(values("x < 0 | x >= 5"), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(values("sum(x, axis=1)"), [6.0, 7.0]);
        assert_eq!(values("sum(x, axis=[0, -1])"), [13.0]);
        assert_eq!(values("max(x)"), [6.0]);
        assert_eq!(values("max(x, 2.5)")[..2], [2.5, 2.5]);
        assert_eq!(values("argmax(x, axis=-1)"), [2.0, 2.0]);
        assert_eq!(
            values("permute(x, [1, 0])"),
            [1.0, -4.0, 2.0, 5.0, 3.0, 6.0]
        );
        assert_eq!(
            values("slice(x, axis=1, start=1, step=1)"),
            [2.0, 3.0, 5.0, 6.0]
        );
        assert_eq!(
            values("select(x < 0, 0, x)"),
            [1.0, 2.0, 3.0, 0.0, 5.0, 6.0]
        );
        assert_eq!(values("i32(2) * i"), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!(values("25e-2 * 4E0"), [1.0]);
        assert_eq!(values("t = x * x; t + t")[5], 72.0);
    }

    #[test]
    fn unused_statements_are_outputs() {
        let graph = graph("a = x * 2; b = a + v; c = max(a, axis=1); b - 1").unwrap();
        let names: Vec<&str> = graph.outputs().map(|(name, _)| name).collect();
        assert_eq!(names, ["c", "out3"]);
    }

    #[test]
    fn an_error_points_at_its_column() {
        for (text, column, wanted) in [
            ("", 1, "no expression"),
            ("x +", 4, "missing at the end"),
            ("x + y", 5, "there is no \"y\""),
            ("x * (v + 1", 11, "`)` is missing"),
            ("x $ v", 3, "there is more"),
            ("softmaxx(x)", 1, "no function"),
            ("1 + exp(i)", 5, "exp of i32"),
            ("x + i", 3, "add of f32 and i32"),
            ("sum(x, axis=2)", 13, "no such axis"),
            ("sum(x, axes=1)", 13, "sum has no \"axes\""),
            ("exp(x, v)", 1, "exp of 2 operands"),
            ("reshape(x, 6)", 12, "a list is needed"),
            ("x = x", 1, "two \"x\""),
            ("1.2.3", 1, "not a number"),
            ("[1, 2] + x", 1, "a list is not a value"),
            ("é + x", 1, "begins nothing"),
        ] {
            let wrong = graph(text).unwrap_err();
            let shown = wrong.to_string();
            assert!(shown.starts_with(&format!("column {column}: ")), "{shown}");
            assert!(shown.contains(wanted), "{shown}");
        }
        // In C `a < b < c` is one operator after the other, each at its position.
        assert_eq!(graph("x + 1 - 2 < v * i").unwrap_err().column, 15);
        assert_eq!(graph("x + v - i").unwrap_err().column, 7);
        assert_eq!(graph("nan = x").unwrap_err().column, 1);
    }

    #[test]
    fn error_shows_the_line_only() {
        let wrong = graph("a = x * 2;\n\tb = a + nothing;\n\tb - 1\n").unwrap_err();
        assert_eq!((wrong.line, wrong.column), (2, 10));
        let shown = wrong.to_string();
        assert!(
            shown.contains(
                "line 2, column 10: there is no \"nothing\"\n  \tb = a + nothing;\n  \t        ^\n"
            ),
            "{shown}"
        );
        let long = format!("{} ? {}", "x + ".repeat(1000) + "x", "+ x".repeat(5000));
        let shown = graph(&long).unwrap_err().to_string();
        assert!(
            shown.contains("column 4003: ") && shown.len() < 400,
            "{shown}"
        );
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1].find('?'), lines[2].find('^'), "{shown}");
    }

    #[test]
    fn length_and_nesting_are_limited() {
        for (deep, column) in [("(", 202), ("-", 201), ("[", 202), ("exp(", 805)] {
            let wrong = graph(&deep.repeat(10_000)).unwrap_err();
            assert!(wrong.what.contains("more than 200 deep"), "{deep}: {wrong}");
            assert_eq!(wrong.column, column, "{deep}");
        }
        let nested = |depth: usize| format!("{}x{}", "(".repeat(depth), ")".repeat(depth));
        assert!(graph(&nested(MAX_DEPTH)).is_ok());
        let longest = format!("x{}", " ".repeat(MAX_BYTES - 1));
        assert!(graph(&longest).is_ok());
        let wrong = graph(&(longest + " ")).unwrap_err();
        assert!(wrong.what.contains("65537 bytes"), "{wrong}");
        assert!(wrong.to_string().len() < 400, "{wrong}");
    }

    #[test]
    fn a_chain_of_operators_may_be_as_long_as_the_graph() {
        let long = format!("x{}", " + x".repeat(MAX_NODES - 10));
        assert_eq!(values(&long)[2], 3.0 * (MAX_NODES - 9) as f64);
        for (begin, more) in [("x", "+x"), ("1", "+1"), ("x", ";x"), ("i", "|i")] {
            let long = begin.to_owned() + &more.repeat((MAX_BYTES - 1) / more.len());
            let wrong = graph(&long).unwrap_err();
            assert!(wrong.what.contains("more than"), "{begin}{more}: {wrong}");
        }
        assert_eq!(values("1 + 2 + i")[..2], [4.0, 5.0]);
        assert_eq!(values("7 / 2 * i")[..2], [3.0, 6.0]);
        assert_eq!(values("7 / 2 * x")[..2], [3.5, 7.0]);
        assert_eq!(values("x < 2 == true")[..2], [1.0, 0.0]);
    }

    #[test]
    fn every_listed_function_exists() {
        let wrong = graph("nothing(x)").unwrap_err();
        for name in wrong.hint.split(' ') {
            let found = graph(&format!("{name}()")).unwrap_err();
            assert!(found.what.contains("operands"), "{found}");
        }
    }

    #[test]
    fn random_text_never_panics() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let parts = [
            "x", "v", "i", "(", ")", "[", "]", ",", "+", "-", "*", "<", "<<", "=", "==", ";", "1",
            "0.5", "1e", "axis=", "sum", "softmax", "reshape", "slice(", "f16", "é", " ", "!",
            "e9",
        ];
        for _ in 0..20_000 {
            let text: String = (0..random.usize(1..12))
                .map(|_| parts[random.usize(..parts.len())])
                .collect();
            if let Err(wrong) = graph(&text) {
                assert!(text.is_char_boundary(wrong.at), "{text:?}");
                assert_eq!(wrong.column, text[..wrong.at].chars().count() + 1);
            }
        }
    }
}
