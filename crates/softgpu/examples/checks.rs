//! Cost of checks: time with and without them of four kernels over large arrays, with the driver's
//! operations around them, and bytes of shadow memory for each byte of the arrays.
//!
//! `cargo run --release -p fercuda-softgpu --example checks [log2 of the elements, 26]
//! [threads, 2] [words of the kernels' names]`

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fercuda_softgpu::check::{CheckContext, CheckOptions};
use fercuda_softgpu::exec::{CompileOptions, DeviceInfo, Executor, LaunchSpec, Loaded, compile};
use fercuda_softgpu::mem::{AddressSpace, AllocKind, DriverCallSite, GRANULE, round_up};
use fercuda_softgpu::order::{ActorId, OpKind, Order};
use fercuda_softgpu::report::FindingSink;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Elements that cross between host and device at a time.
const PIECE: u64 = 1 << 20;
const ATTEMPTS: usize = 3;

const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Thread `i` of blocks of 256: out[i] = a[i] + b[i].
const ADD: &str = ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {
.reg .f32 %f<4>; .reg .u32 %r<8>; .reg .u64 %rd<8>;
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb]; ld.param.u64 %rd3, [pc];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 256, %r1;
mul.wide.u32 %rd4, %r3, 4;
add.u64 %rd5, %rd1, %rd4; add.u64 %rd6, %rd2, %rd4; add.u64 %rd7, %rd3, %rd4;
ld.global.f32 %f1, [%rd5]; ld.global.f32 %f2, [%rd6];
add.f32 %f3, %f1, %f2; st.global.f32 [%rd7], %f3;
ret;
}";

/// One atomic of global memory an element.
const GLOBAL_HISTOGRAM: &str = ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {
.reg .u32 %r<8>; .reg .u64 %rd<8>;
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd3, [pc];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 256, %r1;
mul.wide.u32 %rd4, %r3, 4; add.u64 %rd5, %rd1, %rd4;
ld.global.u32 %r4, [%rd5]; bfe.u32 %r4, %r4, 16, 8; mul.wide.u32 %rd6, %r4, 4;
add.u64 %rd7, %rd3, %rd6; red.global.add.u32 [%rd7], 1;
ret;
}";

/// Atomics of shared memory for 16 elements a thread, then one of global memory a bin.
const SHARED_HISTOGRAM: &str = ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {
.reg .u32 %r<12>; .reg .u64 %rd<8>; .reg .pred %p;
.shared .align 16 .b8 bins[1024];
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd3, [pc];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
shl.b32 %r5, %r1, 2; mov.u32 %r6, bins; add.u32 %r7, %r6, %r5;
mov.u32 %r8, 0; st.shared.u32 [%r7], %r8;
bar.sync 0;
mad.lo.u32 %r3, %r2, 4096, %r1; mul.wide.u32 %rd4, %r3, 4; add.u64 %rd5, %rd1, %rd4;
LOOP:
ld.global.u32 %r4, [%rd5]; bfe.u32 %r4, %r4, 16, 8; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r6;
red.shared.add.u32 [%r4], 1;
add.u64 %rd5, %rd5, 1024; add.u32 %r8, %r8, 1; setp.lt.u32 %p, %r8, 16; @%p bra LOOP;
bar.sync 0;
ld.shared.u32 %r9, [%r7]; cvt.u64.u32 %rd6, %r5; add.u64 %rd7, %rd3, %rd6;
red.global.add.u32 [%rd7], %r9;
ret;
}";

