//! `mount.vramfs`: what mount(8), and so fstab and systemd, start for filesystems of type `vramfs`.
//!
//! This program is it under that name: `ln -s "$(command -v fercuda)" /sbin/mount.vramfs`. Options are tmpfs's `size`, `nr_inodes`,
//! `mode`, `uid` and `gid`, and those of `fercuda vram mount`; it is what is started in the end.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::out::note;

/// The name by which it is that.
const NAME: &str = "mount.vramfs";
/// How it is called.
const USAGE: &str = "mount.vramfs SOURCE DIR [-fnsv] [-o OPTION,...] [-t TYPE] [-N NAMESPACE]";
/// Options that say nothing to a filesystem, or what it does anyhow.
const PASSED_OVER: [&str; 13] = [
    "defaults",
    "rw",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "async",
    "relatime",
    "norelatime",
    "atime",
    "diratime",
    "lazytime",
    "nouser",
];
/// What it does not do, as times of access are kept as `relatime` has them. Who has these in fstab wants it mounted all the same.
const NOT_DONE: [&str; 3] = ["strictatime", "noatime", "nodiratime"];
/// What is forbidden, and by which words: those of who may mount do so too.
const FORBIDDEN: [(&str, &str, &[&str]); 3] = [
    (
        "nosuid",
        "suid",
        &["nosuid", "user", "users", "owner", "group"],
    ),
    (
        "nodev",
        "dev",
        &["nodev", "user", "users", "owner", "group"],
    ),
    ("noexec", "exec", &["noexec", "user", "users"]),
];

/// What is to be started if this program has that name.
pub(crate) fn run(words: &[OsString]) -> Option<Result<ExitCode>> {
    let name = Path::new(words.first()?).file_name()?;
    (name == NAME).then(|| start(&words[1..]))
}

fn start(words: &[OsString]) -> Result<ExitCode> {
    let Some(called) = Called::read(words)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.arg0("fercuda").args(&called.words);
    for option in called.not_done {
        note!("the option {option} is passed over: times of access are always kept as by relatime");
    }
    if let Some(path) = called.nvrtc {
        command.env("FERCUDA_NVRTC", path);
    }
    let error = command.exec();
    Err(error).context("cannot start fercuda vram mount")
}

/// How `fercuda` is to be called.
#[derive(Debug, PartialEq, Eq)]
struct Called {
    words: Vec<OsString>,
    nvrtc: Option<String>,
    /// Options that are passed over though they would say something.
    not_done: Vec<String>,
}

impl Called {
    /// None if nothing is to be done.
    fn read(words: &[OsString]) -> Result<Option<Self>> {
        let (mut places, mut options) = (Vec::new(), String::new());
        let (mut is_sloppy, mut is_fake) = (false, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_str().unwrap_or("");
            let Some(letters) = text.strip_prefix('-').filter(|it| !it.is_empty()) else {
                places.push(word);
                continue;
            };
            for (at, letter) in letters.char_indices() {
                match letter {
                    's' => is_sloppy = true,
                    'f' => is_fake = true,
                    'n' | 'v' | 'w' => {}
                    'o' | 't' | 'N' => {
                        let behind = &letters[at + 1..];
                        let value = match behind {
                            "" => words.next().and_then(|it| it.to_str()),
                            behind => Some(behind),
                        };
                        let value = value
                            .with_context(|| format!("-{letter} has no value\ntry: {USAGE}"))?;
                        if letter == 'o' {
                            options = format!("{options},{value}");
                        }
                        break;
                    }
                    letter => bail!("-{letter} is not known\ntry: {USAGE}"),
                }
            }
        }
        let [_, dir] = places[..] else {
            bail!(
                "there have to be a source, which may be any word, and a directory\ntry: {USAGE}"
            );
        };
        let mut called = Self {
            words: ["vram", "mount"].map(OsString::from).to_vec(),
            nvrtc: None,
            not_done: Vec::new(),
        };
        let mut allows_other = true;
        let mut forbidden = [false; FORBIDDEN.len()];
        for option in options.split(',').filter(|it| !it.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            // The last word counts.
            let mut is_known = false;
            for (is_forbidden, (_, allows, forbids)) in forbidden.iter_mut().zip(FORBIDDEN) {
                if key == allows || forbids.contains(&key) {
                    (*is_forbidden, is_known) = (key != allows, true);
                }
            }
            if is_known {
                continue;
            }
            let flag = match key {
                "allow_other" => {
                    allows_other = true;
                    continue;
                }
                "noallow_other" => {
                    allows_other = false;
                    continue;
                }
                "nvrtc" => {
                    called.nvrtc = Some(value.to_owned());
                    continue;
                }
                key if NOT_DONE.contains(&key) => {
                    called.not_done.push(key.to_owned());
                    continue;
                }
                "remount" => {
                    bail!("a size is changed by another command\ntry: fercuda vram grow, or shrink")
                }
                "ro" => bail!("nothing could ever be in it\ntry: without ro"),
                "size" | "scrub_rate" => "size",
                "nr_inodes" | "inodes" => "inodes",
                "mode" | "uid" | "gid" | "device" | "number" | "stripe" | "mirror" | "ecc"
                | "verify" | "cache" | "threads" => key,
                key if PASSED_OVER.contains(&key) || key.starts_with("x-") || key == "comment" => {
                    continue;
                }
                _ if is_sloppy => continue,
                key => bail!(
                    "the option {key} is not known\ntry: fercuda vram mount --help, whose options are known here too"
                ),
            };
            let value = match flag {
                "size" | "inodes" => units(value, flag == "size"),
                _ => value.to_owned(),
            };
            let flag = if key == "scrub_rate" {
                "scrub-rate"
            } else {
                flag
            };
            called.words.push(format!("--{flag}={value}").into());
        }
        for (_, (flag, ..)) in forbidden.iter().zip(FORBIDDEN).filter(|it| *it.0) {
            called.words.push(format!("--{flag}").into());
        }
        if allows_other {
            called.words.push("--allow-other".into());
        }
        called.words.push(OsStr::new("--").to_owned());
        called.words.push(dir.clone());
        Ok((!is_fake).then_some(called))
    }
}

