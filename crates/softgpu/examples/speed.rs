//! Speed of the engine: lane-operations a second, and the ratio to plain Rust doing the same.
//!
//! `cargo run --release -p fercuda-softgpu --example speed`

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use fercuda_softgpu::check::{CheckContext, CheckOptions};
use fercuda_softgpu::exec::{
    CompileOptions, DeviceInfo, Executor, LaunchSpec, LaunchStats, Loaded, compile,
};
use fercuda_softgpu::mem::{AddressSpace, AllocKind, DriverCallSite, GRANULE};
use fercuda_softgpu::order::{ActorId, OpKind, Order};
use fercuda_softgpu::report::FindingSink;

const STEPS: u32 = 64;
const ROUNDS: u32 = 4096;
const N: usize = 256;
const ATTEMPTS: usize = 8;

fn fma_kernel() -> String {
    let mut body = String::new();
    for k in 0..STEPS {
        let _ = writeln!(body, "fma.rn.f32 %f{}, %f{}, %f8, %f9;", k % 8, k % 8);
    }
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry chain(.param .u64 out, .param .u32 rounds) {{
.reg .f32 %f<10>; .reg .u32 %r<8>; .reg .u64 %rd<4>; .reg .pred %p;
ld.param.u64 %rd1, [out];
ld.param.u32 %r1, [rounds];
mov.u32 %r2, %tid.x;
cvt.rn.f32.u32 %f0, %r2;
mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0; mov.f32 %f4, %f0; mov.f32 %f5, %f0; mov.f32 %f6, %f0; mov.f32 %f7, %f0;
mov.f32 %f8, 0f3F7FFFF0; mov.f32 %f9, 0f3A83126F;
mov.u32 %r3, 0;
LOOP:
{body}
add.u32 %r3, %r3, 1;
setp.lt.u32 %p, %r3, %r1;
@%p bra LOOP;
add.f32 %f0, %f0, %f1; add.f32 %f0, %f0, %f2; add.f32 %f0, %f0, %f3; add.f32 %f0, %f0, %f4;
add.f32 %f0, %f0, %f5; add.f32 %f0, %f0, %f6; add.f32 %f0, %f0, %f7;
mul.wide.u32 %rd2, %r2, 4;
add.u64 %rd1, %rd1, %rd2;
st.global.f32 [%rd1], %f0;
ret;
}}"
    )
}

/// c = a b for 256 x 256, in tiles of 16 x 16 of shared memory, one element a thread.
fn gemm_kernel() -> String {
    let mut inner = String::new();
    for k in 0..16 {
        let _ = writeln!(
            inner,
            "ld.shared.f32 %f1, [%r10+{}]; ld.shared.f32 %f2, [%r11+{}]; fma.rn.f32 %f0, %f1, %f2, %f0;",
            k * 4,
            k * 64
        );
    }
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry gemm(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{
.reg .f32 %f<4>; .reg .u32 %r<20>; .reg .u64 %rd<12>; .reg .pred %p;
.shared .align 16 .b8 ta[1024]; .shared .align 16 .b8 tb[1024];
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb]; ld.param.u64 %rd3, [pc];
mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y;
shl.b32 %r4, %r3, 4; add.u32 %r4, %r4, %r1;
shl.b32 %r5, %r2, 4; add.u32 %r5, %r5, %r0;
shl.b32 %r6, %r1, 4; add.u32 %r6, %r6, %r0; shl.b32 %r6, %r6, 2;
mov.u32 %r7, ta; mov.u32 %r8, tb;
shl.b32 %r9, %r1, 6; add.u32 %r10, %r7, %r9;
shl.b32 %r9, %r0, 2; add.u32 %r11, %r8, %r9;
add.u32 %r12, %r7, %r6; add.u32 %r13, %r8, %r6;
shl.b32 %r14, %r4, 8; add.u32 %r14, %r14, %r0; mul.wide.u32 %rd4, %r14, 4; add.u64 %rd4, %rd1, %rd4;
shl.b32 %r15, %r1, 8; add.u32 %r15, %r15, %r5; mul.wide.u32 %rd5, %r15, 4; add.u64 %rd5, %rd2, %rd5;
mov.f32 %f0, 0f00000000; mov.u32 %r16, 0;
LOOP:
ld.global.f32 %f1, [%rd4]; st.shared.f32 [%r12], %f1;
ld.global.f32 %f2, [%rd5]; st.shared.f32 [%r13], %f2;
bar.sync 0;
{inner}
bar.sync 0;
add.u64 %rd4, %rd4, 64; add.u64 %rd5, %rd5, 16384;
add.u32 %r16, %r16, 1; setp.lt.u32 %p, %r16, 16; @%p bra LOOP;
shl.b32 %r17, %r4, 8; add.u32 %r17, %r17, %r5; mul.wide.u32 %rd6, %r17, 4; add.u64 %rd6, %rd3, %rd6;
st.global.f32 [%rd6], %f0;
ret;
}}"
    )
}

