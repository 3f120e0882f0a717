//! Snapshots in Prometheus' text format, version 0.0.4.
//!
//! Invariant: one `HELP` and one `TYPE` per metric, its samples together, every label escaped.
//! Streams, threads and single events are left out: they are short-lived, and each would be a time
//! series of its own.

use std::fmt::Write as _;

use crate::format::EventKind;
use crate::snapshot::{DeviceSnapshot, LedgerSnapshot, OwnerState, TenantAccount};

/// A metric with one sample per `S`.
struct Metric<S> {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&S) -> Option<u64>,
}

const PROCESS: &[Metric<LedgerSnapshot>] = &[
    Metric {
        name: "fercuda_up",
        kind: "gauge",
        help: "1 while the process lives, 0 when it is gone.",
        value: |process| Some(u64::from(process.owner == OwnerState::Alive)),
    },
    Metric {
        name: "fercuda_racing",
        kind: "gauge",
        help: "1 if the figures changed while they were read, so sums may be inconsistent.",
        value: |process| Some(u64::from(process.racing)),
    },
    Metric {
        name: "fercuda_events_total",
        kind: "counter",
        help: "RingEvents of all kinds.",
        value: |process| Some(process.events_written),
    },
    Metric {
        name: "fercuda_events_dropped_total",
        kind: "counter",
        help: "RingEvents that were counted but dropped from the ring.",
        value: |process| Some(process.events_dropped),
    },
];

const DEVICE: &[Metric<DeviceSnapshot>] = &[
    Metric {
        name: "fercuda_device_live_bytes",
        kind: "gauge",
        help: "Allocated from the pool and not freed.",
        value: |device| Some(device.live_bytes),
    },
    Metric {
        name: "fercuda_device_peak_bytes",
        kind: "gauge",
        help: "Peak of live bytes.",
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
        help: "The mapped part of the pool's memory.",
        value: |device| Some(device.mapped_bytes),
    },
    Metric {
        name: "fercuda_device_ready_bytes",
        kind: "gauge",
        help: "Free in the pool and reusable at once, when the driver was last queried.",
        value: |device| Some(device.ready_bytes),
    },
    Metric {
        name: "fercuda_device_waiting_bytes",
        kind: "gauge",
        help: "Free in the pool, but pending work may still access it, when the driver was last queried.",
        value: |device| Some(device.waiting_bytes),
    },
    Metric {
        name: "fercuda_device_limit_bytes",
        kind: "gauge",
        help: "The process's limit; absent if unlimited.",
        value: |device| device.limit_bytes,
    },
    Metric {
        name: "fercuda_device_ungoverned_bytes",
        kind: "gauge",
        help: "Used according to the driver, but accounted for by nothing here.",
        value: |device| Some(device.ungoverned_bytes),
    },
    Metric {
        name: "fercuda_device_driver_total_bytes",
        kind: "gauge",
        help: "Total memory of the device, as last reported by the driver.",
        value: |device| Some(device.driver_total_bytes),
    },
    Metric {
        name: "fercuda_device_driver_free_bytes",
        kind: "gauge",
        help: "Free memory of the device, as last reported by the driver.",
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
        help: "Allocated by the tenant and not freed.",
        value: |account| Some(account.live_bytes),
    },
    Metric {
        name: "fercuda_tenant_peak_bytes",
        kind: "gauge",
        help: "Peak of the tenant's live bytes.",
        value: |account| Some(account.peak_bytes),
    },
    Metric {
        name: "fercuda_tenant_governed_bytes",
        kind: "gauge",
        help: "The driver's own allocations charged to the tenant.",
        value: |account| Some(account.governed_bytes),
    },
    Metric {
        name: "fercuda_tenant_limit_bytes",
        kind: "gauge",
        help: "The tenant's limit; absent if unlimited.",
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

/// The figures of `processes` in Prometheus' text format.
pub fn prometheus(processes: &[LedgerSnapshot]) -> String {
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
        "The driver's own allocations that are charged, by origin.",
        governed,
    );
    // Kinds without events are exported as 0, so that a rate has a beginning.
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
        "RingEvents of the device, by kind.",
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

fn labels(process: &LedgerSnapshot) -> String {
    format!(
        "pid=\"{}\",program=\"{}\"",
        process.pid,
        Escaped(&process.program)
    )
}

fn with(labels: &str, name: &str, value: &str) -> String {
    format!("{labels},{name}=\"{}\"", Escaped(value))
}

/// A label's value, escaped.
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
    fn characters_that_would_end_a_label_are_escaped() {
        let escaped = Escaped("a\"b\\c\nd").to_string();
        assert_eq!(escaped, r#"a\"b\\c\nd"#);
    }

    #[test]
    fn names_are_unique_and_carry_their_unit() {
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
