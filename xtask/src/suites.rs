//! Third-party filesystem test suites on mounts in device memory (pjdfstest, fsx and stress-ng),
//! and an unprivileged user's session.
//!
//! Each runs on a fresh mount that `fercuda vram mount` creates in a private folder. With
//! `--bin-dir` and `--fercuda` it needs no cargo, checkout or network, so the bundle for a GPU
//! machine carries this program.
//!
//! Invariant: a skipped test is a failure unless it is listed with its reason (`judge`). Every
//! mount is unmounted in the end, and only processes started here are killed. Elsewhere: installing
//! the suites (`tools`), parsing their output (`judge`).
mod judge;
mod mounted;
mod speed;
mod tools;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use fercuda_trials::{Budget, Work};
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use serde_json::json;

use self::judge::SuiteVerdict;
use self::mounted::{MountSettings, SuiteMount};
use self::tools::SuiteTools;
use crate::{setup, shell};

/// Time limit of a suite.
const SUITE_TIMEOUT: Duration = Duration::from_secs(40 * 60);
/// Time that a stressor may take beyond its limit.
const STRESSOR_GRACE: Duration = Duration::from_secs(120);
/// Stressors with an option for their file size, as their default is a gigabyte each.
const STRESSORS_WITH_SIZE: [&str; 3] = ["hdd", "iomix", "fallocate"];

