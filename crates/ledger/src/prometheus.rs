//! Snapshots as Prometheus' text format, version 0.0.4.
//!
//! Invariant: one `HELP` and one `TYPE` a metric, its samples together, every
//! label escaped. Streams, threads and single events are left out: they come
//! and go, and each would be a time series of its own.

use std::fmt::Write as _;

use crate::format::EventKind;
use crate::snapshot::{DeviceSnapshot, Owner, Snapshot, TenantAccount};

/// A metric with one sample for each `S`.
struct Metric<S> {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&S) -> Option<u64>,
}

const PROCESS: &[Metric<Snapshot>] = &[
    Metric {
        name: "fercuda_up",
        kind: "gauge",
        help: "1 while the process lives, 0 when it is gone.",
        value: |process| Some(u64::from(process.owner == Owner::Alive)),
    },
    Metric {
        name: "fercuda_racing",
        kind: "gauge",
        help: "1 if the figures changed while they were read, so that sums may not come out.",
        value: |process| Some(u64::from(process.racing)),
    },
    Metric {
        name: "fercuda_events_total",
        kind: "counter",
        help: "Events of all kinds.",
        value: |process| Some(process.events_written),
    },
    Metric {
        name: "fercuda_events_dropped_total",
        kind: "counter",
        help: "Events that were counted but not kept.",
        value: |process| Some(process.events_dropped),
    },
];

const DEVICE: &[Metric<DeviceSnapshot>] = &[
    Metric {
        name: "fercuda_device_live_bytes",
        kind: "gauge",
        help: "Allocated from the pool and not given back.",
        value: |device| Some(device.live_bytes),
    },
    Metric {
        name: "fercuda_device_peak_bytes",
        kind: "gauge",
        help: "The most that was live.",
        value: |device| Some(device.peak_bytes),
    },
    Metric {
        name: "fercuda_device_pooled_bytes",
        kind: "gauge",
        help: "Physical memory that the pool has taken from the driver.",
        value: |device| Some(device.pooled_bytes),
    },
    Metric {
        name: "fercuda_device_mapped_bytes",
        kind: "gauge",
        help: "That part of the pool's memory which is mapped.",
        value: |device| Some(device.mapped_bytes),
    },
    Metric {
        name: "fercuda_device_ready_bytes",
        kind: "gauge",
        help: "Free in the pool and reusable at once, when the driver was last asked.",
        value: |device| Some(device.ready_bytes),
    },
    Metric {
        name: "fercuda_device_waiting_bytes",
        kind: "gauge",
        help: "Free in the pool and waiting for work, when the driver was last asked.",
        value: |device| Some(device.waiting_bytes),
    },
    Metric {
        name: "fercuda_device_limit_bytes",
        kind: "gauge",
        help: "What the process may use; absent if not limited.",
        value: |device| device.limit_bytes,
    },
    Metric {
        name: "fercuda_device_ungoverned_bytes",
        kind: "gauge",
        help: "Used as the driver says, and accounted for by nothing.",
        value: |device| Some(device.ungoverned_bytes),
    },
    Metric {
        name: "fercuda_device_driver_total_bytes",
        kind: "gauge",
        help: "Memory of the device, as the driver said last.",
        value: |device| Some(device.driver_total_bytes),
    },
    Metric {
        name: "fercuda_device_driver_free_bytes",
        kind: "gauge",
        help: "Free memory of the device, as the driver said last.",
        value: |device| Some(device.driver_free_bytes),
    },
    Metric {
        name: "fercuda_device_epoch",
        kind: "gauge",
        help: "The pool's epoch.",
        value: |device| Some(device.epoch),
    },
    Metric {
        name: "fercuda_device_allocated_bytes_total",
        kind: "counter",
        help: "Allocated from the pool.",
        value: |device| Some(device.allocated_bytes),
    },
    Metric {
        name: "fercuda_device_allocations_total",
        kind: "counter",
        help: "Allocations.",
        value: |device| Some(device.allocs),
    },
    Metric {
        name: "fercuda_device_frees_total",
        kind: "counter",
        help: "Frees.",
        value: |device| Some(device.frees),
    },
];

