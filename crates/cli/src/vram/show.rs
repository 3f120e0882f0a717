//! What filesystems in device memory say of themselves, and taking them away.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, anyhow};
use fercuda_vramfs::mount::{self, Mounted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Map, Value};

use crate::out::{note, say};
use crate::report;
use crate::terminal::{bytes, duration, plain, plain_text};

/// How long a filesystem that is to be unmounted may take to say who its daemon is, and how long that may take to end.
const ANSWERS_SECONDS: i64 = 5;
const ENDS_SECONDS: i64 = 30;

/// Takes it away, with all that is in it.
#[derive(clap::Args)]
#[command(after_help = "\
Returns when its process has ended, so that the device has its memory back; with
--lazy at once. Of another user's, it does not wait.")]
pub(crate) struct UmountArgs {
    /// Where it is mounted.
    dir: PathBuf,
    /// Also while it is in use: it vanishes now, and ends with its last user.
    #[arg(long)]
    lazy: bool,
}

#[derive(clap::Args)]
struct Shown {
    /// Where it is mounted [default: everywhere].
    dirs: Vec<PathBuf>,
    /// Print a JSON array of objects instead of text.
    #[arg(long)]
    json: bool,
}

/// How much there is room for, and how much of it is used.
#[derive(clap::Args)]
#[command(after_help = "\
What says nothing (its daemon has ended, or you may not look) is an error that
is printed, and the others are shown all the same. Without DIRS, those of other
users than root and you are not asked. Which devices of several have failed is
said beside where it is mounted.

Exit status: 0; 3 if a device of several has failed; 1 if one of them says
nothing; 2 if the question could not be asked.

Examples:
  fercuda vram df
  fercuda vram df --json /mnt/vram")]
pub(crate) struct DfArgs {
    #[command(flatten)]
    shown: Shown,
}

/// All that it says of itself: what it is, what was done, what went wrong.
#[derive(clap::Args)]
#[command(after_help = "\
`corrected` and `lost` count since it was mounted. Latencies are those of the
requests that the kernel made, from when they were read to the answer. Of
several devices there is what was corrected on each, and what of that was made
anew from another; `array state` is whole, degraded or failed.

Exit status: 0; 3 if a device of several has failed; 1 if one of them says
nothing; 2 if the question could not be asked.

Examples:
  fercuda vram stat /mnt/vram
  fercuda vram stat --json | python3 -m json.tool")]
pub(crate) struct StatArgs {
    #[command(flatten)]
    shown: Shown,
}

/// What a filesystem says of itself, by name.
#[derive(Clone)]
pub(super) struct Figures(Map<String, Value>);

impl Figures {
    pub(super) fn of(dir: &Path) -> Result<Self> {
        Ok(Self::read(dir, &mount::figures(dir)?))
    }

