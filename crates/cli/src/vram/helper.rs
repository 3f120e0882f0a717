//! `mount.vramfs`: the mount helper that mount(8), fstab and systemd run for the type `vramfs`.
//!
//! This program acts as the helper when it is called by that name:
//! `ln -s "$(command -v fercuda)" /sbin/mount.vramfs`. It accepts tmpfs's options `size`,
//! `nr_inodes`, `mode`, `uid` and `gid`, and those of `fercuda vram mount`, which it executes.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::out::note;
use crate::own_program;

/// Name of the mount helper.
const HELPER_NAME: &str = "mount.vramfs";
/// Command line of the helper, as mount(8) calls it.
const USAGE: &str = "mount.vramfs SOURCE DIR [-fnsv] [-o OPTION,...] [-t TYPE] [-N NAMESPACE]";
/// Options that are ignored: they do not concern a filesystem, or ask for what it does anyway.
const IGNORED_OPTIONS: [&str; 13] = [
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
/// Unsupported access-time options, ignored with a warning: access times are always kept as
/// `relatime` does, and an fstab with these options should still mount.
const UNSUPPORTED_OPTIONS: [&str; 3] = ["strictatime", "noatime", "nodiratime"];
/// Flags of `vram mount`, the option that clears each, and the options that set it; mount(8)'s user
/// options imply some.
const RESTRICTIONS: [(&str, &str, &[&str]); 3] = [
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

/// Runs as the mount helper if this program was called by that name.
pub(crate) fn run(words: &[OsString]) -> Option<Result<ExitCode>> {
    let name = Path::new(words.first()?).file_name()?;
    (name == HELPER_NAME).then(|| exec_mount(&words[1..]))
}

fn exec_mount(words: &[OsString]) -> Result<ExitCode> {
    let Some(command_line) = HelperCommand::read(words)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = Command::new(own_program::path());
    command.arg0("fercuda").args(&command_line.words);
    for option in command_line.unsupported {
        note!("the option {option} is ignored: access times are always kept as by relatime");
    }
    if let Some(path) = command_line.nvrtc {
        command.env("FERCUDA_NVRTC", path);
    }
    let error = command.exec();
    Err(error).context("cannot start fercuda vram mount")
}

/// Command line of `fercuda vram mount` that the helper executes.
#[derive(Debug, PartialEq, Eq)]
struct HelperCommand {
    words: Vec<OsString>,
    nvrtc: Option<String>,
    /// Options that are ignored with a warning.
    unsupported: Vec<String>,
}

impl HelperCommand {
    /// Parses the helper's arguments; `None` if nothing is to be mounted (`-f`).
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
                    letter => bail!("unknown option -{letter}\ntry: {USAGE}"),
                }
            }
        }
        let [_, dir] = places[..] else {
            bail!("expected a source, which may be any word, and a directory\ntry: {USAGE}");
        };
        let mut command_line = Self {
            words: ["vram", "mount"].map(OsString::from).to_vec(),
            nvrtc: None,
            unsupported: Vec::new(),
        };
        let mut allows_other = true;
        let mut forbidden = [false; RESTRICTIONS.len()];
        for option in options.split(',').filter(|it| !it.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            // The last option wins.
            let mut is_known = false;
            for (is_forbidden, (_, allows, forbids)) in forbidden.iter_mut().zip(RESTRICTIONS) {
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
                    command_line.nvrtc = Some(value.to_owned());
                    continue;
                }
                key if UNSUPPORTED_OPTIONS.contains(&key) => {
                    command_line.unsupported.push(key.to_owned());
                    continue;
                }
                "remount" => {
                    bail!("remount cannot change the size\ntry: fercuda vram grow, or shrink")
                }
                "ro" => bail!(
                    "a read-only filesystem would stay empty, as it starts empty\ntry: without ro"
                ),
                "size" | "scrub_rate" => "size",
                "nr_inodes" | "inodes" => "inodes",
                "mode" | "uid" | "gid" | "device" | "number" | "stripe" | "mirror" | "ecc"
                | "verify" | "cache" | "threads" => key,
                key if IGNORED_OPTIONS.contains(&key)
                    || key.starts_with("x-")
                    || key == "comment" =>
                {
                    continue;
                }
                _ if is_sloppy => continue,
                key => bail!(
                    "unknown mount option {key}\ntry: fercuda vram mount --help; its options are accepted here too"
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
            command_line.words.push(format!("--{flag}={value}").into());
        }
        for (_, (flag, ..)) in forbidden.iter().zip(RESTRICTIONS).filter(|it| *it.0) {
            command_line.words.push(format!("--{flag}").into());
        }
        if allows_other {
            command_line.words.push("--allow-other".into());
        }
        command_line.words.push(OsStr::new("--").to_owned());
        command_line.words.push(dir.clone());
        Ok((!is_fake).then_some(command_line))
    }
}

/// Converts a number in tmpfs's notation, with a letter for a power of 1024.
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

    fn read(text: &str) -> Result<Option<HelperCommand>> {
        let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        HelperCommand::read(&words)
    }

    fn words(text: &str) -> String {
        let command_line = read(text).unwrap().unwrap();
        let words: Vec<String> = command_line
            .words
            .into_iter()
            .map(|it| it.into_string().unwrap())
            .collect();
        words.join(" ")
    }

    #[test]
    fn helper_options_become_vram_mount_arguments() {
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
        let command_line = read("none dir -o noatime,relatime,strictatime");
        assert_eq!(
            command_line.unwrap().unwrap().unsupported,
            ["noatime", "strictatime"]
        );
        let command_line = read("none dir -o nvrtc=/opt/n.so").unwrap().unwrap();
        assert_eq!(command_line.nvrtc.as_deref(), Some("/opt/n.so"));
    }

    #[test]
    fn unknown_options_are_refused_with_a_hint() {
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
