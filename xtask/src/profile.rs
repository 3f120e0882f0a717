//! The hook by a profile: built to count what runs, made to run, built again by
//! what was counted.
//!
//! Programs ask for memory tens of microseconds apart. By then their other work
//! has taken the processor's caches, and a call costs what has to be fetched
//! anew, code above all. A compiler that knows what runs puts that side by side
//! and everything else away from it.
//!
//! Invariants: a profile is of these sources and of this run of the chore, and
//! counts every door that training goes through, or it is an error. What this
//! machine has no means for is a reason that the caller gets and prints.
//!
//! Elsewhere: what is run (`crates/hook/training`).

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::{cargo, clients, shell};

/// What came of it.
pub(crate) enum Hook {
    /// The library.
    Profiled(PathBuf),
    /// Why there is none.
    Without(String),
}

/// Doors that training goes through, by module and name.
const DOORS: [(&str, &str); 13] = [
    ("runtime", "alloc"),
    ("runtime", "free"),
    ("runtime", "get_device"),
    ("ordered", "alloc"),
    ("ordered", "alloc_per_thread"),
    ("ordered", "alloc_from_pool"),
    ("ordered", "alloc_from_pool_per_thread"),
    ("ordered", "free"),
    ("ordered", "free_per_thread"),
    ("linear", "alloc"),
    ("linear", "alloc_pitch"),
    ("linear", "free"),
    ("queries", "info"),
];

/// A run of the training program: how many steps, and what is set for it.
type Training = (&'static str, &'static [(&'static str, &'static str)]);

/// Most as programs run that ask for nothing; some with limits, and with slabs.
const TRAININGS: [Training; 3] = [
    ("4000", &[]),
    (
        "200",
        &[
            ("FERCUDA_LIMIT", "6GiB"),
            ("FERCUDA_TENANT_LIMITS", "train=5GiB"),
        ],
    ),
    ("200", &[("FERCUDA_BACKING", "slabs")]),
];

/// Calls between crates go straight to what they call. For a library whose table
/// of addresses is read-only once it is loaded the compiler would have each look up
/// there, and a cold processor wait for that; the linker makes the table so all
/// the same.
const STRAIGHT: [&str; 2] = ["-Crelro-level=partial", "-Clink-arg=-Wl,-z,now"];

/// Builds the hook by a profile. `driver` is the software device's library.
pub(crate) fn hook(driver: &Path) -> Result<Hook> {
    let rust = Rust::find()?;
    let profdata = match rust.profdata() {
        Ok(profdata) => profdata,
        Err(reason) => return Ok(Hook::Without(reason)),
    };
    let folder = shell::root().join("target/profile");
    let counts = folder.join("counts");
    if counts.exists() {
        fs::remove_dir_all(&counts)?;
    }
    fs::create_dir_all(&counts)?;

    shell::step("the hook, built to count what runs");
    let flag = format!("-Cprofile-generate={}", counts.display());
    let counting = build(&rust.host, &[&flag], &folder.join("counting"))?;

    shell::step("training: what programs ask the hook for, over the software device");
    train(&counting, driver, &folder.join("training"), &counts)?;
    if fs::read_dir(&counts)?.next().is_none() {
        return Ok(Hook::Without(
            "rustc does not instrument the code: flags in cargo's configuration for this target come before ours\n\
             try: the same flags in RUSTFLAGS"
                .to_owned(),
        ));
    }
    let profile = folder.join("hook.profdata");
    merge(&profdata, &counts, &profile)?;

    shell::step("the hook, built by what was counted");
    let flag = format!("-Cprofile-use={}", profile.display());
    let [partial, now] = STRAIGHT;
    let flags = [flag.as_str(), partial, now];
    build(&rust.host, &flags, &folder.join("profiled")).map(Hook::Profiled)
}

/// The compiler that cargo uses.
pub(crate) struct Rust {
    pub sysroot: PathBuf,
    host: String,
    /// Its commit, which its own distributions name.
    pub commit: Option<String>,
}

impl Rust {
    pub(crate) fn find() -> Result<Rust> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let ask = |words: &[&str]| {
            let mut rustc = shell::command(&rustc);
            rustc.args(words);
            shell::capture(rustc)
        };
        let version = ask(&["--version", "--verbose"])?;
        let named = |name: &str| version.lines().find_map(|line| line.strip_prefix(name));
        let commit = named("commit-hash: ").filter(|commit| *commit != "unknown");
        Ok(Rust {
            sysroot: PathBuf::from(ask(&["--print", "sysroot"])?.trim()),
            host: named("host: ")
                .context("rustc does not say its host")?
                .to_owned(),
            commit: commit.map(str::to_owned),
        })
    }

    /// LLVM's tool for profiles, of the compiler's own version: another one may
    /// not know the form. Or why there is none.
    fn profdata(&self) -> std::result::Result<PathBuf, String> {
        let tools = self.sysroot.join("lib/rustlib").join(&self.host);
        let tool = tools.join("bin/llvm-profdata");
        if tool.exists() {
            return Ok(tool);
        }
        let missing = format!("there is no {}", tool.display());
        if !self.is_of_rustup() {
            return Err(format!("{missing}, and rustc is not rustup's"));
        }
        println!("\nadding rustup's component llvm-tools, for llvm-profdata");
        let mut add = shell::command("rustup");
        add.args(["component", "add", "llvm-tools"]);
        match shell::run(add) {
            Ok(()) if tool.exists() => Ok(tool),
            Ok(()) => Err(format!("{missing}, though rustup has added llvm-tools")),
            Err(error) => Err(format!("{missing}, and {error:#}")),
        }
    }

    fn is_of_rustup(&self) -> bool {
        let mut which = shell::command("rustup");
        let said = which
            .args(["which", "rustc"])
            .stderr(Stdio::null())
            .output();
        said.is_ok_and(|said| {
            let path = String::from_utf8_lossy(&said.stdout);
            Path::new(path.trim()).starts_with(&self.sysroot)
        })
    }
}

