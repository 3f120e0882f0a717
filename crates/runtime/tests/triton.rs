//! Triton kernels, as in Triton's cache, on whichever device there is.
//!
//! The metadata have the form of Triton 3.6; the kernel is this test's own PTX with the parameters
//! that Triton generates, so that it runs without Triton.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and vouches for its kernels"
)]

use std::fs;
use std::path::PathBuf;

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Image, KernelArg, Stream};
use fercuda_ptx::build::{Arch, ModuleBuilder};
use fercuda_runtime::{
    Dtype, Error, LaunchArgument, Layout, Regime, Runtime, RuntimeConfig, SessionConfig,
    TritonError, TritonKernel, TritonMetadata,
};
use serde_json::{Value as Json, json};

/// `y[i] = x[i] * factor` by blocks of 64, through dynamic shared memory and, if there is any,
/// scratch memory.
fn ptx(with_scratch: bool) -> String {
    let mut module = ModuleBuilder::new(Arch::SM_80);
    module.kernel("scale_kernel", |k| {
        let x = k.param_ptr::<f32>("x");
        let y = k.param_ptr::<f32>("y");
        let factor = k.param::<f32>("factor");
        let n = k.param::<u32>("n");
        let scratch = k.param_ptr::<f32>("scratch");
        k.param::<u64>("profile");
        let shared = k.dynamic_shared::<f32>("shared");
        let i = k.global_id();
        let in_range = i.lt(n).named("in_range");
        k.if_(in_range, || {
            let own = shared.index(k.tid_x());
            own.store(x.index(i).load() * factor);
            if with_scratch {
                scratch.index(i).store(own.load());
                y.index(i).store(scratch.index(i).load());
            } else {
                y.index(i).store(own.load());
            }
        });
    });
    fercuda_ptx::print(&module.finish().unwrap())
}

fn metadata() -> Json {
    json!({
        "hash": "0123", "target": {"backend": "cuda", "arch": 80, "warp_size": 32},
        "num_warps": 2, "num_ctas": 1, "num_stages": 3, "cluster_dims": [1, 1, 1],
        "maxnreg": null, "launch_cooperative_grid": false, "launch_pdl": false,
        "triton_version": "3.6.0", "tensordesc_meta": [], "shared": 256, "tmem_size": 0,
        "global_scratch_size": 0, "global_scratch_align": 1,
        "profile_scratch_size": 0, "profile_scratch_align": 1, "name": "scale_kernel"
    })
}

fn with(field: &str, value: Json) -> Json {
    let mut json = metadata();
    json[field] = value;
    json
}

struct Bench {
    context: Context,
    stream: Stream,
}

impl Bench {
    fn new() -> Self {
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        Self {
            stream: Stream::new(&context).unwrap(),
            context,
        }
    }

    fn load(&self, metadata: &Json, text: &str) -> Result<TritonKernel, TritonError> {
        let metadata = TritonMetadata::parse(&metadata.to_string())?;
        TritonKernel::load(&self.context, metadata, &Image::ptx(text))
    }

    fn scaled(&self, kernel: &TritonKernel, count: u32) {
        let values: Vec<f32> = (0..count).map(|n| n as f32 - 7.5).collect();
        let x = DeviceBuffer::from_host(&values, &self.stream).unwrap();
        let y = DeviceBuffer::<f32>::zeroed(&self.stream, values.len()).unwrap();
        let arguments = [
            KernelArg::buffer(&x),
            KernelArg::buffer(&y),
            KernelArg::number(2.5f32),
            KernelArg::number(count),
        ];
        // SAFETY: the kernel reads `x` and writes `y` below `count`, which both have.
        let done = unsafe { kernel.launch(&self.stream, [count.div_ceil(64), 1, 1], &arguments) };
        done.unwrap();
        let got = y.to_vec(&self.stream).unwrap();
        assert!(
            got.iter().zip(&values).all(|(y, x)| *y == x * 2.5),
            "{got:?}"
        );
        if self.context.device().cuda().is_software() {
            let findings = fercuda_softgpu::control::take_findings();
            assert!(findings.is_empty(), "{}", findings[0]);
        }
    }
}

#[test]
fn kernel_is_launched_by_its_metadata() {
    let bench = Bench::new();
    let kernel = bench.load(&metadata(), &ptx(false)).unwrap();
    assert_eq!(kernel.argument_bytes(), Some(&[8, 8, 4, 4][..]));
    for count in [1, 64, 1000] {
        bench.scaled(&kernel, count);
    }
    // An empty grid launches nothing.
    let none = [KernelArg::number(0u64); 4];
    // SAFETY: nothing is launched.
    unsafe { kernel.launch(&bench.stream, [0, 1, 1], &none) }.unwrap();
}