/// Numbers as tmpfs takes them: with a letter for a power of 1024.
fn units(text: &str, is_bytes: bool) -> String {
    let powers = ["k", "m", "g", "t"];
    let lower = text.to_ascii_lowercase();
    let found = powers.iter().position(|unit| lower.ends_with(unit));
    let Some(power) = found else {
        return text.to_owned();
    };
    let digits = &text[..text.len() - 1];
    match is_bytes {
        true => format!("{digits}{}iB", powers[power].to_ascii_uppercase()),
        false => digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(1 << (10 * (power + 1))))
            .map_or_else(|| text.to_owned(), |number| number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Called>> {
        let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        Called::read(&words)
    }

    fn words(text: &str) -> String {
        let called = read(text).unwrap().unwrap();
        let words: Vec<String> = called
            .words
            .into_iter()
            .map(|it| it.into_string().unwrap())
            .collect();
        words.join(" ")
    }

    #[test]
    fn what_mount_says_is_what_is_started() {
        assert_eq!(
            words(
                "vramfs /mnt/vram -o rw,size=8g,mode=1777,nosuid,x-systemd.automount,nr_inodes=2m"
            ),
            "vram mount --size=8GiB --mode=1777 --inodes=2097152 --nosuid --allow-other -- /mnt/vram"
        );
        assert_eq!(
            words("none dir -n -osize=100MiB,ecc=off,noallow_other -t vramfs -o scrub_rate=1g"),
            "vram mount --size=100MiB --ecc=off --scrub-rate=1GiB -- dir"
        );
        assert_eq!(
            words("none dir -s -o size=1k,odd=5"),
            "vram mount --size=1KiB --allow-other -- dir"
        );
        assert_eq!(
            words("none dir -o users,dev,noatime,size=1k"),
            "vram mount --size=1KiB --nosuid --noexec --allow-other -- dir"
        );
        assert_eq!(
            words("none dir -o size=1g,mirror=0:1"),
            "vram mount --size=1GiB --mirror=0:1 --allow-other -- dir"
        );
        assert_eq!(read("none dir -f -o size=1k").unwrap(), None);
        let called = read("none dir -o noatime,relatime,strictatime");
        assert_eq!(
            called.unwrap().unwrap().not_done,
            ["noatime", "strictatime"]
        );
        let called = read("none dir -o nvrtc=/opt/n.so").unwrap().unwrap();
        assert_eq!(called.nvrtc.as_deref(), Some("/opt/n.so"));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for text in [
            "none",
            "none dir more",
            "none dir -o",
            "none dir -o odd",
            "none dir -o ro",
            "none dir -o remount",
            "none dir -x",
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("try: "), "{text}: {error}");
        }
    }
}