/// Builds the hook with more flags, where no other build is disturbed.
fn build(host: &str, flags: &[&str], folder: &Path) -> Result<PathBuf> {
    let mut build = cargo::command("build");
    build.args(["--locked", "--release", "--package", "fercuda-hook"]);
    // With a target, flags are not for what runs while it is built.
    build.args(["--target", host]);
    build.arg("--target-dir").arg(folder);
    add_flags(&mut build, flags, |name| std::env::var(name).ok());
    let made = cargo::artifacts_of(build)?;
    cargo::library(&made, "hook").map(Path::to_path_buf)
}

/// Flags of rustc's beside those that the user has set. Cargo looks in one
/// place alone: the first of these variables that is set, else its configuration.
fn add_flags(cargo: &mut Command, flags: &[&str], variable: impl Fn(&str) -> Option<String>) {
    const ENCODED: &str = "CARGO_ENCODED_RUSTFLAGS";
    const BETWEEN: &str = "\x1f";
    let encoded = variable(ENCODED).or_else(|| {
        let flags = variable("RUSTFLAGS")?;
        Some(flags.split_whitespace().collect::<Vec<_>>().join(BETWEEN))
    });
    match encoded {
        Some(set) => {
            let set = Some(set.as_str()).filter(|set| !set.is_empty());
            let all: Vec<&str> = set.into_iter().chain(flags.iter().copied()).collect();
            cargo.env(ENCODED, all.join(BETWEEN))
        }
        None => {
            // A JSON text is a TOML text; lists of the configuration are joined.
            let flags = serde_json::Value::from(flags);
            cargo.arg(format!("--config=build.rustflags={flags}"))
        }
    };
}

/// Compiles the training program into `folder` and runs it under the hook.
fn train(hook: &Path, driver: &Path, folder: &Path, counts: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let runtime = folder.join("libcudart-training.so");
    let program = folder.join("train");
    let options = ["-shared", "-fPIC"];
    compile("runtime.c", &options, &[driver], &runtime)?;
    let options = ["-pthread", "-Wl,-rpath,$ORIGIN"];
    compile("train.c", &options, &[&runtime, driver], &program)?;
    for (number, (steps, settings)) in TRAININGS.into_iter().enumerate() {
        let own = folder.join(format!("run{number}"));
        clients::private_folder(&own)?;
        let mut run = shell::command(&program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FERCUDA_") {
                run.env_remove(name);
            }
        }
        run.arg(steps)
            .env("LD_PRELOAD", hook)
            .env("LLVM_PROFILE_FILE", counts.join("%p.profraw"))
            .env("XDG_RUNTIME_DIR", &own)
            .env("FERCUDA_DRIVER", driver)
            .env("FERCUDA_SOFT_CHECK", "0")
            .envs(settings.iter().copied());
        let hint = "try: cargo xtask dist --no-profile, and tell us";
        shell::run(run).context(hint)?;
        let allocations = clients::governed_allocations(&own)?;
        if allocations == 0 {
            bail!("nothing of the training was governed\n{hint}");
        }
        let set = settings
            .iter()
            .map(|(name, value)| format!(", {name}={value}"));
        println!(
            "{steps} steps and pairs{}: {allocations} allocations",
            set.collect::<String>()
        );
    }
    Ok(())
}

fn compile(source: &str, options: &[&str], libraries: &[&Path], to: &Path) -> Result<()> {
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut compile = shell::command(cc);
    compile.args(["-O1", "-w", "-o"]).arg(to);
    compile.arg(Path::new("crates/hook/training").join(source));
    compile.args(options).args(libraries);
    shell::run(compile)
}

/// Makes one profile of all counts, and sees to it that they are of the doors.
fn merge(profdata: &Path, counts: &Path, profile: &Path) -> Result<()> {
    let mut merge = shell::command(profdata);
    merge.arg("merge").arg("-o").arg(profile).arg(counts);
    shell::run(merge)?;
    let mut show = shell::command(profdata);
    show.args([OsStr::new("show"), "--all-functions".as_ref()]);
    show.arg("--counts").arg(profile);
    let uncounted = uncounted(&shell::capture(show)?);
    if !uncounted.is_empty() {
        bail!(
            "training did not go through {}\ntry: cargo xtask dist --no-profile, and tell us",
            uncounted.join(", ")
        );
    }
    Ok(())
}

