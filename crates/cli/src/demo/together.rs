//! The end of the demo: several libraries in one process, one pool below them,
//! and the ledger's figures beside the driver's.
//!
//! The process is started as `fercuda run` does. It says when it holds its
//! memory; then its ledger is read, and again when it has ended.
//!
//! Invariant: nothing is said to be right that was not read: a tenant is there
//! if the ledger has it with live memory, and the two figures of the last line
//! come from different places, the ledger's accounts and the driver.
//! Elsewhere: the tenants (`tenants.py`, `here`), where they run (`python`).

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fercuda_ledger::{EventKind, Folder, Governed, LedgerSnapshot};
use serde::{Deserialize, Serialize};

use super::python::{self, Python};
use crate::ledgers;
use crate::out::say;
use crate::run::{self, DeviceKind, Places};
use crate::terminal::{Paint, bytes, clipped, count, wrapped};

const TENANTS: &str = include_str!("tenants.py");
/// How long the process may take, with imports and compilers of frameworks.
const PATIENCE: Duration = Duration::from_secs(240);
/// Readings of a ledger until one is all of one moment.
const READINGS: usize = 20;

/// What a tenant of the process is, and how the ledger knows it.
struct Known {
    part: &'static str,
    /// The package without which it is not there.
    package: Option<&'static str>,
    /// NVIDIA's runtime library is below it, which needs NVIDIA's driver.
    needs_gpu: bool,
    /// Its memory is charged to one of these; to none if it takes no memory.
    tenants: &'static [&'static str],
}

const fn framework(name: &'static str, tenants: &'static [&'static str]) -> Known {
    Known {
        part: name,
        package: Some(name),
        needs_gpu: true,
        tenants,
    }
}

/// In a process of Python's.
const IN_PYTHON: [Known; 7] = [
    Known {
        part: "ctypes",
        package: None,
        needs_gpu: false,
        tenants: &["python"],
    },
    OURS,
    Known {
        part: "cuda.core",
        package: Some("cuda.core"),
        needs_gpu: false,
        // It may ask by way of cuda.bindings.
        tenants: &["cuda.core", "cuda.bindings"],
    },
    framework("torch", &["torch"]),
    framework("jax", &["jax"]),
    framework("cupy", &["cupy"]),
    framework("triton", &[]),
];

/// In a process of ours.
const IN_OURS: [Known; 2] = [
    Known {
        part: "fercuda",
        package: None,
        needs_gpu: false,
        tenants: &["fercuda"],
    },
    OURS,
];

const OURS: Known = Known {
    part: "our runtime",
    package: None,
    needs_gpu: false,
    tenants: &["fercuda_guest"],
};

/// What the process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Did(Part),
    Failed(Part),
    /// Everything that is kept is live, and the driver was asked.
    Holding,
    Done,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) part: String,
    pub(super) what: String,
}

