//! A mount that is there as long as its value.
//!
//! Invariant: whoever drops it finds it unmounted and its daemon gone, also if the daemon died or hangs.

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

/// A daemon that is told to end and is not gone by then never will.
const LIMIT: Duration = Duration::from_secs(120);
/// The status of a daemon on whose device kernels did what they may not.
const FINDINGS: i32 = 97;

/// What every mount has.
pub(super) struct Shape {
    pub fercuda: PathBuf,
    pub device: String,
    /// Where NVRTC is, if this is known here.
    pub wheels: Option<PathBuf>,
}

pub(super) struct Mounted {
    daemon: Child,
    dir: TempDir,
}

impl Mounted {
    pub(super) fn new(shape: &Shape, options: &[String], log: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // Tests become others, who have to come by.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
        let file = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut command = Command::new(&shape.fercuda);
        command
            .args(["vram", "mount", "--foreground", "--allow-other"])
            .args(["--device", &shape.device])
            .args(options)
            .arg(dir.path())
            .env("FERCUDA_SOFT_CHECK", "1")
            .env("FERCUDA_SOFT_CHECK_EXIT", FINDINGS.to_string());
        // Without the code there is no kernel to check, and copies take ten times as long.
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
        let mut said = String::new();
        if let Some(from) = it.daemon.stdout.take() {
            BufReader::new(from).read_line(&mut said)?;
        }
        if !said.starts_with("mounted at ") {
            let why = std::fs::read_to_string(log)?;
            bail!("cannot mount with {}\n{said}{why}", options.join(" "));
        }
        Ok(it)
    }

    pub(super) fn pid(&self) -> u32 {
        self.daemon.id()
    }

    pub(super) fn at(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts it and says whether the daemon ended well: it lived, unmounted by itself, and nothing was found.
    pub(super) fn end(mut self) -> Result<()> {
        if let Some(status) = self.daemon.try_wait()? {
            bail!("the daemon was gone before it was told to: {status}");
        }
        kill_process(Pid::from_child(&self.daemon), Signal::TERM)?;
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.daemon.try_wait()? {
                break status;
            }
            if began.elapsed() > LIMIT {
                bail!(
                    "the daemon is still there {} s after SIGTERM",
                    LIMIT.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        match status.code() {
            Some(0) => Ok(()),
            Some(FINDINGS) => bail!("kernels did what they may not; the mount's log says what"),
            _ => bail!("the daemon ended with {status}"),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Ok(None) = self.daemon.try_wait() {
            let _gone = self.daemon.kill();
            let _status = self.daemon.wait();
        }
        // What nobody serves any more; usually it is unmounted, and this is refused.
        let _not_mounted = rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH);
    }
}
