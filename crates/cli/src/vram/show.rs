//! Statistics of mounted filesystems (`df`, `stat`), and unmounting.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, anyhow};
use fercuda_vramfs::mount::{self, Mounted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Map, Value};

use crate::errors::report;
use crate::out::{note, say};
use crate::own_program;
use crate::status::ExitStatus;
use crate::terminal::{bytes, duration, plain, plain_text};

/// Timeouts of `umount`: for the query of the daemon's PID, and for the daemon's exit.
const QUERY_TIMEOUT_SECONDS: i64 = 5;
const EXIT_TIMEOUT_SECONDS: i64 = 30;

/// Unmount a filesystem and discard all of its files.
#[derive(clap::Args)]
#[command(after_help = "\
Returns when the daemon has exited, so that its device memory is free; with
--lazy at once. It does not wait for the daemon of another user's filesystem.")]
pub(crate) struct UmountArgs {
    /// Mount point.
    dir: PathBuf,
    /// Detach now, also if in use; the daemon exits with the last user.
    #[arg(long)]
    lazy: bool,
}

#[derive(clap::Args)]
struct ShowArgs {
    /// Mount points [default: all].
    dirs: Vec<PathBuf>,
    /// Print a JSON array of objects instead of text.
    #[arg(long)]
    json: bool,
}

/// Show capacity and usage.
#[derive(clap::Args)]
#[command(after_help = "\
A filesystem that does not answer (its daemon has exited, or you lack
permission) is reported as an error, and the others are shown nevertheless.
Without DIRS, only filesystems mounted by root or by you are queried. Failed
devices of an array are shown beside the mount point.

Exit status: 0; 3 if a device of an array has failed; 1 if a filesystem does
not answer; 2 for invalid arguments.

Examples:
  fercuda vram df
  fercuda vram df --json /mnt/vram")]
pub(crate) struct DfArgs {
    #[command(flatten)]
    shown: ShowArgs,
}

/// Show all settings, counters and latencies.
#[derive(clap::Args)]
#[command(after_help = "\
`corrected` and `lost` count since the mount. Latencies are those of the
kernel's requests, from reading the request to writing the reply. For an array
there are counts of corrections on each device, and of blocks restored from
another device; `array state` is whole, degraded or failed.

Exit status: 0; 3 if a device of an array has failed; 1 if a filesystem does
not answer; 2 for invalid arguments.

Examples:
  fercuda vram stat /mnt/vram
  fercuda vram stat --json | python3 -m json.tool")]
pub(crate) struct StatArgs {
    #[command(flatten)]
    shown: ShowArgs,
}

/// Settings and counters of one mounted filesystem, by name.
#[derive(Clone)]
pub(super) struct MountStats(Map<String, Value>);

impl MountStats {
    pub(super) fn query(dir: &Path) -> Result<Self> {
        Ok(Self::parse(dir, &mount::figures(dir)?))
    }