/// One library that did all that it was to do.
#[derive(Debug, Serialize)]
struct Row {
    part: String,
    /// What it checked.
    did: String,
    /// Where the ledger has its memory; none if it takes none.
    tenant: Option<String>,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub(super) struct Together {
    /// The device that all figures are of.
    device: u32,
    /// What was in the process.
    parts: Vec<Row>,
    python: Option<String>,
    /// What would add tenants.
    hint: Option<String>,
    /// Pythons that did not say what they have, and why.
    silent: Vec<String>,
    /// Its ledger when it held its memory, and at its end.
    holding: LedgerSnapshot,
    ended: LedgerSnapshot,
    /// What the ledger accounts for then, and what the driver said is used.
    accounted_bytes: u64,
    driver_used_bytes: Option<u64>,
    ungoverned_bytes: u64,
    fallbacks: u64,
    /// Why it is not as it should be; nothing if it is.
    troubles: Vec<String>,
}

/// Starts the process and reads its ledger.
pub(super) fn run(device: u32, software: bool, seed: u64) -> Result<Together> {
    let packages: Vec<&str> = IN_PYTHON
        .iter()
        .filter(|known| !(known.needs_gpu && software))
        .filter_map(|known| known.package)
        .collect();
    let (python, silent) = python::find(&packages);
    let has = |known: &&Known| match (&python, known.package) {
        (Some(python), Some(package)) => python.has.iter().any(|has| has == package),
        (_, package) => package.is_none(),
    };
    let all: &[Known] = if python.is_some() {
        &IN_PYTHON
    } else {
        &IN_OURS
    };
    let wanted: Vec<&Known> = all.iter().filter(has).collect();

    let run = run::fresh_run();
    let mut command = command(python.as_ref(), &wanted, device, seed)?;
    let kind = if software {
        DeviceKind::Soft
    } else {
        DeviceKind::Gpu
    };
    run::govern(&mut command, kind, run)?;
    // Held before its process can end and be swept.
    let folder = Folder::from_env()?;
    let _hold = folder.hold(run)?;
    let read = || {
        let (mut found, unreadable) = ledgers::gather(&folder, |it| it.run == Some(run))?;
        found.retain(|ledger| ledger.devices.iter().any(|it| it.device == device));
        match (found.len(), unreadable.first()) {
            (1, _) => Ok(found.remove(0)),
            (0, Some(why)) => bail!("its ledger cannot be read: {why}"),
            (number, _) => bail!("it left {number} ledgers for the device, not 1"),
        }
    };
    let mut process = Process::start(&mut command)?;
    let watched = process.watch(&read);
    let (parts, mut troubles, holding) = watched.map_err(|error| process.ended_badly(error))?;
    let ended = read()?;
    troubles.extend(judge(&holding, device, &wanted, software));
    troubles.extend(judge_end(&ended, device));
    let row = |Part { part, what }| {
        let known = wanted.iter().find(|known| known.part == part);
        Row {
            tenant: known.and_then(|known| tenant_of(&holding, device, known)),
            part,
            did: what,
        }
    };
    let parts: Vec<Row> = parts.into_iter().map(row).collect();
    let row = holding.devices.iter().find(|it| it.device == device);
    let (holding_only, ended_only) = (of_device(&holding, device), of_device(&ended, device));
    Ok(Together {
        device,
        parts,
        hint: hint(&wanted, software),
        silent,
        python: python.map(|python| python.version),
        accounted_bytes: row.map_or(0, |row| row.accounted_bytes()),
        driver_used_bytes: row.and_then(|row| row.driver_used_bytes()),
        ungoverned_bytes: ledgers::ungoverned_bytes(&[holding_only]),
        fallbacks: ledgers::fallbacks(&[ended_only]),
        holding,
        ended,
        troubles,
    })
}

/// What a ledger has of one device: some libraries use all there are.
fn of_device(ledger: &LedgerSnapshot, device: u32) -> LedgerSnapshot {
    let mut ledger = ledger.clone();
    ledger.devices.retain(|it| it.device == device);
    for tenant in &mut ledger.tenants {
        tenant.accounts.retain(|it| it.device == device);
    }
    ledger
}

/// The process with the tenants, not governed yet.
fn command(python: Option<&Python>, wanted: &[&Known], device: u32, seed: u64) -> Result<Command> {
    let places = Places::of_this_program()?;
    // What everything needs is missed first.
    places.hook()?;
    let guest = places.guest()?;
    let (device, seed) = (device.to_string(), seed.to_string());
    if let Some(python) = python {
        let names: Vec<&str> = wanted.iter().map(|known| known.part).collect();
        let mut command = Command::new(&python.executable);
        command
            .args(["-c", TENANTS, &device, &seed])
            .arg(guest)
            .arg(names.join(","))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        return Ok(command);
    }
    let program = std::env::current_exe().context("cannot tell where fercuda itself is")?;
    let mut command = Command::new(program);
    command
        // By this name the ledger knows it, whatever the file is called.
        .arg0("fercuda")
        .args([
            "demo",
            "--device",
            &device,
            "--seed",
            &seed,
            "--tenants-here",
        ])
        .arg(guest);
    Ok(command)
}

/// What is missing that would be a tenant here.
fn hint(wanted: &[&Known], software: bool) -> Option<String> {
    let has = |part: &str| wanted.iter().any(|known| known.part == part);
    if !has("cuda.core") {
        return Some(
            "No Python here has cuda.core, which would be one more: \
             cargo xtask setup, or pip install cuda-core"
                .to_owned(),
        );
    }
    let missing: Vec<&str> = IN_PYTHON
        .iter()
        .filter(|known| known.needs_gpu && !has(known.part))
        .map(|known| known.part)
        .collect();
    (!software && !missing.is_empty()).then(|| {
        format!(
            "This Python has no {}: each would be a tenant",
            missing.join(", ")
        )
    })
}

/// The tenant that a part's live memory is charged to.
fn tenant_of(holding: &LedgerSnapshot, device: u32, known: &Known) -> Option<String> {
    let mut tenants = holding.tenants.iter();
    let found = tenants.find(|tenant| {
        let mut accounts = tenant.accounts.iter();
        known.tenants.contains(&tenant.name.as_str())
            && accounts.any(|it| it.device == device && it.live_bytes > 0)
    });
    found.map(|tenant| tenant.name.clone())
}

/// What is not as it should be while the memory is held.
fn judge(holding: &LedgerSnapshot, device: u32, wanted: &[&Known], software: bool) -> Vec<String> {
    let mut troubles = Vec::new();
    for known in wanted.iter().filter(|known| !known.tenants.is_empty()) {
        if tenant_of(holding, device, known).is_none() {
            let names = known.tenants.join(" or ");
            troubles.push(format!(
                "{} has no memory in the ledger: no tenant {names} with live bytes",
                known.part
            ));
        }
    }
    let Some(row) = holding.devices.iter().find(|it| it.device == device) else {
        troubles.push(format!("the ledger does not know device {device}"));
        return troubles;
    };
    troubles.extend(ungoverned(row));
    // NVIDIA's driver takes some for code, unasked; the software device never.
    let mut kinds = row.governed.iter();
    if let Some(code) = kinds.find(|it| software && it.kind == Governed::Module) {
        let size = bytes(code.bytes);
        troubles.push(format!("{size} are charged as code, which takes none here"));
    }
    match row.driver_used_bytes() {
        None => troubles.push("the driver was not asked what is used".to_owned()),
        Some(used) if used != row.accounted_bytes() => troubles.push(format!(
            "the ledger accounts for {} B, the driver says {used} B",
            row.accounted_bytes()
        )),
        Some(_) => {}
    }
    if holding.racing {
        troubles.push("the ledger's figures are not of one moment".to_owned());
    }
    troubles
}

/// What is not as it should be when the process has ended.
fn judge_end(ended: &LedgerSnapshot, device: u32) -> Vec<String> {
    let rows = ended.devices.iter().filter(|it| it.device == device);
    let troubles = rows.flat_map(ungoverned);
    troubles.map(|it| format!("at its end, {it}")).collect()
}

fn ungoverned(row: &fercuda_ledger::DeviceSnapshot) -> Vec<String> {
    let mut troubles = Vec::new();
    if row.ungoverned_bytes > 0 {
        let size = bytes(row.ungoverned_bytes);
        troubles.push(format!(
            "ungoverned: {size} are used and nobody accounts for them"
        ));
    }
    if let Some(number) = row.event_counts.get(&EventKind::Fallback) {
        troubles.push(format!(
            "fallback: the driver served {} in the pool's stead",
            count(*number as usize, "allocation")
        ));
    }
    troubles
}

/// The process with the tenants, while it runs.
struct Process {
    child: Child,
    answers: Receiver<io::Result<String>>,
    complaints: Option<thread::JoinHandle<String>>,
    deadline: Instant,
}

impl Process {
    fn start(command: &mut Command) -> Result<Process> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the process with the tenants")?;
        let (send, answers) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(out).lines() {
                    let is_last = line.is_err();
                    // Whoever does not wait any more needs no answers.
                    if send.send(line).is_err() || is_last {
                        break;
                    }
                }
            });
        }
        let complaints = child.stderr.take().map(|err| {
            thread::spawn(move || {
                let mut text = Vec::new();
                let mut err = BufReader::new(err);
                // The first of it is kept; the rest must not block the writer.
                // What cannot be read would only be shown beside a failure.
                err.by_ref().take(1 << 20).read_to_end(&mut text).ok();
                std::io::copy(&mut err, &mut std::io::sink()).ok();
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        Ok(Process {
            child,
            answers,
            complaints,
            deadline: Instant::now() + PATIENCE,
        })
    }

    /// Waits until it holds its memory, has the ledger read, lets it go on and
    /// waits for its end.
    fn watch(
        &mut self,
        read: &dyn Fn() -> Result<LedgerSnapshot>,
    ) -> Result<(Vec<Part>, Vec<String>, LedgerSnapshot)> {
        let (mut parts, mut troubles) = (Vec::new(), Vec::new());
        let mut holding = None;
        loop {
            match self.answer()? {
                Answer::Did(part) if holding.is_none() => parts.push(part),
                Answer::Did(_) => {}
                Answer::Failed(part) => {
                    troubles.push(format!("{} failed: {}", part.part, part.what));
                }
                Answer::Holding => {
                    holding = Some(settled(read)?);
                    let mut stdin = self.child.stdin.take().context("it has no input")?;
                    stdin.write_all(b"go on\n")?;
                }
                Answer::Done => break,
            }
        }
        let holding = holding.context("it never held its memory")?;
        let status = self.wait()?;
        if !status.success() {
            bail!("it ended with {status}");
        }
        Ok((parts, troubles, holding))
    }

    fn answer(&self) -> Result<Answer> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.answers.recv_timeout(left) {
            Ok(Err(error)) => Err(error).context("what it says cannot be read"),
            Ok(Ok(line)) => serde_json::from_str(&line)
                .with_context(|| format!("it said {:?}", clipped(&line, 60))),
            Err(RecvTimeoutError::Timeout) => {
                bail!("it was not done after {} s", PATIENCE.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("it ended too early"),
        }
    }

    fn wait(&mut self) -> Result<std::process::ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > self.deadline {
                bail!("it did not end after {} s", PATIENCE.as_secs());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends it, and adds what it complained of.
    fn ended_badly(&mut self, error: anyhow::Error) -> anyhow::Error {
        // It may have ended by itself.
        self.child.kill().ok();
        let status = self.child.wait();
        // Nothing in that thread panics.
        let complaints = self.complaints.take().and_then(|thread| thread.join().ok());
        let complaints = complaints.unwrap_or_default();
        let mut last: Vec<&str> = complaints.trim_end().lines().rev().take(8).collect();
        last.reverse();
        let mut text = "the process with the tenants failed".to_owned();
        if let Ok(status) = status
            && let Some(code) = status.code()
        {
            text.push_str(&format!(" with status {code}"));
        }
        for line in last {
            text.push_str(&format!("\n{}", clipped(line, 76)));
        }
        error.context(text)
    }
}

/// The ledger, once its figures are of one moment.
fn settled(read: &dyn Fn() -> Result<LedgerSnapshot>) -> Result<LedgerSnapshot> {
    let mut snapshot = read()?;
    for _ in 1..READINGS {
        if !snapshot.racing {
            break;
        }
        thread::sleep(Duration::from_millis(10));
        snapshot = read()?;
    }
    Ok(snapshot)
}

impl Together {
    pub(super) fn passed(&self) -> bool {
        self.troubles.is_empty()
    }

    pub(super) fn print(&self, paint: Paint) {
        let process = match &self.python {
            Some(version) => format!("a process of Python {version}"),
            None => "a process of ours".to_owned(),
        };
        let number = count(self.parts.len(), "tenant");
        say!(
            "{}",
            paint.strong(&format!("One pool for {number} in {process}"))
        );
        for Row { part, did, tenant } in &self.parts {
            let tenant = tenant.as_deref().unwrap_or("-");
            let line = format!("{part:<12} {:<15} {did}", clipped(tenant, 15));
            say!("{}", clipped(&line, 80));
        }
        if let Some(hint) = &self.hint {
            wrapped(hint, 80).iter().for_each(|line| say!("{line}"));
        }
        for python in &self.silent {
            let text = format!("Passed over {python}");
            wrapped(&text, 80).iter().for_each(|line| say!("{line}"));
        }
        say!("");
        let holding = of_device(&self.holding, self.device);
        let one = std::slice::from_ref(&holding);
        for (place, line) in ledgers::tenants(one, usize::MAX).iter().enumerate() {
            match place {
                0 => say!("{}", paint.faint(line)),
                _ => say!("{line}"),
            }
        }
        let pooled = holding.devices.iter().map(|it| it.pooled_bytes).sum();
        let governed = ledgers::kinds(one).map_or(String::new(), |kinds| format!(", {kinds}"));
        for line in wrapped(
            &format!("accounted for: pool {}{governed}", bytes(pooled)),
            80,
        ) {
            say!("{line}");
        }
        for device in of_device(&self.ended, self.device).devices {
            say!(
                "at its end: {} allocations, {} frees, {} live, fallback {}",
                device.allocs,
                device.frees,
                bytes(device.live_bytes),
                self.fallbacks
            );
        }
        let (sign, used) = match self.driver_used_bytes {
            Some(used) if used == self.accounted_bytes => ("=", format!("{used} B")),
            Some(used) => ("!=", format!("{used} B")),
            None => ("!=", "nothing".to_owned()),
        };
        let proof = format!(
            "ungoverned = {}, reconciled with the driver: {} B {sign} {used}",
            bytes(self.ungoverned_bytes),
            self.accounted_bytes
        );
        match self.passed() {
            true => say!("{}", paint.good(&proof)),
            false => say!("{}", paint.bad(&proof)),
        }
        for trouble in &self.troubles {
            for line in wrapped(trouble, 72) {
                say!("  {}", paint.bad(&line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fercuda_ledger::{Gauge, Ledger, LedgerDevice, LedgerEvent, Tenant};

    use super::*;

    /// A process in which all is well, but for what `change` does.
    fn troubles(change: impl FnOnce(&Ledger, LedgerDevice)) -> Vec<String> {
        let ledger = Ledger::in_memory();
        let device = LedgerDevice::new(1);
        ledger.charge(device, ledger.tenant("fercuda"), 5 << 20);
        ledger.charge(device, ledger.tenant("fercuda_guest"), 1 << 20);
        ledger.govern(device, ledger.tenant("x"), Governed::Vmm, 2 << 20);
        // No memory of the device's.
        ledger.govern(device, ledger.tenant("x"), Governed::Host, 7 << 20);
        ledger.set(device, Gauge::Pooled, 8 << 20);
        ledger.reconcile(device, 100 << 20, 90 << 20, 0);
        change(&ledger, device);
        let snapshot = ledger.snapshot().unwrap();
        let wanted: Vec<&Known> = IN_OURS.iter().collect();
        let mut troubles = judge(&snapshot, 1, &wanted, true);
        troubles.extend(judge_end(&snapshot, 1));
        troubles
    }

    #[track_caller]
    fn assert_one(said: &str, change: impl FnOnce(&Ledger, LedgerDevice)) {
        let troubles = troubles(change);
        assert!(troubles.iter().any(|it| it.contains(said)), "{troubles:?}");
    }

    #[test]
    fn a_process_in_which_all_is_accounted_for_has_no_trouble() {
        assert_eq!(troubles(|_, _| {}), [""; 0]);
    }

    #[test]
    fn each_thing_that_is_not_as_it_should_be_is_named() {
        assert_one("ungoverned: 1.0 MiB are used", |ledger, device| {
            ledger.reconcile(device, 100 << 20, 89 << 20, 1 << 20);
        });
        assert_one(
            "accounts for 10485760 B, the driver says 10485761 B",
            |ledger, device| {
                ledger.reconcile(device, 100 << 20, (90 << 20) - 1, 0);
            },
        );
        assert_one("accounts for 11534336 B", |ledger, device| {
            ledger.set(device, Gauge::Pooled, 9 << 20);
        });
        assert_one("the driver was not asked", |ledger, device| {
            ledger.reconcile(device, 0, 0, 0);
        });
        assert_one("64.0 MiB are charged as code", |ledger, device| {
            ledger.govern(device, Tenant::OTHERS, Governed::Module, 64 << 20);
        });
        assert_one(
            "fallback: the driver served 1 allocation ",
            |ledger, device| {
                ledger.record(LedgerEvent {
                    kind: EventKind::Fallback,
                    device,
                    tenant: Tenant::OTHERS,
                    bytes: 1,
                    address: 0,
                    detail: 0,
                    stream: 0,
                    thread: 0,
                });
            },
        );
    }

    #[test]
    fn what_the_process_says_is_read_or_said_to_be_unreadable() {
        let said = |text: &str| {
            let mut process = Process::start(Command::new("printf").arg(text)).unwrap();
            let answer = process.answer();
            assert!(process.wait().unwrap().success());
            answer
        };
        assert!(matches!(said("\"done\"\\n"), Ok(Answer::Done)));
        let error = said("\\377\\n").unwrap_err();
        assert_eq!(error.to_string(), "what it says cannot be read");
        let error = said("hello\\n").unwrap_err();
        assert_eq!(error.to_string(), "it said \"hello\"");
        let error = said("").unwrap_err();
        assert_eq!(error.to_string(), "it ended too early");
    }

    #[test]
    fn what_other_devices_hold_is_left_out() {
        let ledger = Ledger::in_memory();
        let jax = ledger.tenant("jax");
        for ordinal in 0..3 {
            let device = LedgerDevice::new(ordinal);
            ledger.charge(device, jax, 1 << (20 + ordinal));
            ledger.reconcile(device, 9, 9, u64::from(ordinal));
        }
        let one = of_device(&ledger.snapshot().unwrap(), 1);
        assert_eq!(one.devices.len(), 1);
        assert_eq!(one.tenants[0].accounts.len(), 1);
        assert_eq!(one.tenants[0].live_bytes(), 2 << 20);
        assert_eq!(ledgers::ungoverned_bytes(&[one]), 1);
    }

    #[test]
    fn a_tenant_without_live_memory_is_missed() {
        assert_one("our runtime has no memory", |ledger, device| {
            let guest = ledger.tenant("fercuda_guest");
            let charge = ledger.cell(device, guest);
            ledger.discharge(charge, 1 << 20);
        });
        let ledger = Ledger::in_memory();
        let other = LedgerDevice::new(0);
        ledger.charge(other, ledger.tenant("fercuda"), 5 << 20);
        let snapshot = ledger.snapshot().unwrap();
        let troubles = judge(&snapshot, 1, &[&IN_OURS[0]], true);
        assert_eq!(troubles.len(), 2, "{troubles:?}");
        assert!(troubles[0].contains("no tenant fercuda with live bytes"));
        assert!(troubles[1].contains("does not know device 1"));
    }
}
