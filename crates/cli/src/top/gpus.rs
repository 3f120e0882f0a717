//! Use, temperature and power of the machine's GPUs, as NVIDIA's management library reports them.
//!
//! Without that library there are none. They are named by their places on the PCI bus: a process
//! numbers devices in an order of its own (`CUDA_VISIBLE_DEVICES`), which no ledger has.

use std::path::PathBuf;

use fercuda_cuda_sys::names_of_library;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;

use crate::terminal::clipped;

/// The library's name, as its own driver package installs it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The open library.
pub(super) struct Gpus(Option<Nvml>);

/// One GPU. A figure that it does not report is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuLoad {
    /// Its place on the PCI bus, as `nvidia-smi` prints it without the domain: `3b:00.0`.
    pub(super) place: String,
    pub(super) name: String,
    /// Part of the last sample period, up to a second, in which a kernel ran, in percent.
    pub(super) busy_percent: Option<u32>,
    /// Temperature in degrees Celsius.
    pub(super) celsius: Option<u32>,
    /// Power in watts.
    pub(super) watts: Option<u32>,
}

impl Gpus {
    /// Opens the library, if there is one that works.
    pub(super) fn open() -> Self {
        let open = |name: &PathBuf| Nvml::builder().lib_path(name.as_os_str()).init().ok();
        Self(names_of_library(LIBRARY).iter().find_map(open))
    }

    /// All GPUs that answer, in the library's order.
    pub(super) fn read(&self) -> Vec<GpuLoad> {
        let Some(nvml) = &self.0 else {
            return Vec::new();
        };
        let all = 0..nvml.device_count().unwrap_or(0);
        all.filter_map(|index| load(nvml, index)).collect()
    }
}

fn load(nvml: &Nvml, index: u32) -> Option<GpuLoad> {
    let device = nvml.device_by_index(index).ok()?;
    let place = device.pci_info().ok()?.bus_id.to_lowercase();
    Some(GpuLoad {
        place: place
            .split_once(':')
            .map_or(&*place, |(_, it)| it)
            .to_owned(),
        name: device.name().unwrap_or_default(),
        busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        watts: device
            .power_usage()
            .ok()
            .map(|milliwatts| milliwatts.div_ceil(1000)),
    })
}

impl GpuLoad {
    /// The figures that are known: use, temperature, power.
    fn figures(&self) -> [Option<String>; 3] {
        [
            self.busy_percent.map(|it| format!("{it}%")),
            self.celsius.map(|it| format!("{it} C")),
            self.watts.map(|it| format!("{it} W")),
        ]
    }

    /// `3b:00.0 87% 61 C 312 W`.
    pub(super) fn short(&self) -> String {
        let figures = self.figures().into_iter().flatten();
        std::iter::once(self.place.clone())
            .chain(figures)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// A table of GPUs, of at most 80 columns.
pub(super) fn table(gpus: &[GpuLoad]) -> Vec<String> {
    let head = format!(
        "{:<16} {:<40} {:>5} {:>6} {:>7}",
        "GPU", "NAME", "USE", "TEMP", "POWER"
    );
    let row = |gpu: &GpuLoad| {
        let [busy, celsius, watts] = gpu.figures().map(|it| it.unwrap_or_else(|| "-".to_owned()));
        let (place, name) = (clipped(&gpu.place, 16), clipped(&gpu.name, 40));
        format!("{place:<16} {name:<40} {busy:>5} {celsius:>6} {watts:>7}")
    };
    std::iter::once(head).chain(gpus.iter().map(row)).collect()
}