const TENANT: &[Metric<TenantAccount>] = &[
    Metric {
        name: "fercuda_tenant_live_bytes",
        kind: "gauge",
        help: "Allocated by the tenant and not given back.",
        value: |account| Some(account.live_bytes),
    },
    Metric {
        name: "fercuda_tenant_peak_bytes",
        kind: "gauge",
        help: "The most that was live of the tenant's.",
        value: |account| Some(account.peak_bytes),
    },
    Metric {
        name: "fercuda_tenant_governed_bytes",
        kind: "gauge",
        help: "The driver's allocations that are charged to the tenant.",
        value: |account| Some(account.governed_bytes),
    },
    Metric {
        name: "fercuda_tenant_limit_bytes",
        kind: "gauge",
        help: "What the tenant may use; absent if not limited.",
        value: |account| account.limit_bytes,
    },
    Metric {
        name: "fercuda_tenant_blocks",
        kind: "gauge",
        help: "Live allocations of the tenant.",
        value: |account| Some(account.blocks),
    },
    Metric {
        name: "fercuda_tenant_allocated_bytes_total",
        kind: "counter",
        help: "Allocated by the tenant.",
        value: |account| Some(account.allocated_bytes),
    },
    Metric {
        name: "fercuda_tenant_allocations_total",
        kind: "counter",
        help: "Allocations by the tenant.",
        value: |account| Some(account.allocs),
    },
    Metric {
        name: "fercuda_tenant_frees_total",
        kind: "counter",
        help: "Frees of the tenant's allocations.",
        value: |account| Some(account.frees),
    },
];

/// These processes' figures as Prometheus reads them.
pub fn prometheus(processes: &[Snapshot]) -> String {
    let mut text = String::new();
    let devices = || {
        processes.iter().flat_map(|process| {
            process.devices.iter().map(move |device| {
                let labels = format!("{},device=\"{}\"", labels(process), device.device);
                (labels, device)
            })
        })
    };
    let accounts = || {
        processes.iter().flat_map(|process| {
            process.tenants.iter().flat_map(move |tenant| {
                tenant.accounts.iter().map(move |account| {
                    let labels = format!(
                        "{},tenant=\"{}\",device=\"{}\"",
                        labels(process),
                        Escaped(&tenant.name),
                        account.device
                    );
                    (labels, account)
                })
            })
        })
    };
    for metric in PROCESS {
        let samples = processes.iter().map(|process| (labels(process), process));
        metric.write(&mut text, samples);
    }
    for metric in DEVICE {
        metric.write(&mut text, devices());
    }
    let governed = devices().flat_map(|(labels, device)| {
        let parts = device.governed.iter();
        parts.map(move |part| (with(&labels, "kind", part.kind.name()), Some(part.bytes)))
    });
    family(
        &mut text,
        "fercuda_device_governed_bytes",
        "gauge",
        "The driver's own allocations that are charged, by what asked for them.",
        governed,
    );
    // Kinds that have not happened are 0, so that a rate has a beginning.
    let events = devices().flat_map(|(labels, device)| {
        EventKind::ALL.into_iter().map(move |kind| {
            let count = device.event_counts.get(&kind).copied();
            (with(&labels, "kind", kind.name()), Some(count.unwrap_or(0)))
        })
    });
    family(
        &mut text,
        "fercuda_device_events_total",
        "counter",
        "Events of the device, by kind.",
        events,
    );
    for metric in TENANT {
        metric.write(&mut text, accounts());
    }
    text
}

impl<S> Metric<S> {
    fn write<'a>(&self, text: &mut String, samples: impl Iterator<Item = (String, &'a S)>)
    where
        S: 'a,
    {
        let values = samples.map(|(labels, sample)| (labels, (self.value)(sample)));
        family(text, self.name, self.kind, self.help, values);
    }
}

fn family(
    text: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    samples: impl Iterator<Item = (String, Option<u64>)>,
) {
    let mut samples = samples
        .filter_map(|(labels, value)| Some((labels, value?)))
        .peekable();
    if samples.peek().is_none() {
        return;
    }
    // Writing into a string does not fail.
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
    for (labels, value) in samples {
        writeln!(text, "{name}{{{labels}}} {value}").ok();
    }
}

fn labels(process: &Snapshot) -> String {
    format!(
        "pid=\"{}\",program=\"{}\"",
        process.pid,
        Escaped(&process.program)
    )
}

fn with(labels: &str, name: &str, value: &str) -> String {
    format!("{labels},{name}=\"{}\"", Escaped(value))
}

/// A label's value.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_label_is_escaped() {
        let escaped = Escaped("a\"b\\c\nd").to_string();
        assert_eq!(escaped, r#"a\"b\\c\nd"#);
    }

    #[test]
    fn names_are_unique_and_say_their_unit() {
        let mut names: Vec<(&str, &str)> = Vec::new();
        names.extend(PROCESS.iter().map(|metric| (metric.name, metric.kind)));
        names.extend(DEVICE.iter().map(|metric| (metric.name, metric.kind)));
        names.extend(TENANT.iter().map(|metric| (metric.name, metric.kind)));
        for (name, kind) in &names {
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