    pub(super) fn parse(dir: &Path, text: &str) -> Self {
        let mut all = Map::new();
        all.insert("dir".to_owned(), dir.display().to_string().into());
        for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let numbers: Option<Vec<u64>> = value.split(' ').map(|it| it.parse().ok()).collect();
            let value = match numbers.as_deref() {
                Some([number]) => (*number).into(),
                Some(several) => several.into(),
                // Untrusted: any user that may mount may have written this text.
                None => plain_text(value).into(),
            };
            all.insert(plain_text(name), value);
        }
        Self(all)
    }

    /// Queries these mount points, or all if there are none; one that does not answer is printed as
    /// an error. Also returns whether all have answered.
    pub(super) fn query_all(dirs: &[PathBuf]) -> Result<(Vec<Self>, bool)> {
        let dirs = match dirs.is_empty() {
            true => {
                let (dirs, others) = find_mounts()?;
                others.iter().for_each(|line| note!("{line}"));
                dirs
            }
            false => dirs.to_vec(),
        };
        let mut all = Vec::new();
        for dir in &dirs {
            let answer = Self::query(dir).with_context(|| format!("cannot query {}", plain(dir)));
            match answer {
                Ok(stats) => all.push(stats),
                Err(error) => {
                    report(&error, ExitStatus::Failure);
                }
            }
        }
        let all_answered = all.len() == dirs.len();
        Ok((all, all_answered))
    }

    fn value(&self, name: &str) -> Result<&Value> {
        let none = || {
            anyhow!(
                "the daemon does not report {name}: it runs another version of this program\ntry: fercuda vram umount, and mount again"
            )
        };
        self.0.get(name).ok_or_else(none)
    }

    pub(super) fn number(&self, name: &str) -> Result<u64> {
        let value = self.value(name)?;
        value
            .as_u64()
            .ok_or_else(|| anyhow!("{name} is {value}, expected a number"))
    }

    pub(super) fn text(&self, name: &str) -> Result<&str> {
        let value = self.value(name)?;
        value
            .as_str()
            .ok_or_else(|| anyhow!("{name} is {value}, expected text"))
    }

    /// Device ordinals.
    pub(super) fn devices(&self) -> Result<Vec<u64>> {
        match self.0.contains_key("array") {
            false => Ok(vec![self.number("device_number")?]),
            true => {
                let all = self.text("device_numbers")?.split(',').map(str::parse);
                Ok(all.collect::<Result<_, _>>()?)
            }
        }
    }

    /// Counter of one device of an array.
    pub(super) fn of_device(&self, device: u64, name: &str) -> Result<u64> {
        self.number(&format!("device_{device}_{name}"))
    }

    /// Whether a device of an array has failed.
    pub(super) fn has_failed(&self, device: u64) -> bool {
        let state = self.text(&format!("device_{device}_state"));
        state.is_ok_and(|it| it == "failed")
    }

    /// Describes the failed devices of an array; `None` if none has failed.
    pub(super) fn describe_failed_devices(&self) -> Result<Option<String>> {
        if !self.0.contains_key("array") {
            return Ok(None);
        }
        let failed = self.devices()?;
        let failed = failed.into_iter().filter(|it| self.has_failed(*it));
        let failed: Vec<String> = failed.map(|it| it.to_string()).collect();
        let state = self.text("array_state")?;
        Ok(match failed.len() {
            0 => None,
            1 => Some(format!("{state}: device {} has failed", failed[0])),
            _ => Some(format!(
                "{state}: devices {} have failed",
                failed.join(", ")
            )),
        })
    }

    /// Latency histogram of one kind of request.
    pub(super) fn latencies(&self, name: &str) -> Result<LatencyHistogram> {
        let counts = self.value(name)?.as_array();
        let counts = counts.map(|all| all.iter().filter_map(Value::as_u64).collect());
        counts
            .map(LatencyHistogram)
            .ok_or_else(|| anyhow!("{name} is no histogram"))
    }
}

/// Latency histogram: bucket `i` counts requests that took less than 2^i us, and not less than the
/// bucket before.
#[derive(Clone)]
pub(super) struct LatencyHistogram(Vec<u64>);

impl LatencyHistogram {
    /// Counts since an earlier reading.
    pub(super) fn since(&self, before: &Self) -> Self {
        let before = before.0.iter().chain(std::iter::repeat(&0));
        let pairs = self.0.iter().zip(before);
        Self(pairs.map(|(now, was)| now.saturating_sub(*was)).collect())
    }

