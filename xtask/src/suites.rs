//! Suites that others wrote for filesystems, on mounts in device memory: pjdfstest, fsx and stress-ng; and what a user does who is not root.
//!
//! Each runs on a fresh mount that `fercuda vram mount` makes in a private folder. With `--bin-dir` and `--fercuda` nothing
//! here needs cargo, a checkout or a network, so the bundle for a GPU machine carries this very program.
//!
//! Invariant: what a suite passes over is a failure unless it is listed here with its reason (`judge`). Whatever happens, what
//! was mounted is unmounted, and nothing is ended but what was started here.
//! Elsewhere: where the suites come from (`tools`), what their output means (`judge`).

mod judge;
mod mounted;
mod speed;
mod tools;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use serde_json::json;

use self::judge::Verdict;
use self::mounted::{Mounted, Shape};
use self::tools::Tools;
use crate::{setup, shell};

/// A suite that does not come to its end in this time hangs.
const LIMIT: Duration = Duration::from_secs(40 * 60);
/// What a stressor may take longer than it was asked to.
const GRACE: Duration = Duration::from_secs(120);
/// Data that files of stressors may have, where they ask: their own is a gigabyte each.
const STRESS_SIZED: [&str; 3] = ["hdd", "iomix", "fallocate"];

/// Operations of one fsx: it keeps all its mappings, over which the kernel goes whenever a file is cut.
const FSX_AT_ONCE: u64 = 25_000;
/// What fsx does, and how often: all that it can on Linux. `sendfile` takes two milliseconds on any filesystem.
const FSX: &str = "\
[opsize]
min = 1

