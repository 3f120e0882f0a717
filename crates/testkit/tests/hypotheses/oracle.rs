//! Programs of others that the hypotheses compare with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A folder that is removed when the test ends.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO)
            .as_nanos();
        let path =
            std::env::temp_dir().join(format!("fercuda-{name}-{}-{nanos}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Runs a script of `oracle/` with the Python that `variable` names, or the usual one.
pub(crate) fn oracle<'a>(script: &str, arguments: impl Iterator<Item = &'a Path>, variable: &str) {
    let python = std::env::var_os(variable).unwrap_or_else(|| "python3".into());
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Where this program was carried to another machine, its sources came along.
    let folder = bundle().map_or_else(
        || sources.join("oracle"),
        |b| b.join("files/crates/testkit/oracle"),
    );
    let output = Command::new(&python)
        .arg(folder.join(script))
        .args(arguments)
        .output();
    let output = output.unwrap_or_else(|e| {
        panic!(
            "cannot run {}: {e}\ntry: {variable}=/path/to/python",
            python.display()
        )
    });
    assert!(
        output.status.success(),
        "{script}: {}\ntry: `cargo xtask test`, which installs what it needs",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The folder that carried this program here, if one did.
pub(crate) fn bundle() -> Option<PathBuf> {
    std::env::var_os("FERCUDA_BUNDLE").map(PathBuf::from)
}

pub(crate) fn floats(path: &Path) -> Vec<f32> {
    std::fs::read(path)
        .unwrap()
        .chunks_exact(4)
        .map(bytemuck::pod_read_unaligned)
        .collect()
}
