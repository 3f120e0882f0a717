//! Property tests over texts, most of them invalid: none panics or hangs, and every valid one
//! round-trips.

mod property;

use fercuda_trials::{Work, corpus, try_mutations};
use property::holds_for;
use proptest::prelude::*;
use std::path::PathBuf;

/// The hand-written files, which are what is mutated.
fn forms() -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/forms");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|e| e.expect("an entry").path())
        .collect();
    files.sort_by_key(|file| (file.metadata().map_or(0, |it| it.len()), file.clone()));
    // Miri takes minutes for a long one.
    files.truncate(if cfg!(miri) { 1 } else { usize::MAX });
    files
        .into_iter()
        .map(|path| std::fs::read_to_string(path).expect("a text"))
        .collect()
}

/// Miri takes some hundred times as long.
const CASES: u32 = if cfg!(miri) { 3 } else { 3000 };

/// One change of a text.
#[derive(Debug, Clone)]
enum Edit {
    Delete {
        at: prop::sample::Index,
        len: usize,
    },
    Insert {
        at: prop::sample::Index,
        token: &'static str,
    },
    Replace {
        at: prop::sample::Index,
        byte: u8,
    },
    Copy {
        from: prop::sample::Index,
        len: usize,
        to: prop::sample::Index,
    },
    Truncate {
        at: prop::sample::Index,
    },
}

const TOKENS: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ",",
    ";",
    ":",
    "::",
    ".",
    "|",
    "!",
    "@",
    "@!",
    "+",
    "-",
    "*",
    "/",
    "%",
    "~",
    "?",
    "=",
    "==",
    "<<",
    "&&",
    "\"",
    "//",
    "/*",
    "*/",
    "\n",
    " ",
    "0",
    "1",
    "-1",
    "0x",
    "0xFF(",
    "0f3F800000",
    "0d",
    "1.5e",
    "08",
    "18446744073709551615U",
    "99999999999999999999",
    "_",
    "%",
    "$",
    "%r1",
    "%tid.x",
    "%tid.r",
    "a.x",
    "a.b0",
    "generic(",
    "mask(",
    "WARP_SZ",
    "name",
    "add",
    "add.s32",
    ".reg .b32 %r<3>;",
    ".param",
    ".align",
    ".ptr",
    ".b32",
    ".v4",
    ".func",
    ".entry",
    ".visible",
    ".extern",
    ".global",
    ".section .x {",
    ".loc 1 2 3",
    ", function_name",
    ", inlined_at",
    ".pragma",
    ".branchtargets",
    ".callprototype",
    ".file 1 \"x\"",
    ".alias",
    ".attribute(",
    ".maxntid 1",
    ".noreturn",
    "call (a), f, (b), p;",
    "ret;",
    "L:",
    ".version 9.0",
    ".target sm_90",
    "\u{e9}",
    "\u{1f600}",
    "\0",
    "\r",
    "\u{85}",
    "\u{a0}",
];

fn edit() -> impl Strategy<Value = Edit> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (index(), 1usize..40).prop_map(|(at, len)| Edit::Delete { at, len }),
        (index(), prop::sample::select(TOKENS)).prop_map(|(at, token)| Edit::Insert { at, token }),
        (index(), any::<u8>()).prop_map(|(at, byte)| Edit::Replace { at, byte }),
        (index(), 1usize..200, index()).prop_map(|(from, len, to)| Edit::Copy { from, len, to }),
        index().prop_map(|at| Edit::Truncate { at }),
    ]
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    if bytes.is_empty() {
        return;
    }
    match edit {
        Edit::Delete { at, len } => {
            let at = at.index(bytes.len());
            let end = (at + len).min(bytes.len());
            bytes.drain(at..end);
        }
        Edit::Insert { at, token } => {
            let at = at.index(bytes.len());
            bytes.splice(at..at, token.bytes());
        }
        Edit::Replace { at, byte } => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Edit::Copy { from, len, to } => {
            let from = from.index(bytes.len());
            let part = bytes[from..(from + len).min(bytes.len())].to_vec();
            let to = to.index(bytes.len());
            bytes.splice(to..to, part);
        }
        Edit::Truncate { at } => bytes.truncate(at.index(bytes.len())),
    }
}

#[test]
fn modules_mutated_for_a_while_are_read_or_refused() {
    const WORK: Work = Work {
        name: "ptx-texts",
        least: 200,
        ci_seconds: 2,
        soak: 1_000_000,
    };
    let root = env!("CARGO_MANIFEST_DIR");
    let mut inputs = corpus(root, WORK.name);
    inputs.extend(forms().into_iter().map(String::into_bytes));
    try_mutations(root, WORK, &inputs, |bytes| {
        holds_for(&String::from_utf8_lossy(bytes));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn a_mutated_module_is_read_or_refused(
        form in any::<prop::sample::Index>(),
        edits in prop::collection::vec(edit(), 1..6),
    ) {
        let mut forms = forms();
        let mut bytes = forms.swap_remove(form.index(forms.len())).into_bytes();
        for edit in &edits {
            apply(&mut bytes, edit);
        }
        holds_for(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400), head in any::<bool>()) {
        let head = if head { ".version 9.0 .target sm_90 " } else { "" };
        holds_for(&format!("{head}{}", String::from_utf8_lossy(&bytes)));
    }

    #[test]
    fn any_tokens_are_read_or_refused(
        tokens in prop::collection::vec(prop::sample::select(TOKENS), 0..60),
        within in any::<bool>(),
    ) {
        let text = tokens.join(" ");
        let text = if within {
            format!(".version 9.0 .target sm_90 .entry k() {{ {text} }}")
        } else {
            format!(".version 9.0 .target sm_90 {text}")
        };
        holds_for(&text);
    }
}

#[test]
fn every_prefix_of_a_module_is_read_or_refused() {
    let texts = forms();
    let shortest = texts.iter().min_by_key(|t| t.len()).expect("a form");
    for end in (0..shortest.len()).step_by(if cfg!(miri) { 1009 } else { 1 }) {
        if shortest.is_char_boundary(end) {
            holds_for(&shortest[..end]);
        }
    }
}