/// Doors of which `llvm-profdata show --all-functions --counts` shows nothing
/// that ran.
fn uncounted(shown: &str) -> Vec<String> {
    let mut ran: Vec<&str> = Vec::new();
    let mut name = "";
    for line in shown.lines() {
        if let Some(text) = line.strip_prefix("    ") {
            let counts = text.split_once("counts: [");
            if counts.is_some_and(|(_, counts)| counts.contains(|c| matches!(c, '1'..='9'))) {
                ran.push(name);
            }
        } else {
            name = line;
        }
    }
    let doors = DOORS.iter().filter(|(module, door)| {
        // As both manglings of Rust have it: each name behind its length.
        let mangled = format!("{}{module}{}{door}", module.len(), door.len());
        !ran.iter().any(|name| name.contains(&mangled))
    });
    let doors = doors.map(|(module, door)| format!("{module}::{door}"));
    doors.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_flag(set: &[(&str, &str)]) -> (Vec<String>, Option<String>) {
        let mut command = Command::new("cargo");
        add_flags(&mut command, &["-Cone=/a b", "-Ctwo"], |name| {
            let found = set.iter().find(|(set, _)| *set == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        let text = |text: &OsStr| text.to_string_lossy().into_owned();
        let mut environment = command.get_envs();
        let encoded = environment.next().map(|(name, value)| {
            assert_eq!(name, "CARGO_ENCODED_RUSTFLAGS");
            text(value.expect("it is set"))
        });
        assert!(environment.next().is_none());
        (command.get_args().map(text).collect(), encoded)
    }

    #[test]
    fn flags_that_the_user_has_set_are_kept() {
        for (set, expected) in [
            (
                vec![("RUSTFLAGS", "-Ca=1  -Cb ")],
                "-Ca=1\x1f-Cb\x1f-Cone=/a b\x1f-Ctwo",
            ),
            (vec![("RUSTFLAGS", "")], "-Cone=/a b\x1f-Ctwo"),
            (
                vec![
                    ("RUSTFLAGS", "-Ca"),
                    ("CARGO_ENCODED_RUSTFLAGS", "-Cc d\x1f-Ce"),
                ],
                "-Cc d\x1f-Ce\x1f-Cone=/a b\x1f-Ctwo",
            ),
        ] {
            assert_eq!(with_flag(&set), (vec![], Some(expected.to_owned())));
        }
        let configured = r#"--config=build.rustflags=["-Cone=/a b","-Ctwo"]"#.to_owned();
        assert_eq!(with_flag(&[]), (vec![configured], None));
    }

    /// What LLVM's tool shows of a function of the hook.
    fn shown(module: &str, door: &str, counts: &str) -> String {
        let (long, door_long) = (module.len(), door.len());
        format!(
            "  fercuda_hook.1a-cgu.0;_ZN14fercuda_regime10interposed{long}{module}{door_long}{door}17h0123456789abcdefE:\n    \
             Hash: 0x0820ef4900ddd64d\n    Counters: 3\n    Block counts: [{counts}]\n"
        )
    }

    #[test]
    fn a_door_that_never_ran_is_found() {
        let all = |counts: &dyn Fn(&str) -> &'static str| -> String {
            let shown = DOORS
                .iter()
                .map(|(module, door)| shown(module, door, counts(door)));
            format!(
                "Counters:\n{}Total functions: 10\n",
                shown.collect::<String>()
            )
        };
        assert_eq!(uncounted(&all(&|_| "0, 7, 0")), [""; 0]);
        // Its name begins as others do that ran.
        let never = all(&|door| if door == "alloc" { "0, 0, 0" } else { "12" });
        assert_eq!(
            uncounted(&never),
            ["runtime::alloc", "ordered::alloc", "linear::alloc"]
        );
        assert_eq!(
            uncounted("Counters:\nTotal functions: 0\n").len(),
            DOORS.len()
        );
    }

    #[test]
    fn the_doors_of_training_are_doors() {
        let file = |module: &str| {
            let folder = match module {
                "runtime" => "crates/hook/src",
                _ => "crates/regime/src/interposed",
            };
            let file = shell::root().join(format!("{folder}/{module}.rs"));
            fs::read_to_string(file).expect("the doors are there")
        };
        let doors = file("mod");
        for (module, door) in DOORS {
            let is_the_drivers = ["_entry", ")"]
                .iter()
                .any(|end| doors.contains(&format!("{module}::{door}{end}")));
            // What is no function of the driver's has its entry beside it.
            let end = format!("=> {door});");
            let is_there = |line: &str| line.starts_with("entry!(") && line.ends_with(&end);
            let is_another = file(module).lines().any(is_there);
            assert!(is_the_drivers || is_another, "{module}::{door}");
        }
    }
}