/// Operations of one fsx process: it keeps all its mappings, which the kernel walks at each
/// truncation.
const FSX_OPERATIONS_PER_MOUNT: u64 = 25_000;
/// Operations of fsx for each cache mode.
const FSX_WORK: Work = Work {
    name: "fsx",
    least: 50_000,
    ci_seconds: 0,
    soak: 1_000_000,
};
/// Seconds of each of stress-ng's stressors.
const STRESSOR_SECONDS: Work = Work {
    name: "stress-ng",
    least: 1,
    ci_seconds: 0,
    soak: 3,
};
/// Weights of fsx's operations: all that it supports on Linux. `sendfile` takes two milliseconds on
/// any filesystem.
const FSX_CONFIG: &str = "\
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
pub(crate) enum FilesystemSuite {
    Pjdfstest,
    Fsx,
    StressNg,
    /// Session of an unprivileged user.
    User,
    /// Benchmark against tmpfs; runs only if named, for an otherwise idle machine.
    Speed,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Suites to run [default: all but speed].
    suites: Vec<FilesystemSuite>,
    /// Device to mount: soft, gpu or auto.
    #[arg(long, default_value = "soft")]
    device: String,
    /// Error-correcting code of most mounts: off or rs [default: off on the
    /// software device, where rs has separate, fewer operations, else rs].
    #[arg(long)]
    ecc: Option<String>,
    /// Operations of fsx for each cache mode, 25000 on each mount [default: 50000; a
    /// million with FERCUDA_BUDGET=soak].
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    /// Operations of fsx with --ecc rs on the software device and its checks.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    coded_operations: u64,
    /// Number of these mounts at a time for each cache mode.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    at_once: u64,
    /// Seconds for each of stress-ng's stressors [default: 1; 3 with
    /// FERCUDA_BUDGET=soak].
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Rounds over all mounts for speed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds for each figure of speed.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    figure_seconds: f64,
    /// Measure only calls with this in their names [default: all].
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    calls: String,
    /// Seed of fsx [default: random].
    #[arg(long)]
    seed: Option<u64>,
    /// Folder with pjdfstest, fsx and stress-ng [default: build/suites, into which
    /// they are installed].
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Program that mounts [default: this checkout's].
    #[arg(long, value_name = "FILE")]
    fercuda: Option<PathBuf>,
    /// Folder of the logs.
    #[arg(long, value_name = "DIR", default_value = "target/suites")]
    out: PathBuf,
    /// Write the results to a JSON file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Result of one suite on one mount.
struct SuiteResult {
    suite: &'static str,
    mount: String,
    seconds: f64,
    /// What is needed to repeat it.
    note: String,
    verdict: SuiteVerdict,
}

/// Runs the requested suites.
pub(crate) fn run(args: &Args) -> Result<()> {
    require_fuse_and_root()?;
    let out = std::path::absolute(&args.out)?;
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let wanted = |suite| args.suites.is_empty() || args.suites.contains(&suite);
    let is_speed = args.suites.contains(&FilesystemSuite::Speed);
    let tools = match &args.bin_dir {
        Some(folder) => SuiteTools::in_folder(folder),
        None if args.suites == [FilesystemSuite::Speed] => SuiteTools::in_folder(&shell::root()),
        None => tools::install(
            wanted(FilesystemSuite::StressNg),
            wanted(FilesystemSuite::User),
        )?,
    };
    let fercuda = match &args.fercuda {
        Some(program) => std::path::absolute(program)?,
        None => tools::fercuda(is_speed)?,
    };
    let is_soft = args.device == "soft";
    let ecc = args.ecc.clone();
    let ecc = ecc.unwrap_or_else(|| if is_soft { "off" } else { "rs" }.to_owned());
    let mut all = SuiteRunner {
        shape: MountSettings {
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
    if wanted(FilesystemSuite::Pjdfstest) {
        for cache in ["none", "keep"] {
            all.pjdfstest(&ecc, cache)?;
        }
    }
    if wanted(FilesystemSuite::Fsx) {
        if args.bin_dir.is_none() && args.seed.is_none() {
            let root = shell::root().join("xtask");
            let fresh = all.seed;
            for failure in fercuda_trials::recorded(&root.to_string_lossy(), FSX_WORK) {
                println!("recorded failure {}", failure.name);
                all.seed = failure.seed;
                let both = ["none", "keep"];
                let both = both.map(|cache| (ecc.as_str(), cache, FSX_OPERATIONS_PER_MOUNT));
                all.fsx(&both)?;
            }
            all.seed = fresh;
        }
        let planned = || Budget::begin(FSX_WORK).planned_steps();
        let mut left = args.operations.unwrap_or_else(planned);
        while left > 0 {
            let mut runs = Vec::new();
            for _ in 0..args.at_once {
                let part = left.min(FSX_OPERATIONS_PER_MOUNT);
                left -= part;
                let both = ["none", "keep"].map(|cache| (ecc.as_str(), cache, part));
                runs.extend(both.into_iter().filter(|it| it.2 > 0));
            }
            all.fsx(&runs)?;
            // Each run has another seed.
            all.seed += runs.len() as u64;
        }
        if is_soft && ecc != "rs" {
            all.fsx(&[("rs", "none", args.coded_operations)])?;
        }
    }
    if wanted(FilesystemSuite::StressNg) {
        let planned = || Budget::begin(STRESSOR_SECONDS).planned_steps();
        let seconds = args.seconds.unwrap_or_else(planned);
        all.stress_ng(&ecc, Duration::from_secs(seconds))?;
    }
    if wanted(FilesystemSuite::User) {
        all.user(&args.device)?;
    }
    if is_speed {
        let io = match &args.bin_dir {
            Some(folder) => folder.join("io"),
            None => speed::build()?,
        };
        let options = speed::SpeedOptions {
            rounds: args.rounds,
            seconds: args.figure_seconds,
            calls: &args.calls,
            json: args.json.as_deref(),
        };
        speed::run(&all.shape, &io, &all.out, &options)?;
        if args.suites == [FilesystemSuite::Speed] {
            return Ok(());
        }
    }
    report(&all.rows, &all.out, args.json.as_deref())
}

/// Copies the suites into a folder for `--bin-dir`.
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

/// Fails without FUSE or without root, which every suite needs.
fn require_fuse_and_root() -> Result<()> {
    if !Path::new("/dev/fuse").exists() {
        bail!("the suites need FUSE, and there is no /dev/fuse\ntry: modprobe fuse");
    }
    if !geteuid().is_root() {
        bail!(
            "the suites mount filesystems and create devices and files of other users, which requires root\ntry: as root"
        );
    }
    Ok(())
}

fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(1, |now| now.as_millis() as u64)
}

struct SuiteRunner {
    shape: MountSettings,
    tools: SuiteTools,
    out: PathBuf,
    seed: u64,
    rows: Vec<SuiteResult>,
}

impl SuiteRunner {
    /// Creates a fresh mount with its own log.
    fn mount(&self, size: &str, ecc: &str, cache: &str, name: &str) -> Result<SuiteMount> {
        let options = [
            format!("--size={size}"),
            format!("--ecc={ecc}"),
            format!("--cache={cache}"),
        ];
        SuiteMount::new(
            &self.shape,
            &options,
            &self.out.join(format!("{name}-mount.log")),
        )
    }

    /// Runs all tests, and then separately those that remount read-only. Among the others those
    /// fail on every filesystem, as an earlier test leaves a file open for writing.
    fn pjdfstest(&mut self, ecc: &str, cache: &str) -> Result<()> {
        let mount = describe_options(ecc, cache);
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
            // The verdict comes from the log's line for each test.
            wait(spawn(command, &log)?, SUITE_TIMEOUT, "pjdfstest")?;
            logs.push(fs::read_to_string(&log)?);
        }
        let mut verdict = judge::pjdfstest(&logs);
        verdict.record_exit(mounted.end());
        self.row("pjdfstest", mount, began, String::new(), verdict);
        Ok(())
    }

    /// Runs fsx on all of these mounts concurrently: each process mostly waits for its daemon.
    fn fsx(&mut self, runs: &[(&str, &str, u64)]) -> Result<()> {
        let mut begun = Vec::new();
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("fsx.toml");
        fs::write(&config, FSX_CONFIG)?;
        for ((ecc, cache, operations), at) in runs.iter().zip(0..) {
            let seed = self.seed + at;
            let mount = describe_options(ecc, cache);
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
            let running = KilledProcess(spawn(command, &log)?);
            begun.push((running, mounted, mount, log, *operations, seed, began));
        }
        for (mut running, mounted, mount, log, operations, seed, began) in begun {
            let status = running.wait(SUITE_TIMEOUT, "fsx")?;
            let mut verdict = judge::fsx(operations, status, &fs::read_to_string(&log)?);
            verdict.record_exit(mounted.end());
            self.row("fsx", mount, began, format!("seed {seed}"), verdict);
        }
        Ok(())
    }

    /// Runs the stressors of the class one after the other, two instances each.
    fn stress_ng(&mut self, ecc: &str, each: Duration) -> Result<()> {
        let mount = describe_options(ecc, "none");
        let (version, stressors) = self.stressors()?;
        shell::step(&format!(
            "stress-ng {version}: {} stressors on {mount}, {} s each",
            stressors.len(),
            each.as_secs()
        ));
        let mounted = self.mount("512MiB", ecc, "none", "stress-ng")?;
        let began = Instant::now();
        let mut verdict = SuiteVerdict::default();
        for stressor in &stressors {
            let log = self.out.join(format!("stress-ng-{stressor}.log"));
            let mut command = self.tools.command("stress-ng");
            command.arg(format!("--{stressor}")).arg("2");
            command.args(["--verify", "--timeout", &format!("{}s", each.as_secs())]);
            command.arg("--temp-path").arg(mounted.at());
            if STRESSORS_WITH_SIZE.contains(&stressor.as_str()) {
                command.arg(format!("--{stressor}-bytes")).arg("64m");
            }
            let status = wait(spawn(command, &log)?, each + STRESSOR_GRACE, stressor);
            let text = fs::read_to_string(&log)?;
            match status {
                Ok(status) => judge::stressor(&mut verdict, stressor, status, &text),
                Err(error) => verdict.failed.push(format!("{stressor}: {error}")),
            }
        }
        verdict.record_exit(mounted.end());
        judge::require_stressors(&mut verdict);
        let note = format!("{version}, {} s each", each.as_secs());
        self.row("stress-ng", mount, began, note, verdict);
        Ok(())
    }

    /// Runs the script of an unprivileged user, which mounts through fusermount3.
    fn user(&mut self, device: &str) -> Result<()> {
        shell::step("an unprivileged user, on --ecc=off");
        let script = tempfile::NamedTempFile::new()?;
        fs::write(script.path(), include_str!("suites/user.sh"))?;
        let log = self.out.join("user.log");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash"]);
        command.arg(script.path()).arg(&self.shape.fercuda);
        command.arg(self.tools.fusermount()?).arg(device);
        let began = Instant::now();
        let status = wait(spawn(command, &log)?, SUITE_TIMEOUT, "the user's steps")?;
        let verdict = judge::steps(status, &fs::read_to_string(&log)?);
        self.row(
            "user",
            describe_options("off", "none"),
            began,
            String::new(),
            verdict,
        );
        Ok(())
    }

    /// Version of stress-ng, and the names of its filesystem stressors.
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
        let output = ask(&["--class", "filesystem?"])?;
        let names = output.split_once("stressors:").map(|(_, names)| names);
        let names: Vec<String> = names
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        if names.is_empty() {
            bail!("stress-ng lists no stressors of its class filesystem, but prints: {output}");
        }
        Ok((version, names))
    }

    fn row(
        &mut self,
        suite: &'static str,
        mount: String,
        began: Instant,
        note: String,
        verdict: SuiteVerdict,
    ) {
        let row = SuiteResult {
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

fn describe_options(ecc: &str, cache: &str) -> String {
    format!("--ecc={ecc} --cache={cache}")
}

/// Child process that is killed with its process group on drop.
struct KilledProcess(Child);

impl KilledProcess {
    fn wait(&mut self, limit: Duration, what: &str) -> Result<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if began.elapsed() > limit {
                bail!("{what} has not finished after {} s", limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for KilledProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // The process group has its own ID, which is not reused before the child is waited for.
            let _gone = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _status = self.0.wait();
        }
    }
}

fn spawn(mut command: Command, log: &Path) -> Result<Child> {
    use std::os::unix::process::CommandExt as _;
    let line = shell::describe(&command);
    let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))
}

fn wait(child: Child, limit: Duration, what: &str) -> Result<ExitStatus> {
    KilledProcess(child).wait(limit, what)
}

fn line(row: &SuiteResult) -> String {
    let SuiteVerdict {
        passed,
        failed,
        skipped,
    } = &row.verdict;
    format!(
        "{:<10} {:<24} {passed:>8} passed {:>3} failed {:>3} skipped {:>7.1} s  {}",
        row.suite,
        row.mount,
        failed.len(),
        skipped.len(),
        row.seconds,
        row.note
    )
}

fn report(rows: &[SuiteResult], out: &Path, json: Option<&Path>) -> Result<()> {
    shell::step("suites");
    for row in rows {
        println!("{}", line(row));
    }
    for row in rows {
        for (what, why) in &row.verdict.skipped {
            println!("{} skipped: {what}: {why}", row.suite);
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

fn as_json(row: &SuiteResult) -> serde_json::Value {
    let skipped = row.verdict.skipped.iter();
    let skipped: Vec<_> = skipped
        .map(|(what, why)| json!({ "test": what, "why": why }))
        .collect();
    json!({
        "suite": row.suite,
        "mount": row.mount,
        "seconds": row.seconds,
        "note": row.note,
        "passed": row.verdict.passed,
        "failed": row.verdict.failed,
        "passed_over": skipped,
    })
}
