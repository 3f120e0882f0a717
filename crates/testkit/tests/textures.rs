//! CUDA C++ that reads textures and writes surfaces, compiled by NVRTC.
//!
//! On the software device its checks must find nothing.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Function, Image, Launch, Module, Stream};
use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::*;
use fercuda_nvrtc::{CudaSource, GpuArch, Nvrtc};

const SOURCE: &str = r#"
extern "C" __global__ void blur(unsigned long long image, unsigned long long out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= width) return;
    float sum = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            sum += tex2D<float>(image, x + dx + 0.5f, y + dy + 0.5f);
    surf2Dwrite(sum, out, x * (int)sizeof(float), y);
}

extern "C" __global__ void sample(unsigned long long image, const float* at, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex2D<float>(image, at[2 * i], at[2 * i + 1]);
}

extern "C" __global__ void bytes(unsigned long long line, unsigned* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uchar4 v = tex1Dfetch<uchar4>(line, i);
    out[i] = v.x + 1000 * v.y + 1000000 * v.w;
}
"#;

const WIDTH: usize = 50;
const HEIGHT: usize = 20;

/// Calls a driver function that must succeed.
macro_rules! ok {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: every pointer given leads to a live value of the right kind.
        let code = unsafe { $driver.$name($($arg),*) }.unwrap();
        assert_eq!(code, CUresult::CUDA_SUCCESS, stringify!($name));
    };
}

struct Library {
    context: Context,
    stream: Stream,
    module: Module,
}

impl Library {
    fn load() -> Self {
        let device = Cuda::from_env().and_then(|c| c.device(0)).unwrap();
        let context = Context::primary(device).unwrap();
        let stream = Stream::new(&context).unwrap();
        let arch = GpuArch::parse("sm_90").unwrap();
        let source = CudaSource::new("textures.cu", SOURCE, arch);
        let compiled = Nvrtc::find().unwrap().compile(&source).unwrap();
        let module = Module::load(&context, &Image::ptx(compiled.ptx().unwrap())).unwrap();
        Library {
            context,
            stream,
            module,
        }
    }

    fn driver(&self) -> &'static Driver {
        self.context.device().cuda().driver()
    }

    /// Makes the context current for calls of the driver.
    fn enter(&self) {
        ok!(self.driver(), cuCtxSetCurrent(self.context.raw()));
    }

    fn array(&self, flags: u32) -> CUarray {
        let d = CUDA_ARRAY3D_DESCRIPTOR {
            Width: WIDTH,
            Height: HEIGHT,
            Depth: 0,
            Format: CUarray_format::CU_AD_FORMAT_FLOAT,
            NumChannels: 1,
            Flags: flags,
        };
        let mut array = CUarray::NULL;
        ok!(self.driver(), cuArray3DCreate_v2(&mut array, &d));
        array
    }

    fn fill(&self, array: CUarray, texels: &[f32]) {
        let c = CUDA_MEMCPY2D {
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: texels.as_ptr().cast(),
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_ARRAY,
            dstArray: array,
            WidthInBytes: 4 * WIDTH,
            Height: HEIGHT,
            ..CUDA_MEMCPY2D::default()
        };
        ok!(self.driver(), cuMemcpy2D_v2(&c));
    }

    fn texture(&self, array: CUarray, linear: bool) -> u64 {
        let mut r = CUDA_RESOURCE_DESC {
            resType: CUresourcetype::CU_RESOURCE_TYPE_ARRAY,
            ..CUDA_RESOURCE_DESC::default()
        };
        r.res.array.hArray = array;
        let t = CUDA_TEXTURE_DESC {
            addressMode: [CUaddress_mode::CU_TR_ADDRESS_MODE_CLAMP; 3],
            filterMode: CUfilter_mode(u32::from(linear)),
            ..CUDA_TEXTURE_DESC::default()
        };
        let mut object = 0;
        ok!(
            self.driver(),
            cuTexObjectCreate(&mut object, &r, &t, std::ptr::null())
        );
        object
    }

    fn function(&self, name: &str) -> Function {
        self.module.function(name).unwrap()
    }

    fn finish(&self) {
        self.stream.synchronize().unwrap();
        if self.context.device().cuda().is_software() {
            let findings = fercuda_softgpu::control::take_findings();
            assert!(findings.is_empty(), "{}", findings[0]);
        }
    }
}