    pub(super) fn counts(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Quantile in seconds: an upper bound of the latency of this fraction of the requests; `None`
    /// without requests.
    pub(super) fn quantile(&self, part: f64) -> Option<f64> {
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let mut limits = (0..).map(|power| 1e-6 * f64::from(1u32 << power));
        self.0
            .iter()
            .zip(&mut limits)
            .find(|(count, _)| {
                seen += **count;
                seen >= wanted
            })
            .map(|(_, limit)| limit)
    }

    fn summary(&self) -> String {
        let parts = [(0.5, "half"), (0.99, "99 %"), (0.999, "99.9 %")];
        let all = parts.iter().filter_map(|(part, name)| {
            let limit = self.quantile(*part)?;
            Some(format!("{name} within {}", duration(limit)))
        });
        let all: Vec<String> = all.collect();
        match all.is_empty() {
            true => "none".to_owned(),
            false => all.join(", "),
        }
    }
}

/// Finds the mount points of root's and the caller's own filesystems, and describes those of other
/// users. Any user can mount something of this type, and a query of it could block forever.
pub(super) fn find_mounts() -> Result<(Vec<PathBuf>, Vec<String>)> {
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for it in mount::all()? {
        match it.user {
            Some(user) if is_other_user(user) => others.push(format!(
                "{}: mounted by user {user}, and its daemon may not answer; queried only if named explicitly",
                plain(&it.at)
            )),
            _ => found.push(it.at),
        }
    }
    Ok((found, others))
}

fn is_other_user(user: u32) -> bool {
    ![0, rustix::process::geteuid().as_raw()].contains(&user)
}

/// Inode number of this process's PID namespace.
pub(super) fn pid_namespace() -> std::io::Result<u64> {
    Ok(Path::new("/proc/self/ns/pid").metadata()?.ino())
}

/// Opens the pidfd of a mount's daemon if its exit can be waited for: not another user's, as in
/// [`find_mounts`], nor one in another PID namespace (a container), as its PID is meaningless here.
fn open_daemon(at: &Path, it: &Mounted) -> Option<OwnedFd> {
    if it.user.is_none_or(is_other_user) {
        return None;
    }
    // Queried by a child process: a query may block forever, and it keeps the filesystem busy
    // meanwhile.
    let mut query = Command::new(own_program::path())
        .args(["vram", "stat", "--json", "--"])
        .arg(at)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let ends = pidfd_open(Pid::from_child(&query), PidfdFlags::empty()).ok()?;
    if !wait_for_exit(&ends, QUERY_TIMEOUT_SECONDS).ok()? {
        query.kill().ok()?;
        // It dies at once if the daemon has not read its request, else when that is answered.
        wait_for_exit(&ends, 1).ok()?;
        return None;
    }
    let output = query.wait_with_output().ok()?.stdout;
    let figures = serde_json::from_slice::<Vec<Map<String, Value>>>(&output).ok()?;
    let figures = MountStats(figures.into_iter().next()?);
    if figures.number("pid_namespace").ok()? != pid_namespace().ok()? {
        return None;
    }
    let pid = i32::try_from(figures.number("pid").ok()?).ok()?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Waits up to `seconds` for a process to exit; returns whether it has.
fn wait_for_exit(process: &OwnedFd, seconds: i64) -> Result<bool> {
    let most = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut ends, Some(&most)))?;
    Ok(ready > 0)
}

/// Resolves a mount point without a call to the filesystem on it, which may not answer.
fn resolve_mount_point(dir: &Path) -> Result<PathBuf> {
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let place = match dir.file_name() {
        // A lookup of the name itself would query the filesystem; whether it is a symbolic link
        // does not.
        Some(name) if dir.read_link().is_err() => parent.canonicalize().map(|it| it.join(name)),
        _ => dir.canonicalize(),
    };
    place.with_context(|| format!("cannot find {}", dir.display()))
}