struct Machine {
    space: Arc<AddressSpace>,
    at: u64,
    order: Arc<Order>,
    sink: Arc<FindingSink>,
}

impl Machine {
    fn new(checks: bool) -> Result<Self, Box<dyn std::error::Error>> {
        let space = AddressSpace::new(64 * GRANULE, checks)?;
        let (at, backing) = space.map_new(GRANULE, 1)?;
        std::mem::forget(backing);
        space.add(
            at,
            GRANULE,
            AllocKind::Device,
            0,
            None,
            DriverCallSite::default(),
            true,
            None,
        );
        Ok(Machine {
            space,
            at,
            order: Arc::new(Order::new()),
            sink: Arc::new(FindingSink::new()),
        })
    }

    fn run(
        &self,
        executor: &Executor,
        loaded: &Arc<Loaded>,
        grid: [u32; 3],
        block: [u32; 3],
        params: &[u8],
    ) -> Result<LaunchStats, Box<dyn std::error::Error>> {
        let checks = self.space.shadow().map(|_| CheckContext {
            op: self.order.begin(ActorId::HOST, OpKind::Call("launch")),
            order: self.order.clone(),
            sink: self.sink.clone(),
            options: CheckOptions::default(),
        });
        let spec = LaunchSpec {
            grid,
            block,
            dynamic_shared_bytes: 0,
            params: params.to_vec(),
            device: DeviceInfo::default(),
            cooperative: false,
            space: self.space.clone(),
            checks,
            watchdog: None,
            late_copies: false,
            print: Arc::new(|text| print!("{text}")),
            heap: None,
            bindings: Default::default(),
            cancel: None,
        };
        let stats = executor.run(loaded, 0, &spec)?;
        if let Some(f) = self.sink.take().first() {
            return Err(f.to_string().into());
        }
        Ok(stats)
    }
}

fn load(text: &str, options: &CompileOptions) -> Result<Arc<Loaded>, Box<dyn std::error::Error>> {
    let module = fercuda_ptx::parse(text)?;
    Ok(Loaded::new(compile(&module, options)?, Default::default())?)
}

/// Runs both in turn, so that a disturbance meets both; the best time of each in seconds.
fn best(
    mut runs: [impl FnMut() -> Result<LaunchStats, Box<dyn std::error::Error>>; 2],
) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ATTEMPTS {
        for (run, best) in runs.iter_mut().zip(&mut best) {
            *best = best.min(run()?.elapsed.as_secs_f64());
        }
    }
    Ok(best)
}

/// The chain again, one thread after the other: a scalar loop of fused multiply-adds.
fn plain_chain() -> f64 {
    if std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has the one feature that it is compiled for.
        unsafe { plain_chain_fma() }
    } else {
        plain_chain_any()
    }
}

#[target_feature(enable = "fma")]
fn plain_chain_fma() -> f64 {
    plain_chain_any()
}

#[inline(always)]
fn plain_chain_any() -> f64 {
    let begun = Instant::now();
    let threads = 32;
    for t in 0..threads {
        let mut x = [t as f32; 8];
        let (a, b) = (black_box(0.999_999_05_f32), black_box(1e-3_f32));
        for _ in 0..ROUNDS {
            for k in 0..STEPS as usize {
                x[k % 8] = x[k % 8].mul_add(a, b);
            }
            black_box(&mut x);
        }
    }
    f64::from(threads) * f64::from(STEPS) * f64::from(ROUNDS) / begun.elapsed().as_secs_f64()
}