/// A tree in shared memory; one sum a block of 256 threads, of 4 elements each.
fn reduction() -> String {
    let tree: String = (0..8)
        .map(|n| {
            let half = 128 >> n;
            format!(
                "setp.lt.u32 %p, %r1, {half};
@%p ld.shared.f32 %f1, [%r7+{}]; @%p ld.shared.f32 %f2, [%r7];
@%p add.f32 %f2, %f1, %f2; @%p st.shared.f32 [%r7], %f2;
bar.sync 0;
",
                4 * half
            )
        })
        .collect();
    format!(
        ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{
.reg .f32 %f<8>; .reg .u32 %r<12>; .reg .u64 %rd<8>; .reg .pred %p;
.shared .align 16 .b8 sums[1024];
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd3, [pc];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 256, %r1;
mul.wide.u32 %rd4, %r3, 16; add.u64 %rd5, %rd1, %rd4;
ld.global.v4.f32 {{%f1, %f2, %f3, %f4}}, [%rd5];
add.f32 %f1, %f1, %f2; add.f32 %f3, %f3, %f4; add.f32 %f1, %f1, %f3;
shl.b32 %r5, %r1, 2; mov.u32 %r6, sums; add.u32 %r7, %r6, %r5;
st.shared.f32 [%r7], %f1;
bar.sync 0;
{tree}
setp.ne.u32 %p, %r1, 0; @%p ret;
mul.wide.u32 %rd6, %r2, 4; add.u64 %rd7, %rd3, %rd6; st.global.f32 [%rd7], %f2;
ret;
}}"
    )
}

/// Blocks of 32 x 8 threads; tiles of 32 x 32 through shared memory, rows of 33. `side` elements a
/// row.
fn transpose(side: u64) -> String {
    let mut body = String::new();
    for k in 0..4 {
        let (row, step) = (k * 8, k * 8 * side * 4);
        body += &format!(
            "ld.global.u32 %r9, [%rd5+{step}]; st.shared.u32 [%r8+{}], %r9;\n",
            row * 132
        );
    }
    body += "bar.sync 0;\n";
    for k in 0..4 {
        let (column, step) = (k * 8 * 4, k * 8 * side * 4);
        body += &format!("ld.shared.u32 %r9, [%r10+{column}]; st.global.u32 [%rd7+{step}], %r9;\n");
    }
    format!(
        ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{
.reg .u32 %r<16>; .reg .u64 %rd<8>;
.shared .align 16 .b8 tile[4224];
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd3, [pc];
mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y;
shl.b32 %r4, %r2, 5; shl.b32 %r5, %r3, 5; mov.u32 %r6, tile;
add.u32 %r11, %r5, %r1; add.u32 %r12, %r4, %r0; mad.lo.u32 %r13, %r11, {side}, %r12;
mul.wide.u32 %rd4, %r13, 4; add.u64 %rd5, %rd1, %rd4;
add.u32 %r11, %r4, %r1; add.u32 %r12, %r5, %r0; mad.lo.u32 %r13, %r11, {side}, %r12;
mul.wide.u32 %rd6, %r13, 4; add.u64 %rd7, %rd3, %rd6;
mad.lo.u32 %r8, %r1, 132, %r6; shl.b32 %r14, %r0, 2; add.u32 %r8, %r8, %r14;
mad.lo.u32 %r10, %r0, 132, %r6; shl.b32 %r14, %r1, 2; add.u32 %r10, %r10, %r14;
{body}ret;
}}"
    )
}

/// A kernel over arrays a and b, which gives c.
struct Case {
    name: &'static str,
    text: String,
    grid: [u32; 3],
    block: [u32; 3],
    /// How many arrays it reads.
    inputs: u64,
    /// Elements that it writes.
    outputs: u64,
    /// What it gives at a place, from all of a and b.
    answer: fn(&[u32], u64, usize) -> u32,
}