[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 20
truncate = 10
fsync = 1
fdatasync = 1
posix_fallocate = 5
punch_hole = 5
sendfile = 1
posix_fadvise = 1
copy_file_range = 5
";

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Suite {
    Pjdfstest,
    Fsx,
    StressNg,
    /// What somebody does who is not root.
    User,
    /// How fast calls are, beside tmpfs: by its name alone, for a machine that does nothing else.
    Speed,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which of them; all that find errors without any.
    suites: Vec<Suite>,
    /// Whose memory is mounted: soft, gpu or auto.
    #[arg(long, default_value = "soft")]
    device: String,
    /// The code of most mounts: off or rs [default: off on the software device,
    /// where rs has fewer operations of its own, else rs].
    #[arg(long)]
    ecc: Option<String>,
    /// Operations of fsx for each way of caching, 25000 on each mount.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    operations: u64,
    /// Operations of fsx with the code on the software device and its checks.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    coded_operations: u64,
    /// As many of these mounts at a time for each way of caching.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    at_once: u64,
    /// Seconds for each of stress-ng's stressors.
    #[arg(long, value_name = "N", default_value_t = 3)]
    seconds: u64,
    /// Rounds over all mounts for speed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds for each figure of speed.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    figure_seconds: f64,
    /// Calls whose speed is measured: those in whose names this is [default: all].
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    calls: String,
    /// What fsx begins with [default: another each time].
    #[arg(long)]
    seed: Option<u64>,
    /// A folder with pjdfstest, fsx and stress-ng [default: build/suites, into
    /// which they are installed].
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// The program that mounts [default: that of this checkout].
    #[arg(long, value_name = "FILE")]
    fercuda: Option<PathBuf>,
    /// Where logs go.
    #[arg(long, value_name = "DIR", default_value = "target/suites")]
    out: PathBuf,
    /// Writes the table there too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What one suite came to on one mount.
struct Row {
    suite: &'static str,
    mount: String,
    seconds: f64,
    /// What repeats it.
    note: String,
    verdict: Verdict,
}

/// Runs what is asked for.
pub(crate) fn run(args: &Args) -> Result<()> {
    may_mount()?;
    let out = std::path::absolute(&args.out)?;
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let wanted = |suite| args.suites.is_empty() || args.suites.contains(&suite);
    let is_speed = args.suites.contains(&Suite::Speed);
    let tools = match &args.bin_dir {
        Some(folder) => Tools::in_folder(folder),
        None if args.suites == [Suite::Speed] => Tools::in_folder(&shell::root()),
        None => tools::install(wanted(Suite::StressNg), wanted(Suite::User))?,
    };
    let fercuda = match &args.fercuda {
        Some(program) => std::path::absolute(program)?,
        None => tools::fercuda(is_speed)?,
    };
    let is_soft = args.device == "soft";
    let ecc = args.ecc.clone();
    let ecc = ecc.unwrap_or_else(|| if is_soft { "off" } else { "rs" }.to_owned());
    let mut all = Suites {
        shape: Shape {
            fercuda,
            device: args.device.clone(),
            wheels: match args.fercuda {
                Some(_) => None,
                None => Some(setup::run(false)?.wheels),
            },
        },
        tools,
        out,
        seed: args.seed.unwrap_or_else(seed),
        rows: Vec::new(),
    };
    if wanted(Suite::Pjdfstest) {
        for cache in ["none", "keep"] {
            all.pjdfstest(&ecc, cache)?;
        }
    }
    if wanted(Suite::Fsx) {
        let mut left = args.operations;
        while left > 0 {
            let mut runs = Vec::new();
            for _ in 0..args.at_once {
                let part = left.min(FSX_AT_ONCE);
                left -= part;
                let both = ["none", "keep"].map(|cache| (ecc.as_str(), cache, part));
                runs.extend(both.into_iter().filter(|it| it.2 > 0));
            }
            all.fsx(&runs)?;
            // Each begins with another.
            all.seed += runs.len() as u64;
        }
        if is_soft && ecc != "rs" {
            all.fsx(&[("rs", "none", args.coded_operations)])?;
        }
    }
    if wanted(Suite::StressNg) {
        all.stress_ng(&ecc, Duration::from_secs(args.seconds))?;
    }
    if wanted(Suite::User) {
        all.user(&args.device)?;
    }
    if is_speed {
        let io = match &args.bin_dir {
            Some(folder) => folder.join("io"),
            None => speed::build()?,
        };
        let asked = speed::Asked {
            rounds: args.rounds,
            seconds: args.figure_seconds,
            calls: &args.calls,
            json: args.json.as_deref(),
        };
        speed::run(&all.shape, &io, &all.out, &asked)?;
        if args.suites == [Suite::Speed] {
            return Ok(());
        }
    }
    report(&all.rows, &all.out, args.json.as_deref())
}

/// Puts into a folder what `--bin-dir` takes.
pub(crate) fn carry(to: &Path, copy: impl Fn(&Path, &Path) -> Result<()>) -> Result<()> {
    let tools = tools::install(true, false)?;
    fs::create_dir_all(to.join("lib"))?;
    for (name, _) in [tools::PJDFSTEST, tools::FSX] {
        copy(&tools.bin().join(name), &to.join(name))?;
    }
    copy(&speed::build()?, &to.join("io"))?;
    let (program, libraries) = tools.stress_ng()?;
    copy(&program, &to.join("stress-ng"))?;
    for library in libraries {
        let name = library.file_name().unwrap_or_default();
        copy(&library, &to.join("lib").join(name))?;
    }
    Ok(())
}

/// The two things without which nothing here is shown.
fn may_mount() -> Result<()> {
    if !Path::new("/dev/fuse").exists() {
        bail!(
            "the suites need a mount, and the kernel has no FUSE here: there is no /dev/fuse\ntry: modprobe fuse"
        );
    }
    if !geteuid().is_root() {
        bail!(
            "the suites mount, and make devices and files of others, which only root may\ntry: as root"
        );
    }
    Ok(())
}

fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(1, |now| now.as_millis() as u64)
}

struct Suites {
    shape: Shape,
    tools: Tools,
    out: PathBuf,
    seed: u64,
    rows: Vec<Row>,
}

impl Suites {
    /// A fresh mount, its words to the log of its own.
    fn mount(&self, size: &str, ecc: &str, cache: &str, name: &str) -> Result<Mounted> {
        let options = [
            format!("--size={size}"),
            format!("--ecc={ecc}"),
            format!("--cache={cache}"),
        ];
        Mounted::new(
            &self.shape,
            &options,
            &self.out.join(format!("{name}-mount.log")),
        )
    }

    /// Twice: all of it, and by themselves the tests that make the mount one that can only be read. Beside others those fail
    /// on every filesystem, as a test before them leaves a file open for writing.
    fn pjdfstest(&mut self, ecc: &str, cache: &str) -> Result<()> {
        let mount = said(ecc, cache);
        shell::step(&format!("pjdfstest {} on {mount}", tools::PJDFSTEST.1));
        let mounted = self.mount("512MiB", ecc, cache, &format!("pjdfstest-{cache}"))?;
        let second = tempfile::tempdir()?;
        let began = Instant::now();
        let mut logs = Vec::new();
        for (name, remounts) in [("all", false), ("remounts", true)] {
            let config = second.path().join("pjdfstest.toml");
            fs::write(&config, judge::pjdfstest_config(remounts)?)?;
            let log = self.out.join(format!("pjdfstest-{cache}-{name}.log"));
            let mut command = self.tools.command("pjdfstest");
            command.arg("--configuration-file").arg(&config);
            command.arg("--path").arg(mounted.at());
            command.arg("--secondary-fs").arg(second.path());
            if remounts {
                command.arg("::erofs_");
            }
            // Its status is in what it says of each test.
            wait(spawn(command, &log)?, LIMIT, "pjdfstest")?;
            logs.push(fs::read_to_string(&log)?);
        }
        let mut verdict = judge::pjdfstest(&logs);
        verdict.end(mounted.end());
        self.row("pjdfstest", mount, began, String::new(), verdict);
        Ok(())
    }

    /// On all of these mounts at once: each waits for its own daemon most of the time.
    fn fsx(&mut self, runs: &[(&str, &str, u64)]) -> Result<()> {
        let mut begun = Vec::new();
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("fsx.toml");
        fs::write(&config, FSX)?;
        for ((ecc, cache, operations), at) in runs.iter().zip(0..) {
            let seed = self.seed + at;
            let mount = said(ecc, cache);
            shell::step(&format!(
                "fsx {}: {operations} operations on {mount}, seed {seed}",
                tools::FSX.1
            ));
            let name = format!("fsx-{ecc}-{cache}-{seed}");
            let mounted = self.mount("64MiB", ecc, cache, &name)?;
            let log = self.out.join(format!("{name}.log"));
            let mut command = self.tools.command("fsx");
            command.arg("-f").arg(&config);
            command.args(["-N", &operations.to_string(), "-S", &seed.to_string()]);
            command
                .arg("-P")
                .arg(&self.out)
                .arg(mounted.at().join(&name));
            let began = Instant::now();
            let running = Running(spawn(command, &log)?);
            begun.push((running, mounted, mount, log, *operations, seed, began));
        }
        for (mut running, mounted, mount, log, operations, seed, began) in begun {
            let status = running.wait(LIMIT, "fsx")?;
            let mut verdict = judge::fsx(operations, status, &fs::read_to_string(&log)?);
            verdict.end(mounted.end());
            self.row("fsx", mount, began, format!("seed {seed}"), verdict);
        }
        Ok(())
    }

    /// One stressor of the class after the other, two of each at a time.
    fn stress_ng(&mut self, ecc: &str, each: Duration) -> Result<()> {
        let mount = said(ecc, "none");
        let (version, stressors) = self.stressors()?;
        shell::step(&format!(
            "stress-ng {version}: {} stressors on {mount}, {} s each",
            stressors.len(),
            each.as_secs()
        ));
        let mounted = self.mount("512MiB", ecc, "none", "stress-ng")?;
        let began = Instant::now();
        let mut verdict = Verdict::default();
        for stressor in &stressors {
            let log = self.out.join(format!("stress-ng-{stressor}.log"));
            let mut command = self.tools.command("stress-ng");
            command.arg(format!("--{stressor}")).arg("2");
            command.args(["--verify", "--timeout", &format!("{}s", each.as_secs())]);
            command.arg("--temp-path").arg(mounted.at());
            if STRESS_SIZED.contains(&stressor.as_str()) {
                command.arg(format!("--{stressor}-bytes")).arg("64m");
            }
            let status = wait(spawn(command, &log)?, each + GRACE, stressor);
            let text = fs::read_to_string(&log)?;
            match status {
                Ok(status) => judge::stressor(&mut verdict, stressor, status, &text),
                Err(error) => verdict.failed.push(format!("{stressor}: {error}")),
            }
        }
        verdict.end(mounted.end());
        judge::stress_floor(&mut verdict);
        let note = format!("{version}, {} s each", each.as_secs());
        self.row("stress-ng", mount, began, note, verdict);
        Ok(())
    }

    /// Mounts by way of fusermount3, as any user does.
    fn user(&mut self, device: &str) -> Result<()> {
        shell::step("a user who is not root, on --ecc=off");
        let script = tempfile::NamedTempFile::new()?;
        fs::write(script.path(), include_str!("suites/user.sh"))?;
        let log = self.out.join("user.log");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash"]);
        command.arg(script.path()).arg(&self.shape.fercuda);
        command.arg(self.tools.fusermount()?).arg(device);
        let began = Instant::now();
        let status = wait(spawn(command, &log)?, LIMIT, "the user's steps")?;
        let verdict = judge::steps(status, &fs::read_to_string(&log)?);
        self.row("user", said("off", "none"), began, String::new(), verdict);
        Ok(())
    }

    /// The version, and the names of the class's stressors.
    fn stressors(&self) -> Result<(String, Vec<String>)> {
        let ask = |words: &[&str]| -> Result<String> {
            let mut command = self.tools.command("stress-ng");
            let output = command.args(words).output();
            let output = output.context("cannot start stress-ng")?;
            let both = [output.stdout, output.stderr].concat();
            Ok(String::from_utf8_lossy(&both).into_owned())
        };
        let version = ask(&["--version"])?;
        let version = version.split(&[' ', ',']).nth(3).unwrap_or("?").to_owned();
        let said = ask(&["--class", "filesystem?"])?;
        let names = said.split_once("stressors:").map(|(_, names)| names);
        let names: Vec<String> = names
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        if names.is_empty() {
            bail!("stress-ng names no stressors of its class filesystem, but says: {said}");
        }
        Ok((version, names))
    }

    fn row(
        &mut self,
        suite: &'static str,
        mount: String,
        began: Instant,
        note: String,
        verdict: Verdict,
    ) {
        let row = Row {
            suite,
            mount,
            seconds: began.elapsed().as_secs_f64(),
            note,
            verdict,
        };
        println!("{}", line(&row));
        self.rows.push(row);
    }
}

fn said(ecc: &str, cache: &str) -> String {
    format!("--ecc={ecc} --cache={cache}")
}

/// A program that is ended with all that it started, if nobody waited for it.
struct Running(Child);

impl Running {
    fn wait(&mut self, limit: Duration, what: &str) -> Result<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if began.elapsed() > limit {
                bail!("{what} is not done after {} s", limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // A group of its own, whose number nobody else has before we waited for it.
            let _gone = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _status = self.0.wait();
        }
    }
}

fn spawn(mut command: Command, log: &Path) -> Result<Child> {
    use std::os::unix::process::CommandExt as _;
    let line = shell::describe(&command);
    let file = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))
}