#[test]
fn scratch_memory_is_allocated_for_each_block() {
    let bench = Bench::new();
    let kernel = bench.load(&with("global_scratch_size", json!(256)), &ptx(true));
    bench.scaled(&kernel.unwrap(), 1000);
}

#[test]
fn folder_of_the_cache_is_read() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let path = |kind: &str| -> PathBuf { folder.path().join(format!("scale_kernel.{kind}")) };
    fs::write(path("json"), metadata().to_string()).unwrap();
    // SAFETY: nothing is loaded.
    let missing = unsafe { TritonKernel::open(&bench.context, &path("json")) };
    let said = missing.unwrap_err().to_string();
    assert!(
        said.contains("scale_kernel.") && said.contains(".triton/cache"),
        "{said}"
    );
    // A driver accepts PTX too, whatever the file's extension.
    for kind in ["ptx", "cubin"] {
        fs::write(path(kind), ptx(false)).unwrap();
    }
    // SAFETY: the builder's PTX.
    let kernel = unsafe { TritonKernel::open(&bench.context, &path("json")) }.unwrap();
    bench.scaled(&kernel, 100);
}

#[test]
fn session_launch_is_ordered_and_charged_for_scratch_memory() {
    const COUNT: u64 = 1000;
    // Blocks of 512 bytes: two buffers, and scratch memory for sixteen blocks of it.
    const BUFFERS: u64 = 2 * 4096;
    const SCRATCH: u64 = 16 * 256;
    let config = RuntimeConfig {
        select: None,
        device: 0,
    };
    let runtime = Runtime::open(config).unwrap();
    let session = |name: &str, limit_bytes: u64| {
        let config = SessionConfig {
            limit_bytes: Some(limit_bytes),
        };
        let session = runtime.session(name, config).unwrap();
        let layout = Layout::contiguous(Dtype::F32, &[COUNT]).unwrap();
        let alloc = || session.alloc(layout, Regime::Pool).unwrap();
        let (x, y) = (alloc(), alloc());
        let metadata = with("global_scratch_size", json!(256)).to_string();
        let metadata = TritonMetadata::parse(&metadata).unwrap();
        let image = Image::ptx(ptx(true));
        let kernel = TritonKernel::load_in(&session, metadata, &image).unwrap();
        let arguments = [x.into(), y.into(), 2.5f32.into(), (COUNT as u32).into()];
        (session, kernel, x, y, arguments)
    };
    let grid = [(COUNT as u32).div_ceil(64), 1, 1];

    let (enough, kernel, x, y, arguments) = session("enough", BUFFERS + SCRATCH);
    let values: Vec<f32> = (0..COUNT).map(|n| n as f32 - 7.5).collect();
    enough.upload(x, &values).unwrap();
    let expected: Vec<f32> = values.iter().map(|x| x * 2.5).collect();
    // SAFETY: the kernel reads `x` and writes `y` below `COUNT`, which both have.
    unsafe { kernel.launch_in(&enough, grid, &arguments) }.unwrap();
    assert_eq!(enough.download::<f32>(y).unwrap(), expected);
    assert_eq!(enough.held_bytes(), BUFFERS);
    assert_eq!(enough.peak_bytes(), BUFFERS + SCRATCH);
    enough.fill_bytes(y, 0).unwrap();
    // SAFETY: as above.
    let job = unsafe { kernel.launch_in_async(&enough, grid, &arguments) }.unwrap();
    enough.free(x).unwrap();
    job.wait().unwrap();
    assert_eq!(enough.download::<f32>(y).unwrap(), expected);
    assert_eq!(enough.buffers().unwrap().len(), 1);

    let (small, kernel, x, y, arguments) = session("small", BUFFERS + SCRATCH - 1);
    small.fill_bytes(x, 0).unwrap();
    small.fill_bytes(y, 1).unwrap();
    let refused = |grid: [u32; 3], arguments: &[LaunchArgument]| {
        // SAFETY: they are refused before anything is launched.
        let two = unsafe {
            [
                kernel.launch_in(&small, grid, arguments).unwrap_err(),
                kernel
                    .launch_in_async(&small, grid, arguments)
                    .map(drop)
                    .unwrap_err(),
            ]
        };
        assert_eq!(two[0].to_string(), two[1].to_string());
        two.into_iter().next().unwrap()
    };
    match refused(grid, &arguments) {
        TritonError::Session(Error::Limit(it)) => assert_eq!(it.asked_bytes, SCRATCH),
        other => panic!("{other}"),
    }
    match refused(grid, &arguments[1..]) {
        TritonError::Arguments { wanted, given, .. } => assert_eq!((wanted, given), (4, 3)),
        other => panic!("{other}"),
    }
    // 2^96 blocks of 256 bytes.
    match refused([u32::MAX; 3], &arguments) {
        TritonError::Grid { grid, .. } => assert_eq!(grid, [u32::MAX; 3]),
        other => panic!("{other}"),
    }
    // SAFETY: nothing is launched.
    unsafe { kernel.launch_in(&small, [1, 0, 1], &arguments) }.unwrap();
    assert_eq!(small.download_bytes(y).unwrap(), vec![1; 4000]);
    assert_eq!(small.buffers().unwrap().len(), 2);
}

