//! Runs NVIDIA's assembler from the wheels that `FERCUDA_WHEELS` names.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fercuda_ptx::build::Arch;

/// A ptxas that can be run.
pub(crate) struct Ptxas {
    folder: tempfile::TempDir,
}

/// The ptxas of the wheels, or `None` where `FERCUDA_WHEELS` is not set or names nothing, as
/// cargo's configuration does before `cargo xtask setup`.
///
/// # Panics
/// If it names a folder and there is no ptxas in it: that is a broken set-up, not a reason to
/// skip.
pub(crate) fn find() -> Option<Ptxas> {
    let named = PathBuf::from(std::env::var_os("FERCUDA_WHEELS")?);
    let pythons = named.join("lib").read_dir();
    let of_environment = pythons.into_iter().flatten().flatten();
    let of_environment = of_environment.map(|it| it.path().join("site-packages/nvidia"));
    let wheels = of_environment
        .chain([named.clone()])
        .find(|wheels| wheels.is_dir())?;
    let found = ["", "cu13", "cuda_nvcc", "nvidia/cu13"]
        .iter()
        .map(|f| wheels.join(f).join("bin/ptxas"))
        .find(|p| p.is_file())
        .unwrap_or_else(|| panic!("no bin/ptxas under FERCUDA_WHEELS={}", wheels.display()));
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The wheels' programs lack the run bit, and are not ours to change. Another process copies:
    // a file that this one had open for writing could be inherited by a child of another test,
    // and then not be run.
    let status = Command::new("install")
        .args(["-m", "755"])
        .arg(&found)
        .arg(folder.path().join("ptxas"))
        .status();
    assert!(
        status.is_ok_and(|s| s.success()),
        "`install` copies {}",
        found.display()
    );
    Some(Ptxas { folder })
}

impl Ptxas {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Assembles `text`; gives what ptxas says, resource use included.
    ///
    /// # Panics
    /// If it does not assemble.
    pub(crate) fn assemble(&self, text: &str, arch: Arch) -> String {
        let source = self.path("kernel.ptx");
        fs::write(&source, text).expect("the source can be written");
        let run = Command::new(self.path("ptxas"))
            .args(["-v", "--gpu-name", &arch.to_string(), "-o"])
            .arg(self.path("kernel.cubin"))
            .arg(&source)
            .output()
            .expect("ptxas runs");
        let log = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(
            run.status.success(),
            "ptxas refuses for {arch}:\n{log}\n{}",
            numbered(text)
        );
        assert!(Path::new(&self.path("kernel.cubin")).is_file());
        log
    }

    /// Whether ptxas refuses `text`.
    ///
    /// # Panics
    /// If it cannot be run.
    #[allow(dead_code, reason = "one of the test programs that share this uses it")]
    pub(crate) fn refuses(&self, text: &str, arch: Arch) -> bool {
        let source = self.path("judged.ptx");
        fs::write(&source, text).expect("the source can be written");
        let run = Command::new(self.path("ptxas"))
            .args(["--gpu-name", &arch.to_string(), "-o", "/dev/null"])
            .arg(&source)
            .output()
            .expect("ptxas runs");
        !run.status.success()
    }

    /// The lines of `text` that ptxas refuses.
    ///
    /// # Panics
    /// If it cannot be run.
    #[allow(dead_code, reason = "one of the test programs that share this uses it")]
    pub(crate) fn refused_lines(&self, text: &str, arch: impl Display) -> BTreeSet<u32> {
        let source = self.path("refused.ptx");
        fs::write(&source, text).expect("the source can be written");
        let run = Command::new(self.path("ptxas"))
            .args(["--gpu-name", &arch.to_string(), "-o", "/dev/null"])
            .arg(&source)
            .output()
            .expect("ptxas runs");
        let log = String::from_utf8_lossy(&run.stderr).into_owned()
            + &String::from_utf8_lossy(&run.stdout);
        log.lines()
            .filter(|line| line.contains("; error ") || line.contains("; fatal "))
            .filter_map(|line| line.split_once(", line ")?.1.split_once(';'))
            .filter_map(|(line, _)| line.parse().ok())
            .collect()
    }
}

fn numbered(text: &str) -> String {
    text.lines()
        .enumerate()
        .map(|(i, l)| format!("{:5} {l}\n", i + 1))
        .collect()
}
