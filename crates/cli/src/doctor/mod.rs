//! `fercuda doctor`: shows what this machine has, and how to get what is missing.
//!
//! Invariant: something missing is a result, not a failure: the exit status is always 0.
//! Nothing is changed on the machine.
//! Elsewhere: searching for files (`find`).

mod find;
mod report;

use std::process::ExitCode;

use anyhow::Result;

use crate::out::{self, say};
use crate::terminal::{self, Paint};
use find::LibrarySearchPath;
use report::{DoctorItem, DoctorReport};

/// Shows what this machine has: driver, GPUs, compilers and libraries.
#[derive(clap::Args)]
#[command(after_help = "\
Exit status: always 0, whatever is missing.

Examples:
  fercuda doctor
  fercuda doctor --json | python3 -m json.tool")]
pub(crate) struct Args {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// A library that is searched for, never loaded.
struct OptionalLibrary {
    name: &'static str,
    stem: &'static str,
    wheel: &'static str,
}

const LIBRARIES: [OptionalLibrary; 4] = [
    OptionalLibrary {
        name: "cuBLAS",
        stem: "libcublas.so",
        wheel: "nvidia-cublas",
    },
    OptionalLibrary {
        name: "cuBLASLt",
        stem: "libcublasLt.so",
        wheel: "nvidia-cublas",
    },
    OptionalLibrary {
        name: "cuDNN",
        stem: "libcudnn.so",
        wheel: "nvidia-cudnn-cu13",
    },
    OptionalLibrary {
        name: "NCCL",
        stem: "libnccl.so",
        wheel: "nvidia-nccl-cu13",
    },
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let places = LibrarySearchPath::of_this_process();
    let mut report = DoctorReport::of_devices();
    report.items.push(report::nvrtc());
    for library in &LIBRARIES {
        let item = DoctorItem::new(library.name);
        report.items.push(match places.find(library.stem) {
            Some(found) => item.found(found.version, found.path.display().to_string()),
            None => item.missing(
                "not in LD_LIBRARY_PATH, the wheels, the toolkit or the loader's cache",
                format!("python3 -m pip install {}", library.wheel),
            ),
        });
    }
    report.items.push(report::fuse());
    if args.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report, Paint::stdout());
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &DoctorReport, paint: Paint) {
    say!(
        "{}",
        paint.strong(&format!(
            "fercuda {} on {}, {} processors",
            report.version, report.target, report.processors
        ))
    );
    for item in &report.items {
        let mark = if item.found {
            paint.good("yes")
        } else {
            paint.faint(" no")
        };
        let version = item.version.as_deref().unwrap_or_default();
        let place = match &item.place {
            Some(place) => terminal::path(place),
            None => "not found".to_owned(),
        };
        // A long path gets its own line.
        let between = if place.chars().count() > 52 {
            "\n    "
        } else {
            " "
        };
        say!("{mark} {:<10} {version:<12}{between}{place}", item.name);
        if let Some(why) = &item.why {
            let mut lines = why.lines();
            let first = lines.next().unwrap_or_default();
            let places: Vec<&str> = lines.collect();
            let more = match places.len() {
                0 => String::new(),
                _ if out::is_verbose(1) => ":".to_owned(),
                more => format!(" ({}; -v lists them)", terminal::count(more, "place")),
            };
            for line in terminal::wrapped(&format!("{first}{more}"), 76) {
                say!("    {}", paint.faint(&line));
            }
            for place in places.iter().filter(|_| out::is_verbose(1)) {
                say!("      {}", paint.faint(place.trim()));
            }
        }
        if let Some(hint) = &item.hint {
            for line in terminal::wrapped(&format!("install: {hint}"), 76) {
                say!("    {line}");
            }
        }
    }
    for device in &report.devices {
        say!(
            "device {}: {}\n    compute capability {}.{}, {}, {} multiprocessors",
            device.ordinal,
            device.name,
            device.compute_capability.0,
            device.compute_capability.1,
            terminal::bytes(device.memory_bytes),
            device.multiprocessors
        );
    }
    say!("fercuda would use: {}", paint.strong(&report.chosen));
}