#[test]
fn a_blur_reads_a_texture_and_writes_a_surface() {
    let library = Library::load();
    library.enter();
    let texels: Vec<f32> = (0..WIDTH * HEIGHT).map(|n| (n * n % 97) as f32).collect();
    let (image, out) = (library.array(0), library.array(CUDA_ARRAY3D_SURFACE_LDST));
    library.fill(image, &texels);
    let mut r = CUDA_RESOURCE_DESC::default();
    r.res.array.hArray = out;
    let (texture, mut surface) = (library.texture(image, false), 0);
    ok!(library.driver(), cuSurfObjectCreate(&mut surface, &r));
    let launch = Launch::new((2, HEIGHT as u32), 32);
    let arguments = (texture, surface, WIDTH as i32, HEIGHT as i32);
    // SAFETY: the kernel takes two handles and two numbers, and touches only the two images.
    unsafe { launch.run(&library.function("blur"), &library.stream, arguments) }.unwrap();
    library.finish();
    let mut got = vec![0f32; WIDTH * HEIGHT];
    let c = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_ARRAY,
        srcArray: out,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: got.as_mut_ptr().cast(),
        WidthInBytes: 4 * WIDTH,
        Height: HEIGHT,
        ..CUDA_MEMCPY2D::default()
    };
    ok!(library.driver(), cuMemcpy2D_v2(&c));
    let texel = |x: usize, y: usize, dx: i32, dy: i32| {
        let at = |n: usize, d: i32, size: usize| (n as i32 + d).clamp(0, size as i32 - 1) as usize;
        texels[at(y, dy, HEIGHT) * WIDTH + at(x, dx, WIDTH)]
    };
    for (n, got) in got.iter().enumerate() {
        let near = (0..9).map(|k| texel(n % WIDTH, n / WIDTH, k % 3 - 1, k / 3 - 1));
        // Sums of small integers are exact.
        assert_eq!(*got, near.sum::<f32>(), "texel {n}");
    }
}

#[test]
fn linear_filtering_is_within_its_eight_bits() {
    let library = Library::load();
    library.enter();
    let seed = fercuda_trials::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let texels: Vec<f32> = (0..WIDTH * HEIGHT).map(|_| random.f32()).collect();
    let image = library.array(0);
    library.fill(image, &texels);
    let texture = library.texture(image, true);
    let at: Vec<f32> = (0..2000)
        .map(|n| random.f32() * [WIDTH, HEIGHT][n % 2] as f32)
        .collect();
    let points = DeviceBuffer::from_host(&at, &library.stream).unwrap();
    let mut out = DeviceBuffer::from_host(&vec![0f32; 1000], &library.stream).unwrap();
    let launch = Launch::new(8, 128);
    let arguments = (texture, &points, &mut out, 1000i32);
    // SAFETY: the kernel reads 2000 numbers of the first buffer and writes 1000 of the second.
    unsafe { launch.run(&library.function("sample"), &library.stream, arguments) }.unwrap();
    let got: Vec<f32> = out.to_vec(&library.stream).unwrap();
    library.finish();
    let texel = |x: f64, y: f64| {
        let at = |n: f64, size: usize| n.clamp(0.0, size as f64 - 1.0) as usize;
        f64::from(texels[at(y, HEIGHT) * WIDTH + at(x, WIDTH)])
    };
    for (point, got) in at.chunks(2).zip(got) {
        let [x, y] = [point[0], point[1]].map(|c| f64::from(c) - 0.5);
        let (i, j) = (x.floor(), y.floor());
        let (a, b) = (x - i, y - j);
        let along = |j: f64| (1.0 - a) * texel(i, j) + a * texel(i + 1.0, j);
        let want = (1.0 - b) * along(j) + b * along(j + 1.0);
        // A weight is off by at most 1/256 in each dimension, texels differ by less than 1.
        let off = (f64::from(got) - want).abs();
        assert!(
            off <= 2.0 / 256.0,
            "seed {seed} {point:?}: {got} for {want}"
        );
    }
}

#[test]
fn a_texture_of_linear_memory_is_read_by_number() {
    let library = Library::load();
    library.enter();
    let content: Vec<u8> = (0..1024u32).map(|n| (n * 7) as u8).collect();
    let memory = DeviceBuffer::from_host(&content, &library.stream).unwrap();
    let mut out = DeviceBuffer::from_host(&vec![0u32; 300], &library.stream).unwrap();
    library.stream.synchronize().unwrap();
    let mut r = CUDA_RESOURCE_DESC {
        resType: CUresourcetype::CU_RESOURCE_TYPE_LINEAR,
        ..CUDA_RESOURCE_DESC::default()
    };
    r.res.linear = CUDA_RESOURCE_DESC_res_linear {
        devPtr: memory.address().0,
        format: CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8,
        numChannels: 4,
        sizeInBytes: 1024,
    };
    let t = CUDA_TEXTURE_DESC {
        flags: CU_TRSF_READ_AS_INTEGER,
        ..CUDA_TEXTURE_DESC::default()
    };
    let mut texture = 0;
    ok!(
        library.driver(),
        cuTexObjectCreate(&mut texture, &r, &t, std::ptr::null())
    );
    let launch = Launch::new(3, 128);
    // SAFETY: the kernel writes 300 numbers; what it reads beyond the texture is zero.
    unsafe {
        launch.run(
            &library.function("bytes"),
            &library.stream,
            (texture, &mut out, 300i32),
        )
    }
    .unwrap();
    let got: Vec<u32> = out.to_vec(&library.stream).unwrap();
    library.finish();
    for (n, got) in got.into_iter().enumerate() {
        let byte = |k: usize| content.get(4 * n + k).map_or(0, |&b| u32::from(b));
        // What lies outside has no components that count here but the fourth.
        if n < 256 {
            assert_eq!(
                got,
                byte(0) + 1000 * byte(1) + 1_000_000 * byte(3),
                "texel {n}"
            );
        } else {
            assert_eq!(got % 1_000_000, 0, "texel {n}");
        }
    }
}
