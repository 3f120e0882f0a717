//! Device code that uses what the device itself brings: the shared memory of cooperative groups'
//! tiles wider than a warp, and `new` and `delete`.
//!
//! On the software device its checks must find nothing.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Function, Image, Launch, Module, Stream};
use fercuda_nvrtc::{CudaSource, GpuArch, Nvrtc};

const THREADS: usize = 256;

const SOURCE: &str = r#"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

template <int N>
__device__ void tiles(const int* x, int* out) {
    __shared__ cg::block_tile_memory<256> memory;
    __shared__ int seen[256];
    auto block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<N>(block);
    int t = block.thread_rank();
    for (int round = 0; round < 3; round++) {
        seen[t] = x[t] + round;
        tile.sync();
        int mirrored = seen[t ^ (N - 1)];
        tile.sync();
        int sum = cg::reduce(tile, mirrored, cg::plus<int>());
        int some = tile.any(x[t] == 7) ? 1000000 : 0;
        out[round * 256 + t] = sum + some + tile.shfl(x[t], 5) * 100000;
    }
}

extern "C" __global__ void tiles_of_64(const int* x, int* out) { tiles<64>(x, out); }
extern "C" __global__ void tiles_of_128(const int* x, int* out) { tiles<128>(x, out); }

struct Node { Node* next; int value; };

extern "C" __global__ void lists(const int* x, int* out) {
    Node* first = nullptr;
    for (int i = 0; i <= threadIdx.x % 16; i++) first = new Node{first, x[threadIdx.x] + i};
    int* squares = new int[threadIdx.x + 1];
    for (int i = 0; i <= threadIdx.x; i++) squares[i] = i * i;
    int sum = squares[threadIdx.x];
    delete[] squares;
    while (first) { Node* next = first->next; sum += first->value; delete first; first = next; }
    out[threadIdx.x] = sum;
}
"#;

struct Library {
    context: Context,
    stream: Stream,
    module: Module,
}

impl Library {
    fn load() -> Self {
        let device = Cuda::from_env().and_then(|c| c.device(0)).unwrap();
        let context = Context::primary(device).unwrap();
        let arch = GpuArch::parse("sm_90").unwrap();
        let source = CudaSource::new("library.cu", SOURCE, arch).option("--std=c++17");
        let compiled = Nvrtc::find().unwrap().compile(&source).unwrap();
        let module = Module::load(&context, &Image::ptx(compiled.ptx().unwrap())).unwrap();
        Library {
            stream: Stream::new(&context).unwrap(),
            context,
            module,
        }
    }

    /// What `kernel` writes for `x`, `out_len` numbers.
    fn run(&self, kernel: &str, x: &[i32], out_len: usize) -> Vec<i32> {
        let function: Function = self.module.function(kernel).unwrap();
        let input = DeviceBuffer::from_host(x, &self.stream).unwrap();
        let mut out = DeviceBuffer::from_host(&vec![0; out_len], &self.stream).unwrap();
        let launch = Launch::new(1, THREADS as u32);
        // SAFETY: the kernels above take two buffers, read `THREADS` numbers of the first and write
        // `out_len` of the second.
        unsafe { launch.run(&function, &self.stream, (&input, &mut out)) }.unwrap();
        let numbers = out.to_vec(&self.stream).unwrap();
        if self.context.device().cuda().is_software() {
            let findings = fercuda_softgpu::control::take_findings();
            assert!(findings.is_empty(), "{}", findings[0]);
        }
        numbers
    }
}

fn numbers() -> Vec<i32> {
    let mut random = fercuda_trials::rng();
    (0..THREADS).map(|_| random.i32(0..200)).collect()
}

#[test]
fn tiles_wider_than_a_warp_meet_and_reduce() {
    let library = Library::load();
    for n in [64, 128] {
        let mut x = numbers();
        x[n + 3] = 7;
        let got = library.run(&format!("tiles_of_{n}"), &x, 3 * THREADS);
        for (i, got) in got.into_iter().enumerate() {
            let (round, t) = (i / THREADS, i % THREADS);
            let tile = &x[t / n * n..][..n];
            let sum: i32 = tile.iter().map(|v| v + round as i32).sum();
            let some = if tile.contains(&7) { 1_000_000 } else { 0 };
            assert_eq!(got, sum + some + tile[5] * 100_000, "tile of {n}, {i}");
        }
    }
}

#[test]
fn kernels_allocate_and_free() {
    let library = Library::load();
    for _ in 0..3 {
        let x = numbers();
        let got = library.run("lists", &x, THREADS);
        for (t, got) in (0i32..).zip(got) {
            let nodes: i32 = (0..=t % 16).map(|i| x[t as usize] + i).sum();
            assert_eq!(got, t * t + nodes, "thread {t}");
        }
    }
}