fn wait(child: Child, limit: Duration, what: &str) -> Result<ExitStatus> {
    Running(child).wait(limit, what)
}

fn line(row: &Row) -> String {
    let Verdict {
        passed,
        failed,
        passed_over,
    } = &row.verdict;
    format!(
        "{:<10} {:<24} {passed:>8} passed {:>3} failed {:>3} over {:>7.1} s  {}",
        row.suite,
        row.mount,
        failed.len(),
        passed_over.len(),
        row.seconds,
        row.note
    )
}

fn report(rows: &[Row], out: &Path, json: Option<&Path>) -> Result<()> {
    shell::step("suites");
    for row in rows {
        println!("{}", line(row));
    }
    for row in rows {
        for (what, why) in &row.verdict.passed_over {
            println!("{} passed over: {what}: {why}", row.suite);
        }
    }
    for row in rows {
        for what in &row.verdict.failed {
            println!("{} {} FAILED: {what}", row.suite, row.mount);
        }
    }
    let failed: usize = rows.iter().map(|row| row.verdict.failed.len()).sum();
    let passed: u64 = rows.iter().map(|row| row.verdict.passed).sum();
    println!("{passed} passed, {failed} failed");
    if let Some(path) = json {
        let rows: Vec<_> = rows.iter().map(as_json).collect();
        let text = serde_json::to_string_pretty(&json!({ "suites": rows, "failed": failed }))?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    if failed > 0 {
        bail!(
            "{failed} tests of suites failed; logs are in {}",
            out.display()
        );
    }
    if passed == 0 {
        bail!("no suite ran");
    }
    Ok(())
}

fn as_json(row: &Row) -> serde_json::Value {
    let over = row.verdict.passed_over.iter();
    let over: Vec<_> = over
        .map(|(what, why)| json!({ "test": what, "why": why }))
        .collect();
    json!({
        "suite": row.suite,
        "mount": row.mount,
        "seconds": row.seconds,
        "note": row.note,
        "passed": row.verdict.passed,
        "failed": row.verdict.failed,
        "passed_over": over,
    })
}