fn cases(n: u64) -> Vec<Case> {
    let side = n.isqrt();
    let case = |name, text: &str, grid, block, (inputs, outputs), answer| Case {
        name,
        text: format!("{HEADER}{text}"),
        grid,
        block,
        inputs,
        outputs,
        answer,
    };
    let lines = |n: u64| [n as u32, 1, 1];
    let count: fn(&[u32], u64, usize) -> u32 = |a, _, at| {
        a.iter()
            .filter(|&&x| (x >> 16) as usize & 255 == at)
            .count() as u32
    };
    vec![
        case(
            "vector add",
            ADD,
            lines(n / 256),
            lines(256),
            (2, n),
            |a, _, at| (f32::from_bits(a[at]) + f32::from_bits(a[at])).to_bits(),
        ),
        case(
            "histogram, shared",
            SHARED_HISTOGRAM,
            lines(n / 4096),
            lines(256),
            (1, 256),
            count,
        ),
        case(
            "histogram, global",
            GLOBAL_HISTOGRAM,
            lines(n / 256),
            lines(256),
            (1, 256),
            count,
        ),
        case(
            "reduction",
            &reduction(),
            lines(n / 1024),
            lines(256),
            (1, n / 1024),
            |a, _, at| {
                let sum: f32 = a[1024 * at..][..1024]
                    .iter()
                    .map(|&x| f32::from_bits(x))
                    .sum();
                sum.to_bits()
            },
        ),
        case(
            "transpose",
            &transpose(side),
            [side as u32 / 32, side as u32 / 32, 1],
            [32, 8, 1],
            (1, n),
            |a, side, at| a[at % side as usize * side as usize + at / side as usize],
        ),
    ]
}

/// Small whole numbers as f32, so that sums are exact in any order.
fn element(at: u64) -> u32 {
    ((at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53 & 255) as f32).to_bits()
}

struct Machine {
    space: Arc<AddressSpace>,
    order: Arc<Order>,
    sink: Arc<FindingSink>,
    checks: bool,
}

impl Machine {
    fn context(&self, what: &'static str) -> Option<CheckContext> {
        self.checks.then(|| CheckContext {
            op: self.order.begin(ActorId::HOST, OpKind::Call(what)),
            order: self.order.clone(),
            sink: self.sink.clone(),
            options: CheckOptions::default(),
        })
    }
}

/// Seconds of the whole, and of the kernel alone.
#[derive(Clone, Copy)]
struct Times {
    whole: f64,
    kernel: f64,
}

fn run(case: &Case, loaded: &Arc<Loaded>, n: u64, threads: usize, checks: bool) -> Outcome<Times> {
    let lens = [
        n * 4,
        if case.inputs == 2 { n * 4 } else { 0 },
        case.outputs * 4,
    ];
    let bytes: u64 = lens.iter().map(|&l| round_up(l.max(1)) + GRANULE).sum();
    let m = Machine {
        space: AddressSpace::new(bytes + 64 * GRANULE, checks)?,
        order: Arc::new(Order::new()),
        sink: Arc::new(FindingSink::new()),
        checks,
    };
    let values: Vec<u32> = (0..n).map(element).collect();
    let executor = Executor::new(threads);
    let mut whole = Duration::ZERO;
    let (mut at, mut held) = ([0; 3], Vec::new());
    for (at, &len) in at.iter_mut().zip(&lens).filter(|(_, len)| **len != 0) {
        let (start, backing) = m.space.map_new(len, 1)?;
        (*at, _) = (start, held.push(backing));
        // Pages of the arrays themselves are no cost of checks.
        m.space.write(0, start, &vec![0; len as usize], None)?;
        let (ctx, site) = (m.context("allocate"), DriverCallSite::default());
        let begun = Instant::now();
        m.space.add(
            start,
            len,
            AllocKind::Device,
            0,
            None,
            site,
            false,
            ctx.as_ref(),
        );
        whole += begun.elapsed();
    }
    // SAFETY: a slice of `u32` as its bytes.
    let raw = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), values.len() * 4) };
    let begun = Instant::now();
    for &at in &at[..case.inputs as usize] {
        for (n, piece) in raw.chunks(PIECE as usize * 4).enumerate() {
            m.space.write(
                0,
                at + n as u64 * PIECE * 4,
                piece,
                m.context("write").as_ref(),
            )?;
        }
    }
    m.space.write(
        0,
        at[2],
        &vec![0; lens[2] as usize],
        m.context("zero").as_ref(),
    )?;
    let spec = LaunchSpec {
        grid: case.grid,
        block: case.block,
        cluster: [1; 3],
        explicit_cluster: false,
        dynamic_shared_bytes: 0,
        params: at.iter().flat_map(|p| p.to_le_bytes()).collect(),
        device: DeviceInfo::default(),
        cooperative: false,
        space: m.space.clone(),
        checks: m.context("launch"),
        watchdog: None,
        late_copies: false,
        print: Arc::new(|text| print!("{text}")),
        heap: None,
        bindings: Default::default(),
        cancel: None,
    };
    let stats = executor.run(loaded, 0, &spec)?;
    let mut out = vec![0; lens[2].min(PIECE * 4) as usize];
    let (mut piece, mut got) = (0, Vec::new());
    while piece < lens[2] {
        let len = out.len().min((lens[2] - piece) as usize);
        m.space.read(
            0,
            at[2] + piece,
            &mut out[..len],
            m.context("read").as_ref(),
        )?;
        let first = (piece / 4) as usize;
        for look in [0, len / 8, len / 4 - 1] {
            got.push((
                first + look,
                u32::from_le_bytes(out[look * 4..][..4].try_into()?),
            ));
        }
        piece += len as u64;
    }
    for &at in at.iter().filter(|at| **at != 0) {
        m.space
            .retire(at, DriverCallSite::default(), m.context("free").as_ref());
    }
    whole += begun.elapsed();
    if let Some(f) = m.sink.take().first() {
        return Err(f.to_string().into());
    }
    for (at, got) in got.into_iter().step_by(17) {
        let want = (case.answer)(&values, n.isqrt(), at);
        if got != want {
            return Err(format!("element {at}: {got:#x}, not {want:#x}").into());
        }
    }
    Ok(Times {
        whole: whole.as_secs_f64(),
        kernel: stats.elapsed.as_secs_f64(),
    })
}

