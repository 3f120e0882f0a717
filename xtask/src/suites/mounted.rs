//! RAII guard of a mount for one suite.
//!
//! Invariant: after its drop the mount and its daemon are gone, also if the daemon crashed or
//! hangs.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Time for the daemon to exit after SIGTERM; afterwards it counts as hung.
const EXIT_TIMEOUT: Duration = Duration::from_secs(120);
/// Exit status of a daemon after the software device's checks have reported findings.
const FINDINGS_STATUS: i32 = 97;

/// Settings that all mounts share.
pub(super) struct MountSettings {
    pub fercuda: PathBuf,
    pub device: String,
    /// Directory with NVRTC, if known.
    pub wheels: Option<PathBuf>,
}

pub(super) struct SuiteMount {
    daemon: Child,
    dir: TempDir,
}

impl SuiteMount {
    pub(super) fn new(shape: &MountSettings, options: &[String], log: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // Tests switch to other users, which need access.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
        let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut command = Command::new(&shape.fercuda);
        command
            .args(["vram", "mount", "--foreground", "--allow-other"])
            .args(["--device", &shape.device])
            .args(options)
            .arg(dir.path())
            .env("FERCUDA_SOFT_CHECK", "1")
            .env("FERCUDA_SOFT_CHECK_EXIT", FINDINGS_STATUS.to_string());
        // Without ECC no kernel runs that could be checked, and the checks make copies ten times as
        // slow.
        if options.iter().any(|option| option == "--ecc=off") {
            command.env("FERCUDA_SOFT_CHECK", "0");
        }
        if let Some(wheels) = &shape.wheels {
            command.env("FERCUDA_WHEELS", wheels);
        }
        let daemon = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn();
        let daemon = daemon.with_context(|| format!("cannot start {}", shape.fercuda.display()))?;
        let mut it = Self { daemon, dir };
        let mut output = String::new();
        if let Some(from) = it.daemon.stdout.take() {
            BufReader::new(from).read_line(&mut output)?;
        }
        if !output.starts_with("mounted at ") {
            let why = std::fs::read_to_string(log)?;
            bail!("cannot mount with {}\n{output}{why}", options.join(" "));
        }
        Ok(it)
    }

    pub(super) fn pid(&self) -> u32 {
        self.daemon.id()
    }

    pub(super) fn at(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts; an error unless the daemon was running, exited by itself with status 0 and had no
    /// findings.
    pub(super) fn end(mut self) -> Result<()> {
        if let Some(status) = self.daemon.try_wait()? {
            bail!("the daemon exited before SIGTERM: {status}");
        }
        kill_process(Pid::from_child(&self.daemon), Signal::TERM)?;
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.daemon.try_wait()? {
                break status;
            }
            if began.elapsed() > EXIT_TIMEOUT {
                bail!(
                    "the daemon is still running {} s after SIGTERM",
                    EXIT_TIMEOUT.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        match status.code() {
            Some(0) => Ok(()),
            Some(FINDINGS_STATUS) => {
                bail!("the software device's checks reported findings; they are in the mount's log")
            }
            _ => bail!("the daemon ended with {status}"),
        }
    }
}

impl Drop for SuiteMount {
    fn drop(&mut self) {
        if let Ok(None) = self.daemon.try_wait() {
            let _gone = self.daemon.kill();
            let _status = self.daemon.wait();
        }
        // Detaches a dead mount; usually it is unmounted already, and this fails.
        let _not_mounted = rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH);
    }
}