/// The product again, as three loops.
fn plain_gemm() -> f64 {
    let a = black_box(vec![1.5f32; N * N]);
    let b = black_box(vec![0.5f32; N * N]);
    let begun = Instant::now();
    let mut c = vec![0f32; N * N];
    for i in 0..N {
        for j in 0..N {
            let mut sum = 0f32;
            for k in 0..N {
                sum += a[i * N + k] * b[k * N + j];
            }
            c[i * N + j] = sum;
        }
    }
    black_box(&c);
    begun.elapsed().as_secs_f64()
}

/// The product on the device, and its answer looked at.
fn product(
    m: &Machine,
    executor: &Executor,
    gemm: &Arc<Loaded>,
) -> Result<LaunchStats, Box<dyn std::error::Error>> {
    let bytes = (N * N * 4) as u64;
    let fill = |period: usize| -> Vec<u8> {
        (0..N * N)
            .flat_map(|i| ((i % period) as f32).to_le_bytes())
            .collect()
    };
    m.space.write(0, m.at, &fill(7), None)?;
    m.space.write(0, m.at + bytes, &fill(5), None)?;
    let params: Vec<u8> = [m.at, m.at + bytes, m.at + 2 * bytes]
        .iter()
        .flat_map(|p| p.to_le_bytes())
        .collect();
    let stats = m.run(executor, gemm, [16, 16, 1], [16, 16, 1], &params)?;
    let mut c = vec![0; N * N * 4];
    m.space.read(0, m.at + 2 * bytes, &mut c, None)?;
    for (i, j) in [(0, 0), (17, 201), (255, 255)] {
        let want: f32 = (0..N)
            .map(|k| ((i * N + k) % 7 * ((k * N + j) % 5)) as f32)
            .sum();
        let at = (i * N + j) * 4;
        let got = f32::from_le_bytes([c[at], c[at + 1], c[at + 2], c[at + 3]]);
        assert_eq!(got, want, "element {i}, {j}");
    }
    Ok(stats)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plain = plain_chain();
    println!(
        "fma chain, plain Rust on one core      {:8.2} G operations/s",
        plain / 1e9
    );
    for baseline in [false, true] {
        let mut options = CompileOptions::default();
        options.baseline = baseline;
        let chain = load(&fma_kernel(), &options)?;
        let rounds = if baseline { 64 } else { ROUNDS };
        let times = best([false, true].map(|checks| {
            let (m, chain) = (Machine::new(checks), &chain);
            move || {
                let m = m.as_ref().map_err(ToString::to_string)?;
                let mut params = m.at.to_le_bytes().to_vec();
                params.extend(rounds.to_le_bytes());
                m.run(&Executor::new(1), chain, [1, 1, 1], [256, 1, 1], &params)
            }
        }))?;
        for (seconds, checks) in times.into_iter().zip(["off", "on "]) {
            let rate = 256.0 * f64::from(STEPS) * f64::from(rounds) / seconds;
            println!(
                "fma chain, {}, checks {checks}       {:8.2} G lane-operations/s, {:.2} of plain",
                if baseline { "baseline" } else { "AVX2    " },
                rate / 1e9,
                rate / plain
            );
        }
    }
    let plain = plain_gemm();
    println!(
        "gemm 256^3, plain Rust on one core     {:8.2} ms",
        plain * 1e3
    );
    let gemm = load(&gemm_kernel(), &CompileOptions::default())?;
    for threads in [1, 2] {
        let executor = Executor::new(threads);
        let [off, on] = best([false, true].map(|checks| {
            let (m, executor, gemm) = (Machine::new(checks), &executor, &gemm);
            move || product(m.as_ref().map_err(ToString::to_string)?, executor, gemm)
        }))?;
        let ratio = format!(", {:.2} times unchecked", on / off);
        for (seconds, checks, ratio) in [(off, "off", ""), (on, "on ", &ratio)] {
            println!(
                "gemm 256^3, {threads} threads, checks {checks}      {:8.2} ms, {:.2} of plain{ratio}",
                seconds * 1e3,
                seconds / plain
            );
        }
    }
    Ok(())
}