    pub(super) fn read(dir: &Path, text: &str) -> Self {
        let mut all = Map::new();
        all.insert("dir".to_owned(), dir.display().to_string().into());
        for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let numbers: Option<Vec<u64>> = value.split(' ').map(|it| it.parse().ok()).collect();
            let value = match numbers.as_deref() {
                Some([number]) => (*number).into(),
                Some(several) => several.into(),
                // Whoever may mount may have written this.
                None => plain_text(value).into(),
            };
            all.insert(plain_text(name), value);
        }
        Self(all)
    }

    /// Of these, or of all that are mounted; what says nothing is printed as an error. Whether all of them said something.
    pub(super) fn all(dirs: &[PathBuf]) -> Result<(Vec<Self>, bool)> {
        let dirs = match dirs.is_empty() {
            true => {
                let (dirs, others) = everywhere()?;
                others.iter().for_each(|line| note!("{line}"));
                dirs
            }
            false => dirs.to_vec(),
        };
        let mut all = Vec::new();
        for dir in &dirs {
            let told = Self::of(dir).with_context(|| format!("cannot look at {}", plain(dir)));
            match told {
                Ok(told) => all.push(told),
                Err(error) => {
                    report(&error, 1);
                }
            }
        }
        let is_all = all.len() == dirs.len();
        Ok((all, is_all))
    }

    fn value(&self, name: &str) -> Result<&Value> {
        let none = || {
            anyhow!(
                "it says no {name}: it is of another version of this program\ntry: fercuda vram umount and mount again"
            )
        };
        self.0.get(name).ok_or_else(none)
    }

    pub(super) fn number(&self, name: &str) -> Result<u64> {
        let value = self.value(name)?;
        value
            .as_u64()
            .ok_or_else(|| anyhow!("{name} is {value}, where a number should be"))
    }

    pub(super) fn text(&self, name: &str) -> Result<&str> {
        let value = self.value(name)?;
        value
            .as_str()
            .ok_or_else(|| anyhow!("{name} is {value}, where a word should be"))
    }

    /// Its devices, by their numbers.
    pub(super) fn devices(&self) -> Result<Vec<u64>> {
        match self.0.contains_key("array") {
            false => Ok(vec![self.number("device_number")?]),
            true => {
                let all = self.text("device_numbers")?.split(',').map(str::parse);
                Ok(all.collect::<Result<_, _>>()?)
            }
        }
    }

    /// A figure of a device, where there are several.
    pub(super) fn of_device(&self, device: u64, name: &str) -> Result<u64> {
        self.number(&format!("device_{device}_{name}"))
    }

    /// Whether a device of several has failed.
    pub(super) fn has_failed(&self, device: u64) -> bool {
        let state = self.text(&format!("device_{device}_state"));
        state.is_ok_and(|it| it == "failed")
    }

    /// Which of several devices have failed, in words; nothing if none has.
    pub(super) fn trouble(&self) -> Result<Option<String>> {
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

    /// How often requests took how long.
    pub(super) fn times(&self, name: &str) -> Result<Times> {
        let counts = self.value(name)?.as_array();
        let counts = counts.map(|all| all.iter().filter_map(Value::as_u64).collect());
        counts
            .map(Times)
            .ok_or_else(|| anyhow!("{name} has no counts"))
    }
}

/// How many requests took less than 1 us, less than 2 us, less than 4 us, and so on, and not less than the one before.
#[derive(Clone)]
pub(super) struct Times(Vec<u64>);

impl Times {
    /// Those that came since.
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

    /// So many seconds, or fewer, took this part of them; nothing if there was none.
    pub(super) fn within(&self, part: f64) -> Option<f64> {
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

    fn shown(&self) -> String {
        let parts = [(0.5, "half"), (0.99, "99 %"), (0.999, "99.9 %")];
        let all = parts.iter().filter_map(|(part, name)| {
            let limit = self.within(*part)?;
            Some(format!("{name} within {}", duration(limit)))
        });
        let all: Vec<String> = all.collect();
        match all.is_empty() {
            true => "none".to_owned(),
            false => all.join(", "),
        }
    }
}

/// Where such filesystems of root's and of the caller's own are mounted; and, in words, where others' are. Anybody may say that his
/// is one, and whoever asks it can be kept waiting for ever.
pub(super) fn everywhere() -> Result<(Vec<PathBuf>, Vec<String>)> {
    let (mut asked, mut others) = (Vec::new(), Vec::new());
    for it in mount::all()? {
        match it.user {
            Some(user) if is_other(user) => others.push(format!(
                "{}: user {user} has mounted it, who need not answer; asked only where it is named",
                plain(&it.at)
            )),
            _ => asked.push(it.at),
        }
    }
    Ok((asked, others))
}

fn is_other(user: u32) -> bool {
    ![0, rustix::process::geteuid().as_raw()].contains(&user)
}

/// The number of the namespace that this process has its number in.
pub(super) fn pid_namespace() -> std::io::Result<u64> {
    Ok(Path::new("/proc/self/ns/pid").metadata()?.ino())
}

/// The process that answers for what is mounted there, where it can be waited for: not another user's, as in [`everywhere`], nor one
/// of another container, whose number says nothing here.
fn daemon(at: &Path, it: &Mounted) -> Option<OwnedFd> {
    if it.user.is_none_or(is_other) {
        return None;
    }
    // By another process: whoever asks may wait for ever, and it is in use as long.
    let mut asked = Command::new(std::env::current_exe().ok()?)
        .args(["vram", "stat", "--json", "--"])
        .arg(at)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let ends = pidfd_open(Pid::from_child(&asked), PidfdFlags::empty()).ok()?;
    if !has_ended(&ends, ANSWERS_SECONDS).ok()? {
        asked.kill().ok()?;
        // It ends now if nobody has read its request, and else when that is answered.
        has_ended(&ends, 1).ok()?;
        return None;
    }
    let said = asked.wait_with_output().ok()?.stdout;
    let figures = serde_json::from_slice::<Vec<Map<String, Value>>>(&said).ok()?;
    let figures = Figures(figures.into_iter().next()?);
    if figures.number("pid_namespace").ok()? != pid_namespace().ok()? {
        return None;
    }
    let pid = i32::try_from(figures.number("pid").ok()?).ok()?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended, or for so many seconds; whether it has.
fn has_ended(process: &OwnedFd, seconds: i64) -> Result<bool> {
    let most = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut ends, Some(&most)))?;
    Ok(ready > 0)
}

