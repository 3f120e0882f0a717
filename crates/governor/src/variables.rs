//! Table of all environment variables of feRcuda: values, meaning, and the program that reads each.
//!
//! Invariant: docs/environment.md has these rows and no others, and each variable is read
//! somewhere; a test here and `cargo xtask tidy` ensure it. An unknown variable with our prefix is
//! a mistake that deserves a warning.

/// The part of feRcuda that reads a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VariableReader {
    /// Code that selects a device: `fercuda`, and programs over the `cuda` crate.
    Device,
    /// The hook in a governed process, and `fercuda run` for it.
    Hook,
    /// The software device.
    Software,
    /// What opens libraries of NVIDIA: the compiler of CUDA C++, and `vendor`.
    Compiler,
    /// Tests and chores.
    Chores,
}

/// One variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvVariable {
    /// Its name.
    pub name: &'static str,
    /// Allowed values, and the default.
    pub values: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Its reader.
    pub reader: VariableReader,
}

const fn row(
    reader: VariableReader,
    name: &'static str,
    values: &'static str,
    meaning: &'static str,
) -> EnvVariable {
    EnvVariable {
        name,
        values,
        meaning,
        reader,
    }
}

/// All of them, in the order of docs/environment.md.
pub const VARIABLES: &[EnvVariable] = &[
    row(
        VariableReader::Device,
        "FERCUDA_DEVICE",
        "`auto` (default), `gpu`, `soft`",
        "`auto` takes the real driver if it has a device, else the software device; a driver that is there and broken is an error; `gpu` fails without a GPU",
    ),
    row(
        VariableReader::Hook,
        "FERCUDA_DISABLE",
        "`0` (default), `1`",
        "the hook is there and does nothing: every call goes to the driver as it is",
    ),
    row(
        VariableReader::Hook,
        "FERCUDA_LIMIT",
        "a size such as `8GiB`, default none",
        "what a process may use on each device",
    ),
    row(
        VariableReader::Hook,
        "FERCUDA_TENANT_LIMITS",
        "such as `torch=4GiB,jax=2GiB`, at most 63, default none",
        "what a library may use on each device, by its name in the ledger",
    ),
    row(
        VariableReader::Hook,
        "FERCUDA_BACKING",
        "`vmm` (default), `slabs`",
        "where pooled memory comes from: mapped, so that all of it that is empty can be used elsewhere or go back; or `cuMemAlloc` slabs, which go back only whole, for drivers that cannot export mapped memory to other processes (`cuIpcGetMemHandle`). Where it is not set and the software device checks accesses, nothing is pooled: each block is an allocation of that device, which knows its bounds then",
    ),
    row(
        VariableReader::Hook,
        "FERCUDA_RECLAIM",
        "`1` (default), `0`",
        "when an allocation would fail, PyTorch and CuPy are asked to release memory that they cache and do not use; `0`: they are not",
    ),
    row(
        VariableReader::Hook,
        "FERCUDA_DRIVER",
        "an absolute path",
        "the driver's library below the hook; default NVIDIA's, found as the loader does",
    ),
    row(
        VariableReader::Hook,
        "FERCUDA_TRACE",
        "a file, default none",
        "every allocation, failed or not, and free as \
         `Thread,Time,Action,Pointer,Size,Stream,Device,Tenant`; for `fercuda replay`",
    ),
    row(
        VariableReader::Hook,
        "FERCUDA_RUN",
        "a number from 1",
        "the run that a process belongs to; `fercuda run` gives it to all that it starts",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_CHECK",
        "`0` (default), `1`",
        "report undefined behaviour of kernels and wrongly ordered accesses; on in tests and under `fercuda check`",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_CHECK_EXIT",
        "a number",
        "exit status of a process that had findings, for programs over the drop-in library",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_CHECK_LEAKS",
        "`0` (default), `1`, `fail`",
        "report memory that the program does not free; with `fail`, such memory counts for `FERCUDA_SOFT_CHECK_EXIT`; `fercuda check --leaks`",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_CHECK_REPORT",
        "an existing file, default none",
        "findings and faults are appended to it, a JSON object a line, instead of being printed; `fercuda check -- PROGRAM` sets it",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_CHECK_SAME_VALUE",
        "`0` (default), `1`",
        "report writes of the same value by threads that nothing orders; `fercuda check --same-value`",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_CHECK_VOLATILE",
        "`0` (default), `1`",
        "report races of volatile accesses; `fercuda check --volatile-races`",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_DEVICES",
        "a number, default 1",
        "how many devices there are",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_LATE_COPIES",
        "`0` (default), `1`",
        "execute `cp.async` as late as the program allows; always so with checks on",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_LOST",
        "such as `1@300`, default none",
        "device 1 is lost after 300 copies, launches and the like, as a card that falls off its bus",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_MEMORY",
        "a size such as `512MiB`, default `8GiB`",
        "memory of each device; backed by the host's only where touched",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_THREADS",
        "a number, default the host's processors",
        "host threads that execute kernels",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_SOFT_WATCHDOG",
        "a time such as `500ms`, default none",
        "a kernel that runs longer ends with CUDA's launch time-out",
    ),
    row(
        VariableReader::Software,
        "FERCUDA_QUIET",
        "`0` (default), `1`",
        "do not say which unimplemented functions were called",
    ),
    row(
        VariableReader::Compiler,
        "FERCUDA_NVRTC",
        "a file",
        "the `libnvrtc` to open, before any other place",
    ),
    row(
        VariableReader::Compiler,
        "FERCUDA_CUBLASLT",
        "a file",
        "the `libcublasLt` to open, before any other place",
    ),
    row(
        VariableReader::Compiler,
        "FERCUDA_CUFFT",
        "a file",
        "the `libcufft` to open, before any other place",
    ),
    row(
        VariableReader::Compiler,
        "FERCUDA_CACHE",
        "a folder; empty for none",
        "where compiled programs are kept; default `fercuda/nvrtc` and `fercuda/jit` in the user's cache folder",
    ),
    row(
        VariableReader::Compiler,
        "FERCUDA_WHEELS",
        "a folder",
        "a Python environment with NVIDIA's wheels, or its `site-packages/nvidia`; `cargo` and `cargo xtask` set it to build/venv's",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_BLESS",
        "`1`",
        "a test that compares with a file writes the file instead; read the difference before committing",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_PYTHON",
        "a file",
        "the Python that has the test wheels; `cargo xtask` sets it to build/venv's",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_TORCH_PYTHON",
        "a file",
        "a Python that has PyTorch, for comparing our attention with PyTorch's on a GPU machine",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_OPS",
        "names of ops, with commas between",
        "the ops that the parity test of `fercuda-ops` tries, instead of all",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_SEED",
        "a number",
        "repeats a run with random data; a failing test prints the seed it used",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_BUDGET",
        "`ci` (default), `soak`, or seconds",
        "how long each kind of randomised test goes on: `ci` a fixed time, `soak` a fixed amount, a number that many seconds; at least a small amount (crates/trials)",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_ISA_RECORD",
        "a file",
        "where the test `isa` writes what the device stored for every instruction form; run on a GPU, it makes `crates/testkit/isa/h200.bin` anew",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_APPROX_RECORD",
        "a file",
        "where the test `approx` writes the device's sums over the results of every `.approx` instruction; run on a GPU, it makes `crates/testkit/isa/approx.bin` anew",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_COMMIT",
        "a commit, default git's",
        "what `fercuda --version` of a build names; `SOURCE_DATE_EPOCH` (seconds since 1970), default the commit's time, is its date",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_WHEEL_PARTS",
        "a folder with `bin` and `lib/fercuda`",
        "the program and the libraries that go into a Python wheel, instead of building them; `cargo xtask release` sets it",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_BUNDLE",
        "a folder",
        "where the bundle made by `cargo xtask gpu` lies; its `run.sh` sets it",
    ),
    row(
        VariableReader::Chores,
        "FERCUDA_STEP_LIMIT",
        "seconds, default 300",
        "how long one step of that script may take",
    ),
];