pub(super) fn umount(args: &UmountArgs) -> Result<ExitCode> {
    let what = || format!("cannot unmount {}", args.dir.display());
    let place = resolve_mount_point(&args.dir).with_context(what)?;
    match mount::mounted(&place).with_context(what)? {
        None => Err(anyhow!("nothing is mounted there")).with_context(what)?,
        Some(it) if !it.is_ours() => {
            let other = anyhow!("it is {}, of type {}\ntry: umount", it.source, it.kind);
            Err(other).with_context(what)?;
        }
        Some(_) if args.lazy => mount::unmount(&place, true).with_context(what)?,
        Some(it) => {
            let daemon = open_daemon(&place, &it);
            mount::unmount(&place, false).with_context(what)?;
            // The daemon keeps running while a bind mount remains.
            let is_left = mount::is_anywhere(&it.device).unwrap_or(true);
            if let Some(daemon) = daemon.filter(|_| !is_left)
                && !wait_for_exit(&daemon, EXIT_TIMEOUT_SECONDS).with_context(what)?
            {
                note!(
                    "{} is unmounted, but its daemon has not exited within {EXIT_TIMEOUT_SECONDS} s and still holds its memory: it is also mounted elsewhere or in another \
                     mount namespace, or its memory is still being freed",
                    plain(&place)
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn stat(args: &StatArgs) -> Result<ExitCode> {
    let (all, all_answered) = MountStats::query_all(&args.shown.dirs)?;
    if args.shown.json {
        let all: Vec<&Map<String, Value>> = all.iter().map(|one| &one.0).collect();
        say!("{}", serde_json::to_string(&all)?);
    } else {
        for one in &all {
            for (name, value) in &one.0 {
                let shown = match value {
                    Value::String(text) => plain_text(text),
                    Value::Array(_) => one.latencies(name)?.summary(),
                    value => value.to_string(),
                };
                say!("{:<20} {shown}", name.replace('_', " "));
            }
        }
    }
    exit_code(&all, all_answered)
}

/// Exit code of a command that has shown these filesystems.
fn exit_code(all: &[MountStats], all_answered: bool) -> Result<ExitCode> {
    let mut is_whole = true;
    for one in all {
        is_whole &= one.describe_failed_devices()?.is_none();
    }
    let status = match (all_answered, is_whole) {
        (false, _) => ExitStatus::Failure,
        (true, false) => ExitStatus::Degraded,
        (true, true) => ExitStatus::Success,
    };
    Ok(status.into())
}

pub(super) fn df(args: &DfArgs) -> Result<ExitCode> {
    let (all, all_answered) = MountStats::query_all(&args.shown.dirs)?;
    let status = exit_code(&all, all_answered)?;
    if args.shown.json {
        let names = [
            "dir",
            "size_bytes",
            "used_bytes",
            "inodes",
            "used_inodes",
            "array_state",
        ];
        let part = |one: &MountStats| {
            let named = one
                .0
                .iter()
                .filter(|(name, _)| names.contains(&name.as_str()));
            named
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        let all: Vec<Map<String, Value>> = all.iter().map(part).collect();
        say!("{}", serde_json::to_string(&all)?);
        return Ok(status);
    }
    say!(
        "{:>10} {:>10} {:>10} {:>10} {:>10}  mounted at",
        "size",
        "used",
        "free",
        "inodes",
        "used"
    );
    for one in &all {
        let (size, used) = (one.number("size_bytes")?, one.number("used_bytes")?);
        say!(
            "{:>10} {:>10} {:>10} {:>10} {:>10}  {}{}",
            bytes(size),
            bytes(used),
            bytes(size.saturating_sub(used)),
            one.number("inodes")?,
            one.number("used_inodes")?,
            plain_text(one.text("dir")?),
            one.describe_failed_devices()?
                .map_or_else(String::new, |failed| format!(" ({failed})"))
        );
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_untrusted_statistics_are_escaped() {
        let it = MountStats::parse(Path::new("/at"), "dev\x1bice A\x1b[31m B\nsize 7\n");
        let word = it.text("dev\\u{1b}ice").unwrap();
        assert_eq!(word, "A\\u{1b}[31m B");
        assert_eq!(it.number("size").unwrap(), 7);
    }
}