/// Where it is, also if what is mounted there answers no more.
fn place(dir: &Path) -> Result<PathBuf> {
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let place = match dir.file_name() {
        // What it is it would have to say itself, but not whether it is a link.
        Some(name) if dir.read_link().is_err() => parent.canonicalize().map(|it| it.join(name)),
        _ => dir.canonicalize(),
    };
    place.with_context(|| format!("cannot find {}", dir.display()))
}

pub(super) fn umount(args: &UmountArgs) -> Result<ExitCode> {
    let what = || format!("cannot unmount {}", args.dir.display());
    let place = place(&args.dir).with_context(what)?;
    match mount::mounted(&place).with_context(what)? {
        None => Err(anyhow!("nothing is mounted there")).with_context(what)?,
        Some(it) if !it.is_ours() => {
            let other = anyhow!("it is {}, of type {}\ntry: umount", it.source, it.kind);
            Err(other).with_context(what)?;
        }
        Some(_) if args.lazy => mount::unmount(&place, true).with_context(what)?,
        Some(it) => {
            let daemon = daemon(&place, &it);
            mount::unmount(&place, false).with_context(what)?;
            // What is mounted elsewhere too goes on.
            let is_left = mount::is_anywhere(&it.device).unwrap_or(true);
            if let Some(daemon) = daemon.filter(|_| !is_left)
                && !has_ended(&daemon, ENDS_SECONDS).with_context(what)?
            {
                note!(
                    "{} is unmounted, but its process has not ended for {ENDS_SECONDS} s, and has its memory: some of it is mounted elsewhere, or in another \
                     mount namespace, or it is still giving it back",
                    plain(&place)
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn stat(args: &StatArgs) -> Result<ExitCode> {
    let (all, is_all) = Figures::all(&args.shown.dirs)?;
    if args.shown.json {
        let all: Vec<&Map<String, Value>> = all.iter().map(|one| &one.0).collect();
        say!("{}", serde_json::to_string(&all)?);
    } else {
        for one in &all {
            for (name, value) in &one.0 {
                let shown = match value {
                    Value::String(text) => plain_text(text),
                    Value::Array(_) => one.times(name)?.shown(),
                    value => value.to_string(),
                };
                say!("{:<20} {shown}", name.replace('_', " "));
            }
        }
    }
    status(&all, is_all)
}

/// What a command ends with that has shown these.
fn status(all: &[Figures], is_all: bool) -> Result<ExitCode> {
    let mut is_whole = true;
    for one in all {
        is_whole &= one.trouble()?.is_none();
    }
    Ok(ExitCode::from(match (is_all, is_whole) {
        (false, _) => 1,
        // 2 is that the question could not be asked, as of all commands.
        (true, false) => 3,
        (true, true) => 0,
    }))
}

pub(super) fn df(args: &DfArgs) -> Result<ExitCode> {
    let (all, is_all) = Figures::all(&args.shown.dirs)?;
    let status = status(&all, is_all)?;
    if args.shown.json {
        let names = [
            "dir",
            "size_bytes",
            "used_bytes",
            "inodes",
            "used_inodes",
            "array_state",
        ];
        let part = |one: &Figures| {
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
            one.trouble()?
                .map_or_else(String::new, |trouble| format!(" ({trouble})"))
        );
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped_in_words_that_somebody_says() {
        let it = Figures::read(Path::new("/at"), "dev\x1bice A\x1b[31m B\nsize 7\n");
        let word = it.text("dev\\u{1b}ice").unwrap();
        assert_eq!(word, "A\\u{1b}[31m B");
        assert_eq!(it.number("size").unwrap(), 7);
    }
}
