//! Demo of a shared pool: several libraries in one process, and the ledger's figures compared
//! with the driver's.
//!
//! The process is started as `fercuda run` does. Its ledger is read when it reports that it
//! holds its memory, and again when it has ended.
//!
//! Invariant: only measured values are reported: a tenant is present if the ledger shows it
//! with live memory, and the two figures of the last line come from different sources, the
//! ledger's accounts and the driver.
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
use crate::own_program;
use crate::run::{self, DeviceKind, LibraryFolders};
use crate::terminal::{Paint, bytes, clipped, count, wrapped};

const TENANTS: &str = include_str!("tenants.py");
/// Time limit of the process, including imports and compilers of frameworks.
const TIMEOUT: Duration = Duration::from_secs(240);
/// Attempts to read a ledger until its figures are consistent.
const READINGS: usize = 20;

/// An expected tenant of the process, and its names in the ledger.
struct ExpectedTenant {
    part: &'static str,
    /// The Python package it needs.
    package: Option<&'static str>,
    /// It uses NVIDIA's runtime library, which needs NVIDIA's driver.
    needs_gpu: bool,
    /// Its memory is charged to one of these tenants; empty if it allocates none.
    tenants: &'static [&'static str],
}

const fn framework(name: &'static str, tenants: &'static [&'static str]) -> ExpectedTenant {
    ExpectedTenant {
        part: name,
        package: Some(name),
        needs_gpu: true,
        tenants,
    }
}

/// Tenants in a Python process.
const IN_PYTHON: [ExpectedTenant; 7] = [
    ExpectedTenant {
        part: "ctypes",
        package: None,
        needs_gpu: false,
        tenants: &["python"],
    },
    OURS,
    ExpectedTenant {
        part: "cuda.core",
        package: Some("cuda.core"),
        needs_gpu: false,
        // It may allocate through cuda.bindings.
        tenants: &["cuda.core", "cuda.bindings"],
    },
    framework("torch", &["torch"]),
    framework("jax", &["jax"]),
    framework("cupy", &["cupy"]),
    framework("triton", &[]),
];

/// Tenants in a process of our own.
const IN_OURS: [ExpectedTenant; 2] = [
    ExpectedTenant {
        part: "fercuda",
        package: None,
        needs_gpu: false,
        tenants: &["fercuda"],
    },
    OURS,
];

const OURS: ExpectedTenant = ExpectedTenant {
    part: "our runtime",
    package: None,
    needs_gpu: false,
    tenants: &["fercuda_guest"],
};

/// A message from the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TenantMessage {
    Did(PartMessage),
    Failed(PartMessage),
    /// All memory is live, and the driver was queried.
    Holding,
    Done,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PartMessage {
    pub(super) part: String,
    pub(super) what: String,
}

/// A tenant that did all its work.
#[derive(Debug, Serialize)]
struct TenantRow {
    part: String,
    /// What it checked.
    did: String,
    /// The tenant that its memory is charged to; `None` if it allocates none.
    tenant: Option<String>,
}

/// The result of the demo.
#[derive(Debug, Serialize)]
pub(super) struct SharedPoolDemo {
    /// The device of all figures.
    device: u32,
    /// The tenants in the process.
    parts: Vec<TenantRow>,
    python: Option<String>,
    /// What to install to add tenants.
    hint: Option<String>,
    /// Pythons that did not answer, with the reason.
    silent: Vec<String>,
    /// The ledger while the process held its memory, and at its end.
    holding: LedgerSnapshot,
    ended: LedgerSnapshot,
    /// Bytes that the ledger accounted for, and bytes in use according to the driver.
    accounted_bytes: u64,
    driver_used_bytes: Option<u64>,
    ungoverned_bytes: u64,
    fallbacks: u64,
    /// Failures; empty if all is as expected.
    troubles: Vec<String>,
}

/// Starts the process and reads its ledger.
pub(super) fn run(device: u32, software: bool, seed: u64) -> Result<SharedPoolDemo> {
    let packages: Vec<&str> = IN_PYTHON
        .iter()
        .filter(|known| !(known.needs_gpu && software))
        .filter_map(|known| known.package)
        .collect();
    let (python, silent) = python::find(&packages);
    let has = |known: &&ExpectedTenant| match (&python, known.package) {
        (Some(python), Some(package)) => python.has.iter().any(|has| has == package),
        (_, package) => package.is_none(),
    };
    let all: &[ExpectedTenant] = if python.is_some() {
        &IN_PYTHON
    } else {
        &IN_OURS
    };
    let wanted: Vec<&ExpectedTenant> = all.iter().filter(has).collect();

    let run = run::fresh_run();
    let mut command = command(python.as_ref(), &wanted, device, seed)?;
    let kind = if software {
        DeviceKind::Soft
    } else {
        DeviceKind::Gpu
    };
    run::govern(&mut command, kind, run)?;
    // Opened before its process can end and have its ledger swept.
    let folder = Folder::from_env()?;
    let _hold = folder.hold(run)?;
    let read = || {
        let (mut found, unreadable) = ledgers::gather(&folder, |it| it.run == Some(run))?;
        found.retain(|ledger| ledger.devices.iter().any(|it| it.device == device));
        match (found.len(), unreadable.first()) {
            (1, _) => Ok(found.remove(0)),
            (0, Some(why)) => bail!("cannot read its ledger: {why}"),
            (number, _) => bail!("it left {number} ledgers for the device, not 1"),
        }
    };
    let mut process = TenantProcess::start(&mut command)?;
    let watched = process.watch(&read);
    let (parts, mut troubles, holding) =
        watched.map_err(|error| process.fail_with_stderr(error))?;
    let ended = read()?;
    troubles.extend(judge(&holding, device, &wanted, software));
    troubles.extend(judge_end(&ended, device));
    let row = |PartMessage { part, what }| {
        let known = wanted.iter().find(|known| known.part == part);
        TenantRow {
            tenant: known.and_then(|known| tenant_of(&holding, device, known)),
            part,
            did: what,
        }
    };
    let parts: Vec<TenantRow> = parts.into_iter().map(row).collect();
    let row = holding.devices.iter().find(|it| it.device == device);
    let (holding_only, ended_only) = (of_device(&holding, device), of_device(&ended, device));
    Ok(SharedPoolDemo {
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

/// The part of a ledger about one device: some libraries use all devices.
fn of_device(ledger: &LedgerSnapshot, device: u32) -> LedgerSnapshot {
    let mut ledger = ledger.clone();
    ledger.devices.retain(|it| it.device == device);
    for tenant in &mut ledger.tenants {
        tenant.accounts.retain(|it| it.device == device);
    }
    ledger
}

/// The command for the process with the tenants, not governed yet.
fn command(
    python: Option<&Python>,
    wanted: &[&ExpectedTenant],
    device: u32,
    seed: u64,
) -> Result<Command> {
    let places = LibraryFolders::of_this_program()?;
    // The guest library is needed in every case, so its absence is reported first.
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
    let mut command = Command::new(own_program::path());
    command
        // The ledger names the tenant after this, whatever the file is called.
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

/// What to install to add tenants.
fn hint(wanted: &[&ExpectedTenant], software: bool) -> Option<String> {
    let has = |part: &str| wanted.iter().any(|known| known.part == part);
    if !has("cuda.core") {
        return Some(
            "No Python here has cuda.core, which would be one more: \
             python3 -m pip install cuda-core"
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

/// The tenant to which a library's live memory is charged.
fn tenant_of(holding: &LedgerSnapshot, device: u32, known: &ExpectedTenant) -> Option<String> {
    let mut tenants = holding.tenants.iter();
    let found = tenants.find(|tenant| {
        let mut accounts = tenant.accounts.iter();
        known.tenants.contains(&tenant.name.as_str())
            && accounts.any(|it| it.device == device && it.live_bytes > 0)
    });
    found.map(|tenant| tenant.name.clone())
}

/// Failures while the memory is held.
fn judge(
    holding: &LedgerSnapshot,
    device: u32,
    wanted: &[&ExpectedTenant],
    software: bool,
) -> Vec<String> {
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
    // NVIDIA's driver allocates memory for code by itself; the software device does not.
    let mut kinds = row.governed.iter();
    if let Some(code) = kinds.find(|it| software && it.kind == Governed::Module) {
        let size = bytes(code.bytes);
        troubles.push(format!(
            "{size} are charged as code, which uses none on this device"
        ));
    }
    match row.driver_used_bytes() {
        None => troubles.push("the driver was not queried for used memory".to_owned()),
        Some(used) if used != row.accounted_bytes() => troubles.push(format!(
            "the ledger accounts for {} B, the driver reports {used} B",
            row.accounted_bytes()
        )),
        Some(_) => {}
    }
    if holding.racing {
        troubles.push("the ledger's figures kept changing and are not consistent".to_owned());
    }
    troubles
}

/// Failures after the process has ended.
fn judge_end(ended: &LedgerSnapshot, device: u32) -> Vec<String> {
    let rows = ended.devices.iter().filter(|it| it.device == device);
    let troubles = rows.flat_map(ungoverned);
    troubles.map(|it| format!("at its end, {it}")).collect()
}

fn ungoverned(row: &fercuda_ledger::DeviceSnapshot) -> Vec<String> {
    let mut troubles = Vec::new();
    if row.ungoverned_bytes > 0 {
        let size = bytes(row.ungoverned_bytes);
        troubles.push(format!("ungoverned: {size} are used and not accounted for"));
    }
    if let Some(number) = row.event_counts.get(&EventKind::Fallback) {
        troubles.push(format!(
            "fallback: the driver served {} instead of the pool",
            count(*number as usize, "allocation")
        ));
    }
    troubles
}

/// The running process with the tenants.
struct TenantProcess {
    child: Child,
    answers: Receiver<io::Result<String>>,
    complaints: Option<thread::JoinHandle<String>>,
    deadline: Instant,
}

impl TenantProcess {
    fn start(command: &mut Command) -> Result<TenantProcess> {
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
                    // The receiver is gone, so no message is needed.
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
                // The first part is kept; the rest is read so that the writer does not block. Read
                // errors are ignored: the text is only shown beside a failure.
                err.by_ref().take(1 << 20).read_to_end(&mut text).ok();
                std::io::copy(&mut err, &mut std::io::sink()).ok();
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        Ok(TenantProcess {
            child,
            answers,
            complaints,
            deadline: Instant::now() + TIMEOUT,
        })
    }

    /// Waits until the process holds its memory, has the ledger read, lets the process
    /// continue and waits for its end.
    fn watch(
        &mut self,
        read: &dyn Fn() -> Result<LedgerSnapshot>,
    ) -> Result<(Vec<PartMessage>, Vec<String>, LedgerSnapshot)> {
        let (mut parts, mut troubles) = (Vec::new(), Vec::new());
        let mut holding = None;
        loop {
            match self.answer()? {
                TenantMessage::Did(part) if holding.is_none() => parts.push(part),
                TenantMessage::Did(_) => {}
                TenantMessage::Failed(part) => {
                    troubles.push(format!("{} failed: {}", part.part, part.what));
                }
                TenantMessage::Holding => {
                    holding = Some(read_consistent(read)?);
                    let mut stdin = self
                        .child
                        .stdin
                        .take()
                        .context("its stdin is not available")?;
                    stdin.write_all(b"go on\n")?;
                }
                TenantMessage::Done => break,
            }
        }
        let holding = holding.context("it never reported that it holds its memory")?;
        let status = self.wait()?;
        if !status.success() {
            bail!("it ended with {status}");
        }
        Ok((parts, troubles, holding))
    }

    fn answer(&self) -> Result<TenantMessage> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.answers.recv_timeout(left) {
            Ok(Err(error)) => Err(error).context("its output cannot be read"),
            Ok(Ok(line)) => serde_json::from_str(&line)
                .with_context(|| format!("unexpected message {:?}", clipped(&line, 60))),
            Err(RecvTimeoutError::Timeout) => {
                bail!("it did not finish within {} s", TIMEOUT.as_secs())
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
                bail!("it did not exit within {} s", TIMEOUT.as_secs());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the process, and adds its stderr to the error.
    fn fail_with_stderr(&mut self, error: anyhow::Error) -> anyhow::Error {
        // It may have ended by itself.
        self.child.kill().ok();
        let status = self.child.wait();
        // The thread does not panic.
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

/// Reads the ledger until its figures are consistent.
fn read_consistent(read: &dyn Fn() -> Result<LedgerSnapshot>) -> Result<LedgerSnapshot> {
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

impl SharedPoolDemo {
    pub(super) fn passed(&self) -> bool {
        self.troubles.is_empty()
    }

    pub(super) fn print(&self, paint: Paint) {
        let process = match &self.python {
            Some(version) => format!("a process of Python {version}"),
            None => "a process of our own".to_owned(),
        };
        let number = count(self.parts.len(), "tenant");
        say!(
            "{}",
            paint.strong(&format!("One pool for {number} in {process}"))
        );
        for TenantRow { part, did, tenant } in &self.parts {
            let tenant = tenant.as_deref().unwrap_or("-");
            let line = format!("{part:<12} {:<15} {did}", clipped(tenant, 15));
            say!("{}", clipped(&line, 80));
        }
        if let Some(hint) = &self.hint {
            wrapped(hint, 80).iter().for_each(|line| say!("{line}"));
        }
        for python in &self.silent {
            let text = format!("Skipped {python}");
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

    /// Failures of a process that is correct except for `change`.
    fn troubles(change: impl FnOnce(&Ledger, LedgerDevice)) -> Vec<String> {
        let ledger = Ledger::in_memory();
        let device = LedgerDevice::new(1);
        ledger.charge(device, ledger.tenant("fercuda"), 5 << 20);
        ledger.charge(device, ledger.tenant("fercuda_guest"), 1 << 20);
        ledger.govern(device, ledger.tenant("x"), Governed::Vmm, 2 << 20);
        // Not device memory.
        ledger.govern(device, ledger.tenant("x"), Governed::Host, 7 << 20);
        ledger.set(device, Gauge::Pooled, 8 << 20);
        ledger.reconcile(device, 100 << 20, 90 << 20, 0);
        change(&ledger, device);
        let snapshot = ledger.snapshot().unwrap();
        let wanted: Vec<&ExpectedTenant> = IN_OURS.iter().collect();
        let mut troubles = judge(&snapshot, 1, &wanted, true);
        troubles.extend(judge_end(&snapshot, 1));
        troubles
    }

    #[track_caller]
    fn assert_one(expected: &str, change: impl FnOnce(&Ledger, LedgerDevice)) {
        let troubles = troubles(change);
        assert!(
            troubles.iter().any(|it| it.contains(expected)),
            "{troubles:?}"
        );
    }

    #[test]
    fn a_process_with_all_memory_accounted_for_passes() {
        assert_eq!(troubles(|_, _| {}), [""; 0]);
    }

    #[test]
    fn each_failure_is_named() {
        assert_one("ungoverned: 1.0 MiB are used", |ledger, device| {
            ledger.reconcile(device, 100 << 20, 89 << 20, 1 << 20);
        });
        assert_one(
            "accounts for 10485760 B, the driver reports 10485761 B",
            |ledger, device| {
                ledger.reconcile(device, 100 << 20, (90 << 20) - 1, 0);
            },
        );
        assert_one("accounts for 11534336 B", |ledger, device| {
            ledger.set(device, Gauge::Pooled, 9 << 20);
        });
        assert_one("the driver was not queried", |ledger, device| {
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
    fn a_message_is_parsed_or_reported_as_unreadable() {
        let said = |text: &str| {
            let mut process = TenantProcess::start(Command::new("printf").arg(text)).unwrap();
            let answer = process.answer();
            assert!(process.wait().unwrap().success());
            answer
        };
        assert!(matches!(said("\"done\"\\n"), Ok(TenantMessage::Done)));
        let error = said("\\377\\n").unwrap_err();
        assert_eq!(error.to_string(), "its output cannot be read");
        let error = said("hello\\n").unwrap_err();
        assert_eq!(error.to_string(), "unexpected message \"hello\"");
        let error = said("").unwrap_err();
        assert_eq!(error.to_string(), "it ended too early");
    }

    #[test]
    fn memory_on_other_devices_is_ignored() {
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
    fn a_tenant_without_live_memory_is_a_failure() {
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
