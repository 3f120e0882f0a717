//! Data of the `doctor` report, printed as a table or as JSON.

use std::env;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

use fercuda_cuda::{Cuda, Device, Error, Select};
use fercuda_nvrtc::Nvrtc;
use fercuda_nvrtc::find::program_of_path;
use serde::Serialize;

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct DoctorReport {
    pub version: &'static str,
    pub target: &'static str,
    pub processors: usize,
    pub items: Vec<DoctorItem>,
    pub devices: Vec<DeviceItem>,
    /// The device that commands would use, with the current FERCUDA_DEVICE.
    pub chosen: String,
}

/// One component that was searched for.
#[derive(Debug, Serialize)]
pub(crate) struct DoctorItem {
    pub name: &'static str,
    pub found: bool,
    pub version: Option<String>,
    pub place: Option<String>,
    /// Why it was not found, or what is wrong with it.
    pub why: Option<String>,
    /// How to install it.
    pub hint: Option<String>,
}

/// One device of either driver.
#[derive(Debug, Serialize)]
pub(crate) struct DeviceItem {
    pub ordinal: u32,
    pub name: String,
    pub software: bool,
    pub compute_capability: (u32, u32),
    pub memory_bytes: u64,
    pub multiprocessors: u32,
}

impl DoctorItem {
    pub(crate) fn new(name: &'static str) -> DoctorItem {
        DoctorItem {
            name,
            found: false,
            version: None,
            place: None,
            why: None,
            hint: None,
        }
    }

    pub(crate) fn found(mut self, version: Option<String>, place: String) -> DoctorItem {
        self.found = true;
        self.version = version;
        self.place = Some(place);
        self
    }

    pub(crate) fn missing(mut self, why: impl ToString, hint: impl ToString) -> DoctorItem {
        self.why = Some(why.to_string());
        self.hint = Some(hint.to_string());
        self
    }

    /// Splits the `try: ` line of an error from the rest of its text.
    fn failed(self, error: &dyn std::fmt::Display) -> DoctorItem {
        let text = error.to_string();
        let hint = text.lines().find_map(|line| line.strip_prefix("try: "));
        let why: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("try: "))
            .map(str::trim)
            .collect();
        let hint = hint.unwrap_or_default().to_owned();
        self.missing(why.join("\n"), hint)
    }
}

impl DoctorReport {
    /// Drivers and their devices.
    pub(crate) fn of_devices() -> DoctorReport {
        let mut items = Vec::new();
        let mut devices = Vec::new();
        for (name, select) in [("driver", Select::Hardware), ("software", Select::Software)] {
            let item = DoctorItem::new(name);
            items.push(match Cuda::select(select) {
                Ok(cuda) => {
                    let version = cuda.version().ok();
                    let version = version.map(|(major, minor)| format!("{major}.{minor}"));
                    let place = cuda.driver().origin().to_string();
                    let mut item = item.found(version, place);
                    match cuda.devices() {
                        Ok(found) => {
                            for found in &found {
                                match device(found) {
                                    Ok(found) => devices.push(found),
                                    Err(error) => item.why = Some(error.to_string()),
                                }
                            }
                        }
                        Err(error) => item.why = Some(error.to_string()),
                    }
                    item
                }
                Err(error) => item.failed(&error),
            });
        }
        let chosen = match Cuda::from_env().and_then(|cuda| cuda.device(0)) {
            Ok(device) => device.to_string(),
            Err(error) => {
                let text = error.to_string();
                format!("no device: {}", text.lines().next().unwrap_or_default())
            }
        };
        DoctorReport {
            version: env!("CARGO_PKG_VERSION"),
            target: env!("BUILD_TARGET"),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            items,
            devices,
            chosen,
        }
    }
}

/// The properties of a device, if it responds.
fn device(device: &Device) -> Result<DeviceItem, Error> {
    Ok(DeviceItem {
        ordinal: device.ordinal(),
        name: device.name()?,
        software: device.cuda().is_software(),
        compute_capability: device.compute_capability()?,
        memory_bytes: device.memory_bytes()?,
        multiprocessors: device.multiprocessors()?,
    })
}

/// NVRTC, loaded the way `check` loads it.
pub(crate) fn nvrtc() -> DoctorItem {
    let item = DoctorItem::new("NVRTC");
    match Nvrtc::find() {
        Ok(nvrtc) => {
            let (major, minor) = nvrtc.version();
            item.found(
                Some(format!("{major}.{minor}")),
                nvrtc.file().display().to_string(),
            )
        }
        Err(error) => item.failed(&error),
    }
}

/// FUSE: the kernel's device, and the helper that mounts without root privileges.
pub(crate) fn fuse() -> DoctorItem {
    let item = DoctorItem::new("FUSE");
    let device = Path::new("/dev/fuse");
    if let Err(error) = OpenOptions::new().read(true).write(true).open(device) {
        return item.missing(
            format!("/dev/fuse: {error}"),
            "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        );
    }
    let helper = ["fusermount3", "fusermount"].iter().find_map(|name| {
        let helper = program_of_path(name)?;
        let output = Command::new(helper).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.split_whitespace().last()?.to_owned())
    });
    let place = if helper.is_some() {
        "/dev/fuse"
    } else {
        "/dev/fuse, no fusermount3: only root can mount"
    };
    item.found(helper, place.to_owned())
}