/// The prefix of our variables.
pub(crate) const PREFIX: &str = "FERCUDA_";

/// Whether a name has our prefix but is unknown. Variables that tests pass to their own processes
/// (`_TEST_`) are ignored.
pub(crate) fn is_mistaken(name: &str) -> bool {
    let ours = name.starts_with(PREFIX) && !name.contains("_TEST_");
    ours && VARIABLES.iter().all(|known| known.name != name)
}

/// The variable whose name takes the fewest edits to reach from `name`, if that is at most a third
/// of the part behind our prefix.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let own = |name: &str| name.len().saturating_sub(PREFIX.len());
    VARIABLES
        .iter()
        .map(|known| (edit_distance(name, known.name), known.name))
        .min()
        .filter(|(edits, known)| *edits <= own(name).max(own(known)).div_ceil(3))
        .map(|(_, known)| known)
}

/// Levenshtein's distance between two names, in bytes.
pub fn edit_distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = substituted.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_these_rows_and_no_others() {
        let document = include_str!("../../../docs/environment.md");
        let rows: Vec<&str> = document
            .lines()
            // Others are of libraries.
            .filter(|line| line.starts_with("| `FERCUDA_"))
            .collect();
        let expected: Vec<String> = VARIABLES
            .iter()
            .map(|it| format!("| `{}` | {} | {} |", it.name, it.values, it.meaning))
            .collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
    }

    #[test]
    fn an_unknown_name_of_ours_finds_the_nearest_variable() {
        for (name, neighbour) in [
            ("FERCUDA_LIMT", Some("FERCUDA_LIMIT")),
            ("FERCUDA_LIMITS", Some("FERCUDA_LIMIT")),
            ("FERCUDA_TENANT_LIMIT", Some("FERCUDA_TENANT_LIMITS")),
            ("FERCUDA_DEVCIE", Some("FERCUDA_DEVICE")),
            ("FERCUDA_SOTF_MEMORY", Some("FERCUDA_SOFT_MEMORY")),
            ("FERCUDA_ZZZ", None),
        ] {
            assert!(is_mistaken(name), "{name}");
            assert_eq!(nearest(name), neighbour, "{name}");
        }
        for fine in ["FERCUDA_LIMIT", "FERCUDA_TEST_X", "CUDA_LIMT", "PATH"] {
            assert!(!is_mistaken(fine), "{fine}");
        }
    }
}