/// Bytes of memory of the process that no file stands behind: the device's memory is a file's.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let log = args.next().map_or(Ok(26), |a| a.parse::<u32>())?;
    let threads = args.next().map_or(Ok(2), |a| a.parse::<usize>())?;
    let n = 1u64 << log;
    println!("2^{log} elements, {threads} threads; seconds of the kernel, and of all with copies");
    let names: Vec<String> = args.collect();
    let chosen = |c: &Case| names.is_empty() || names.iter().any(|n| c.name.contains(&**n));
    for case in cases(n).into_iter().filter(chosen) {
        let module = fercuda_ptx::parse(&case.text)?;
        let loaded = Loaded::new(
            compile(&module, &CompileOptions::default())?,
            Default::default(),
        )?;
        let mut best = [Times {
            whole: f64::INFINITY,
            kernel: f64::INFINITY,
        }; 2];
        let (top, over) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let mut peaks = [0; 2];
        let watch = std::thread::spawn({
            let (top, over) = (top.clone(), over.clone());
            move || {
                while !over.load(Ordering::Relaxed) {
                    top.fetch_max(anonymous_bytes(), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        for _ in 0..ATTEMPTS {
            for checks in [false, true] {
                top.store(0, Ordering::Relaxed);
                let times = run(&case, &loaded, n, threads, checks)?;
                let best = &mut best[usize::from(checks)];
                best.whole = best.whole.min(times.whole);
                best.kernel = best.kernel.min(times.kernel);
                peaks[usize::from(checks)] = top.load(Ordering::Relaxed);
            }
        }
        over.store(true, Ordering::Relaxed);
        let _joined = watch.join();
        let [off, on] = best;
        let arrays = (case.inputs * n + case.outputs) * 4;
        println!(
            "{:18} kernel {:.3} {:.3} ({:4.1}x)  all {:.3} {:.3} ({:4.1}x)  shadow {:.2} bytes a byte",
            case.name,
            off.kernel,
            on.kernel,
            on.kernel / off.kernel,
            off.whole,
            on.whole,
            on.whole / off.whole,
            peaks[1].saturating_sub(peaks[0]) as f64 / arrays as f64
        );
    }
    Ok(())
}
