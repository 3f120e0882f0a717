//! Exports for other programs: Prometheus text and JSON.

use std::collections::BTreeSet;

use fercuda_ledger::{
    EventKind, Gauge, Governed, Ledger, LedgerDevice, LedgerEvent, LedgerSnapshot, prometheus,
};

fn snapshot() -> LedgerSnapshot {
    let ledger = Ledger::in_memory();
    let device = LedgerDevice::new(0);
    let torch = ledger.tenant("torch");
    let odd = ledger.tenant("a \"quoted\\ name\"\n");
    let mut local = ledger.local(1);
    local.charge(device, torch, 1, 12 << 30);
    let block = local.charge(device, odd, 1, 1 << 20);
    local.discharge(block, 1 << 20);
    ledger.govern(device, torch, Governed::IpcImport, 4096);
    ledger.set(device, Gauge::Pooled, 16 << 30);
    ledger.add(device, Gauge::Ready, 7);
    ledger.add(device, Gauge::Ready, 5);
    ledger.subtract(device, Gauge::Ready, 2);
    ledger.set_tenant_limit(device, torch, 20 << 30);
    ledger.reconcile(device, 141 << 30, 100 << 30, 0);
    for (kind, detail) in [(EventKind::Epoch, 9), (EventKind::OutOfMemory, 3)] {
        ledger.record(LedgerEvent {
            kind,
            device,
            tenant: torch,
            bytes: 1,
            address: 2,
            detail,
            stream: 4,
            thread: 5,
        });
    }
    // While the thread runs.
    let snapshot = ledger.snapshot().unwrap();
    drop(local);
    snapshot
}

#[test]
fn prometheus_text_has_each_figure_with_its_labels() {
    let snapshot = snapshot();
    let text = prometheus(std::slice::from_ref(&snapshot));
    let process = format!("pid=\"{}\",program=\"{}\"", snapshot.pid, snapshot.program);
    for (name, labels, value) in [
        ("fercuda_up", "", 1u64),
        ("fercuda_racing", "", 0),
        ("fercuda_device_live_bytes", ",device=\"0\"", 12 << 30),
        (
            "fercuda_device_peak_bytes",
            ",device=\"0\"",
            (12 << 30) + (1 << 20),
        ),
        ("fercuda_device_pooled_bytes", ",device=\"0\"", 16 << 30),
        ("fercuda_device_ready_bytes", ",device=\"0\"", 10),
        ("fercuda_device_ungoverned_bytes", ",device=\"0\"", 0),
        (
            "fercuda_device_driver_free_bytes",
            ",device=\"0\"",
            100 << 30,
        ),
        ("fercuda_device_epoch", ",device=\"0\"", 9),
        (
            "fercuda_device_allocated_bytes_total",
            ",device=\"0\"",
            (12 << 30) + (1 << 20),
        ),
        ("fercuda_device_allocations_total", ",device=\"0\"", 2),
        ("fercuda_device_frees_total", ",device=\"0\"", 1),
        (
            "fercuda_device_governed_bytes",
            ",device=\"0\",kind=\"ipc_import\"",
            4096,
        ),
        (
            "fercuda_device_events_total",
            ",device=\"0\",kind=\"out_of_memory\"",
            1,
        ),
        (
            "fercuda_device_events_total",
            ",device=\"0\",kind=\"fallback\"",
            0,
        ),
        (
            "fercuda_tenant_limit_bytes",
            ",tenant=\"torch\",device=\"0\"",
            20 << 30,
        ),
        (
            "fercuda_tenant_peak_bytes",
            ",tenant=\"a \\\"quoted\\\\ name\\\"\u{fffd}\",device=\"0\"",
            1 << 20,
        ),
    ] {
        let line = format!("{name}{{{process}{labels}}} {value}");
        assert!(
            text.lines().any(|found| found == line),
            "{line}\nin\n{text}"
        );
    }
    // The device has no limit: no figure rather than a wrong one.
    assert!(!text.contains("fercuda_device_limit_bytes"));
}

#[test]
fn prometheus_text_is_one_block_a_metric_however_many_processes() {
    let text = prometheus(&[snapshot(), snapshot()]);
    let mut seen = BTreeSet::new();
    let mut current = "";
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let name = rest.split_once(' ').unwrap().0;
            assert!(seen.insert(name), "{name} twice");
            let kind = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            let (of, kind) = kind.split_once(' ').unwrap();
            assert_eq!(of, name);
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            current = name;
            continue;
        }
        let (name, rest) = line.split_once('{').unwrap();
        assert_eq!(name, current);
        let value = rest.rsplit_once("} ").unwrap().1;
        value.parse::<u64>().unwrap();
    }
    assert!(text.ends_with('\n'));
}

#[test]
fn json_holds_what_the_snapshot_does() {
    let snapshot = snapshot();
    let json: serde_json::Value = serde_json::from_str(&snapshot.json().unwrap()).unwrap();
    assert_eq!(json["owner"], "alive");
    assert_eq!(json["racing"], false);
    assert_eq!(json["pid"], std::process::id());
    let device = &json["devices"][0];
    assert_eq!(device["live_bytes"], 12u64 << 30);
    assert_eq!(device["limit_bytes"], serde_json::Value::Null);
    assert_eq!(device["governed"][0]["kind"], "ipc_import");
    assert_eq!(device["governed"][0]["bytes"], 4096);
    assert_eq!(device["event_counts"]["out_of_memory"], 1);
    assert_eq!(json["tenants"][0]["name"], "torch");
    assert_eq!(
        json["tenants"][0]["accounts"][0]["limit_bytes"],
        20u64 << 30
    );
    assert_eq!(json["streams"][0]["stream"], 1);
    assert_eq!(json["threads"][0]["allocs"], 2);
    let event = &json["events"][1];
    assert_eq!(event["kind"], "out_of_memory");
    assert_eq!(event["tenant"], "torch");
    let fields = ["number", "bytes", "address", "detail", "stream", "thread"];
    let values: Vec<u64> = fields
        .iter()
        .map(|name| event[name].as_u64().unwrap())
        .collect();
    assert_eq!(values, [1, 1, 2, 3, 4, 5]);
}
