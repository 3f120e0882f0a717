//! Libraries compiled from `tests/fake`, and the software device that they work on.

use std::path::{Path, PathBuf};
use std::process::Command;

use fercuda_cuda::{Context, Cuda, Select};

/// A compiled library and the record of its calls.
pub(crate) struct FakeLibrary {
    folder: tempfile::TempDir,
}

impl FakeLibrary {
    /// Compiles `tests/fake/NAME.c` with these definitions.
    pub(crate) fn new(name: &str, definitions: &[&str]) -> Self {
        let library = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        library.compile(name, definitions, &library.file());
        library
    }

    /// Compiles one more into `file`.
    pub(crate) fn compile(&self, name: &str, definitions: &[&str], file: &Path) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let built = Command::new(cc)
            .args(["-shared", "-fPIC", "-O1", "-Wall"])
            .arg(format!(
                "-DLOG=\"{}\"",
                self.folder.path().join("log").display()
            ))
            .args(definitions.iter().map(|it| format!("-D{it}")))
            .arg(source.join(format!("{name}.c")))
            .arg("-o")
            .arg(file)
            .arg("-lm")
            .output()
            .unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder().join("library.so")
    }

    /// Its calls so far, a line each.
    pub(crate) fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// How many of its calls begin so.
    pub(crate) fn count(&self, start: &str) -> usize {
        let log = self.log();
        log.iter().filter(|line| line.starts_with(start)).count()
    }
}

/// A context of the software device.
pub(crate) fn context() -> Context {
    let cuda = Cuda::select(Select::Software).unwrap();
    Context::primary(cuda.device(0).unwrap()).unwrap()
}