#[test]
fn mismatches_are_refused_with_numbers() {
    let bench = Bench::new();
    let refused = |metadata: Json, wanted: &str| {
        let error = bench.load(&metadata, &ptx(false)).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error:?} should say {wanted:?}");
    };
    let target = |backend: &str, arch: Json| json!({"backend": backend, "arch": arch});
    refused(
        with("target", target("cuda", json!(999))),
        "compiled for sm_999",
    );
    refused(
        with("target", target("hip", json!("gfx942"))),
        "not NVIDIA's",
    );
    refused(
        with("target", target("cuda", json!("sm_90"))),
        "\"arch\" is \"sm_90\"",
    );
    refused(
        with("shared", json!(1 << 20)),
        "needs 1048576 bytes of shared memory",
    );
    refused(with("shared", json!(-1)), "\"shared\" is -1");
    refused(with("shared", json!(null)), "no \"shared\"");
    refused(with("num_warps", json!(64)), "1 to 32");
    refused(with("num_warps", json!(0)), "1 to 32");
    refused(
        with("cluster_dims", json!([2, 0, 1])),
        "\"cluster_dims\" is [2,0,1]",
    );
    refused(
        with("tensordesc_meta", json!([{"swizzle": 1}])),
        "tensor descriptors",
    );
    refused(with("profile_scratch_size", json!(64)), "profiler");
    refused(with("launch_pdl", json!("yes")), "true or false");
    refused(with("name", json!("another")), "find the kernel `another`");
    refused(json!([1]), "not a JSON object");
    for field in ["name", "target", "num_warps", "shared"] {
        let mut less = metadata();
        less.as_object_mut().unwrap().remove(field);
        refused(less, &format!("no {field:?}"));
    }
    assert!(TritonMetadata::parse("{").is_err());
    let kernel = bench.load(&metadata(), &ptx(false)).unwrap();
    let launched = |grid: [u32; 3], arguments: &[KernelArg<'_>]| {
        // SAFETY: it is refused before it is launched.
        let done = unsafe { kernel.launch(&bench.stream, grid, arguments) };
        done.unwrap_err().to_string()
    };
    let said = launched([1, 1, 1], &[KernelArg::number(0u64); 3]);
    assert!(
        said.contains("takes 4 arguments, but 3 were given"),
        "{said}"
    );
    let said = launched([1, 1, 1], &[KernelArg::number(0u64); 4]);
    assert!(said.contains("scale_kernel"), "{said}");
}

#[test]
fn clusters_and_older_versions_are_supported() {
    let parsed = |json: Json| TritonMetadata::parse(&json.to_string()).unwrap();
    assert_eq!(parsed(with("num_ctas", json!(4))).cluster, [4, 1, 1]);
    assert_eq!(
        parsed(with("cluster_dims", json!([2, 2, 1]))).cluster,
        [2, 2, 1]
    );
    // Before scratch memory existed there were no parameters for it.
    let mut old = metadata();
    for field in [
        "global_scratch_size",
        "profile_scratch_size",
        "launch_pdl",
        "cluster_dims",
    ] {
        old.as_object_mut().unwrap().remove(field);
    }
    let old = parsed(old);
    assert_eq!(
        (old.scratch_bytes, old.has_profile, old.overlaps_previous),
        (None, false, false)
    );
    let bench = Bench::new();
    let kernel = TritonKernel::load(&bench.context, old, &Image::ptx(ptx(false))).unwrap();
    assert_eq!(kernel.argument_bytes().map(<[usize]>::len), Some(6));
}
