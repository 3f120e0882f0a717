//! Positions in the program's source of code that the compiler inlined, from `.loc`.
//!
//! Each `.loc` of inlined code names its function's position and that of the call, which is again
//! inlined in one that a `.loc` before it named.

use std::sync::Arc;

use fercuda_ptx::ast::Loc;
use rustc_hash::FxHashMap;

/// Folders of the headers that come with CUDA, by the name of one of them.
const LIBRARIES: [&str; 6] = [
    "nvidia",
    "cccl",
    "cub",
    "thrust",
    "libcudacxx",
    "cooperative_groups",
];

/// File, line and column.
type Position = (u32, u32, u32);

/// The calls that the code of one function was inlined at.
#[derive(Debug, Default)]
pub(crate) struct InlinedCalls {
    calls: FxHashMap<Position, Position>,
}

/// A file and a line of it.
type FileLine = (u32, u32);

impl InlinedCalls {
    /// The program's own line that `loc` is part of, and the line of the library inlined there,
    /// if it is one.
    pub(crate) fn resolve(
        &mut self,
        loc: &Loc,
        files: &[Arc<str>],
    ) -> (FileLine, Option<FileLine>) {
        let inner = (loc.file, loc.line, loc.column);
        let mut chain = vec![inner];
        if let Some(at) = &loc.inlined {
            let call = (at.file, at.line, at.column);
            chain.extend(self.outwards(call));
            // A function inlined into itself keeps the call from outside.
            if !chain[1..].contains(&inner) {
                self.calls.insert(inner, call);
            }
        } else {
            self.calls.remove(&inner);
        }
        let path = |position: &Position| files.get(position.0 as usize).map_or("", |it| it);
        let outer = chain.last().map_or("", path);
        let own = |it: &&Position| path(it) == outer || !is_of_a_library(path(it), outer);
        let own = chain.iter().find(own).copied().unwrap_or(inner);
        let library = (own != inner).then_some((inner.0, inner.1));
        ((own.0, own.1), library)
    }

    /// `call` and the calls around it, outwards.
    fn outwards(&self, call: Position) -> impl Iterator<Item = Position> + '_ {
        const DEPTH: usize = 256;
        std::iter::successors(Some(call), move |it| self.calls.get(it).copied()).take(DEPTH)
    }
}

/// Whether `path` is of a header that comes with CUDA, and not with the program in `program`: the
/// folders that both are in say nothing.
fn is_of_a_library(path: &str, program: &str) -> bool {
    let folders = |path: &str| {
        path.rsplit_once('/')
            .map_or(String::new(), |it| it.0.to_owned())
    };
    let (path, program) = (folders(path), folders(program));
    let common = path
        .split('/')
        .zip(program.split('/'))
        .take_while(|(a, b)| a == b);
    path.split('/').skip(common.count()).any(|folder| {
        LIBRARIES.contains(&folder) || folder == "cuda" || folder.starts_with("cuda-")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fercuda_ptx::ast::Stmt;

    /// The positions of `body` in files 1 `k.cu`, 2 `util.h` and 3, 4 of CUDA's.
    fn resolved(body: &str) -> Vec<(FileLine, Option<FileLine>)> {
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{{\n{body}ret;\n}}\n"
        );
        let module = fercuda_ptx::parse(&text).expect("valid PTX");
        let files: Vec<Arc<str>> = [
            "",
            "/src/a/cuda/k.cu",
            "/src/a/cuda/include/util.h",
            "/x/nvidia/cu13/include/mma.h",
            "/usr/local/cuda-13.0/include/crt/mma.hpp",
        ]
        .map(Arc::from)
        .to_vec();
        let mut calls = InlinedCalls::default();
        let function = module.functions().next().expect("a kernel");
        let statements = function.body.iter().flatten();
        statements
            .filter_map(|it| match it {
                Stmt::Loc(loc) => Some(calls.resolve(loc, &files)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn code_of_a_library_is_at_the_programs_line_and_own_functions_at_their_own() {
        let got = resolved(
            ".loc 1 9 3\n.loc 2 5 3, function_name $L0, inlined_at 1 9 3\n\
             .loc 3 70 1, function_name $L0, inlined_at 2 5 3\n\
             .loc 4 80 1, function_name $L0, inlined_at 3 70 1\n.loc 1 10 3\n",
        );
        assert_eq!(
            got,
            [
                ((1, 9), None),
                ((2, 5), None),
                ((2, 5), Some((3, 70))),
                ((2, 5), Some((4, 80))),
                ((1, 10), None)
            ]
        );
    }

    #[test]
    fn a_function_inlined_into_itself_ends_at_the_program() {
        let got = resolved(
            ".loc 1 9 3\n.loc 4 34 5, function_name $L0, inlined_at 1 9 3\n\
             .loc 4 34 5, function_name $L0, inlined_at 4 34 5\n\
             .loc 4 12 5, function_name $L0, inlined_at 4 34 5\n\
             .loc 4 34 5, function_name $L0, inlined_at 4 12 5\n",
        );
        assert!(got.iter().all(|(own, _)| *own == (1, 9)), "{got:?}");
    }
}
