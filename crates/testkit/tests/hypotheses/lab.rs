//! The device that the hypotheses are tested on, held alone.

use std::sync::{Mutex, MutexGuard, PoisonError};

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Image, Launch, Module, Select, Stream};
use fercuda_testkit::kernels::{self, KernelDesc};

/// Half an ulp of one.
pub(crate) const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// The device, held alone: several of these tests measure time or memory.
pub(crate) struct Lab {
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    pub(crate) seed: u64,
    pub(crate) rng: fastrand::Rng,
    _alone: MutexGuard<'static, ()>,
}

pub(crate) fn lab(name: &str) -> Lab {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let select = if std::env::var_os(fercuda_cuda::DEVICE_VARIABLE).is_some() {
        Select::from_env().unwrap()
    } else {
        Select::Software
    };
    if select == Select::Software {
        // Enough for every test here, and little enough to fill to the brim; without effect after
        // the first.
        let mut config = fercuda_softgpu::control::config();
        config.memory_bytes = 2 << 30;
        // The checks keep freed memory from being reused, to detect uses after free: a pool cannot
        // be assessed then.
        config.checks = false;
        let _first = fercuda_softgpu::control::configure(config);
    }
    // Times and sizes are those of the device as programs use it, without checks.
    let mut config = fercuda_softgpu::control::config();
    config.checks = false;
    config.late_copies = false;
    let _only_the_first_call_counts = fercuda_softgpu::control::configure(config);
    let context = Context::primary(Cuda::select(select).unwrap().device(0).unwrap()).unwrap();
    let stream = Stream::new(&context).unwrap();
    let seed = fercuda_trials::seed();
    println!(
        "{name}: {}, FERCUDA_SEED={seed}",
        context.device().name().unwrap()
    );
    Lab {
        context,
        stream,
        seed,
        rng: fastrand::Rng::with_seed(seed),
        _alone: alone,
    }
}

impl Lab {
    pub(crate) fn is_software(&self) -> bool {
        self.context.device().cuda().is_software()
    }

    /// The software device hands a freed block on to a request of another size when the stream has
    /// come to the free, so the host must not run far ahead of it there. A GPU's driver does so at
    /// once.
    pub(crate) fn let_frees_happen(&self) {
        if self.is_software() {
            self.stream.synchronize().unwrap();
        }
    }

    pub(crate) fn uniform(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| (self.rng.f64() * 2.0 - 1.0) as f32)
            .collect()
    }

    pub(crate) fn load<S>(&self, kernel: &KernelDesc<S>) -> fercuda_cuda::Function {
        let ptx = fercuda_ptx::print(&kernel.module);
        Module::load(&self.context, &Image::ptx(ptx))
            .unwrap()
            .function(&kernel.entry)
            .unwrap()
    }

    pub(crate) fn upload(&self, values: &[f32]) -> DeviceBuffer<f32> {
        DeviceBuffer::from_host(values, &self.stream).unwrap()
    }
}

pub(crate) fn shape(launch: kernels::LaunchGeometry) -> Launch {
    Launch::new(
        <(u32, u32, u32)>::from(launch.grid),
        <(u32, u32, u32)>::from(launch.block),
    )
    .shared_bytes(launch.dynamic_shared_bytes)
}

/// The largest of |got - want| in units of what is allowed.
pub(crate) fn worst(got: &[f32], want: &[(f64, f64)]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter()
        .zip(want)
        .map(|(g, (w, allowed))| {
            if g.is_nan() {
                f64::INFINITY
            } else {
                (f64::from(*g) - w).abs() / allowed
            }
        })
        .fold(0.0, f64::max)
}
