//! Memory, kernels, streams, events, views, a graph and refusals over cudarc, printed as lines
//! `name: result`, which have to be the same with and without `fercuda run`.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

type Done = Result<String, Box<dyn Error>>;

/// `fma_each`: y[i] = a * x[i] + y[i]; `fold`: a sum of each block, by atomics on a word.
const PTX: &str = r#"
.version 8.0
.target sm_80
.address_size 64
.visible .entry fma_each(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<5>;
    .reg .b64 %d<8>;
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [y];
    ld.param.f32 %f1, [a];
    mul.wide.u32 %d3, %r5, 4;
    add.s64 %d4, %d1, %d3;
    add.s64 %d5, %d2, %d3;
    ld.global.f32 %f2, [%d4];
    ld.global.f32 %f3, [%d5];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%d5], %f4;
DONE:
    ret;
}
.visible .entry fold(.param .u64 words, .param .u64 total, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %d<6>;
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    ld.param.u64 %d1, [words];
    ld.param.u64 %d2, [total];
    mul.wide.u32 %d3, %r5, 4;
    add.s64 %d4, %d1, %d3;
    ld.global.u32 %r6, [%d4];
    red.global.add.u32 [%d2], %r6;
DONE:
    ret;
}
"#;

struct CudarcDevice {
    context: Arc<CudaContext>,
    module: Arc<CudaModule>,
}

impl CudarcDevice {
    fn function(&self, name: &str) -> Result<CudaFunction, DriverError> {
        self.module.load_function(name)
    }
}

fn fma_each(
    stream: &Arc<CudaStream>,
    function: &CudaFunction,
    x: &cudarc::driver::CudaSlice<f32>,
    y: &mut cudarc::driver::CudaSlice<f32>,
    a: f32,
) -> Result<(), DriverError> {
    let n = x.len() as u32;
    let mut launch = stream.launch_builder(function);
    launch.arg(x).arg(y).arg(&a).arg(&n);
    // SAFETY: the kernel writes within `n` elements of `y`, and `x` has as many.
    unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }?;
    Ok(())
}

/// The sum of what a slice has, exact for small whole numbers.
fn sum(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value)).sum()
}

fn kernel(device: &CudarcDevice) -> Done {
    let stream = device.context.default_stream();
    let host: Vec<f32> = (0..10_007).map(|at| (at % 97) as f32).collect();
    let x = stream.clone_htod(&host)?;
    let mut y = stream.alloc_zeros::<f32>(host.len())?;
    let function = device.function("fma_each")?;
    for _ in 0..3 {
        fma_each(&stream, &function, &x, &mut y, 2.0)?;
    }
    Ok(format!("{}", sum(&stream.clone_dtoh(&y)?)))
}

fn sizes(device: &CudarcDevice) -> Done {
    let stream = device.context.default_stream();
    let fold = device.function("fold")?;
    let mut totals = Vec::new();
    for len in [1usize, 31, 512, 4097, 300_001] {
        let words = stream.clone_htod(&vec![3u32; len])?;
        let mut total = stream.alloc_zeros::<u32>(1)?;
        let n = len as u32;
        let mut launch = stream.launch_builder(&fold);
        launch.arg(&words).arg(&mut total).arg(&n);
        // SAFETY: the kernel reads `n` words and adds to one.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }?;
        totals.push(stream.clone_dtoh(&total)?[0]);
    }
    Ok(format!("{totals:?}"))
}

fn streams(device: &CudarcDevice) -> Done {
    let main = device.context.new_stream()?;
    let function = device.function("fma_each")?;
    let x = main.clone_htod(&vec![1.0f32; 5000])?;
    let mut sums = Vec::new();
    for number in 0..4 {
        let fork = main.fork()?;
        let mut y = fork.alloc_zeros::<f32>(5000)?;
        fma_each(&fork, &function, &x, &mut y, number as f32)?;
        main.join(&fork)?;
        // Copied by the stream that waits for the other.
        let copy = main.clone_dtod(&y)?;
        drop(y);
        sums.push(sum(&main.clone_dtoh(&copy)?));
    }
    Ok(format!("{sums:?}"))
}

fn events(device: &CudarcDevice) -> Done {
    let stream = device.context.new_stream()?;
    let begun = stream.record_event(None)?;
    let block = stream.alloc_zeros::<u8>(1 << 20)?;
    let ended = stream.record_event(None)?;
    ended.synchronize()?;
    let is_done = begun.is_complete() && ended.is_complete();
    drop(block);
    Ok(format!("{is_done}"))
}

fn views(device: &CudarcDevice) -> Done {
    let stream = device.context.default_stream();
    let mut block = stream.clone_htod(&(0..1000u32).collect::<Vec<_>>())?;
    let (left, right) = block.split_at(400);
    let (left, right) = (
        stream.clone_dtoh(&left)?,
        stream.clone_dtoh(&right.slice(100..))?,
    );
    stream.memset_zeros(&mut block.slice_mut(10..990))?;
    let rest = stream.clone_dtoh(&block)?;
    let total = |values: &[u32]| values.iter().sum::<u32>();
    Ok(format!(
        "{} {} {}",
        total(&left),
        total(&right),
        total(&rest)
    ))
}

fn pinned(device: &CudarcDevice) -> Done {
    let stream = device.context.default_stream();
    // SAFETY: each element is written before it is read.
    let mut host = unsafe { device.context.alloc_pinned::<u32>(4096) }?;
    for (at, word) in host.as_mut_slice()?.iter_mut().enumerate() {
        *word = at as u32;
    }
    let block = stream.clone_htod(&host)?;
    Ok(format!(
        "{}",
        stream.clone_dtoh(&block)?.iter().sum::<u32>()
    ))
}

fn threads(device: &CudarcDevice) -> Done {
    let sums: Vec<Result<f64, String>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn(move || -> Result<f64, DriverError> {
                    device.context.bind_to_thread()?;
                    let stream = device.context.new_stream()?;
                    let mut total = 0.0;
                    for turn in 0..50 {
                        let len = 100 * (1 + (number * 7 + turn) % 40);
                        let block = stream.clone_htod(&vec![number as f32; len])?;
                        let mut other = stream.alloc_zeros::<f32>(len)?;
                        fma_each(
                            &stream,
                            &device.function("fma_each")?,
                            &block,
                            &mut other,
                            1.0,
                        )?;
                        total += sum(&stream.clone_dtoh(&other)?);
                    }
                    Ok(total)
                })
            })
            .collect();
        let ended = handles.into_iter().map(|handle| handle.join());
        ended
            .map(|done| match done {
                Ok(done) => done.map_err(|error| error.to_string()),
                Err(_) => Err("a thread panicked".to_owned()),
            })
            .collect()
    });
    let sums = sums.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{sums:?}"))
}

fn graph(device: &CudarcDevice) -> Done {
    // Its events would order streams outside of the capture.
    // SAFETY: only this stream uses what is allocated here.
    unsafe { device.context.disable_event_tracking() };
    let stream = device.context.new_stream()?;
    let function = device.function("fma_each")?;
    let x = stream.clone_htod(&vec![1.0f32; 1000])?;
    let mut y = stream.alloc_zeros::<f32>(1000)?;
    stream.synchronize()?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    for _ in 0..5 {
        fma_each(&stream, &function, &x, &mut y, 1.0)?;
    }
    let status = stream.capture_status()?;
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.ok_or("the graph is empty")?;
    graph.upload()?;
    for _ in 0..3 {
        graph.launch()?;
    }
    let total = sum(&stream.clone_dtoh(&y)?);
    let was = status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    Ok(format!("{total} {was}"))
}

fn refusals(device: &CudarcDevice) -> Done {
    let stream = device.context.default_stream();
    // SAFETY: it is not read.
    let large = unsafe { stream.alloc::<u8>(1 << 42) }.err();
    let missing = device.module.load_function("no_such_kernel").err();
    let wrong = device
        .context
        .load_module(Ptx::from_src("this is no PTX"))
        .err();
    let after = stream.clone_dtoh(&stream.alloc_zeros::<u8>(1000)?)?.len();
    let name = |error: Option<DriverError>| match error {
        Some(error) => format!("{:?}", error.0),
        None => "no error".to_owned(),
    };
    Ok(format!(
        "{} {} {} {after}",
        name(large),
        name(missing),
        name(wrong)
    ))
}

fn information(device: &CudarcDevice) -> Done {
    let (free, total) = device.context.mem_get_info()?;
    let same = total == device.context.total_mem()? || total < device.context.total_mem()?;
    let (major, _) = device.context.compute_capability()?;
    Ok(format!(
        "{} {same} {}",
        0 < free && free <= total,
        major >= 7
    ))
}

/// Live memory of the program when it is over, for the ledger to show: 32 MiB in two blocks.
fn held(device: &CudarcDevice) -> Result<(), DriverError> {
    let stream = device.context.default_stream();
    let blocks = [
        stream.alloc_zeros::<u8>(24 << 20)?,
        stream.alloc_zeros::<u8>(8 << 20)?,
    ];
    stream.synchronize()?;
    drop(blocks);
    Ok(())
}

type CudarcPart = fn(&CudarcDevice) -> Done;

fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let module = context.load_module(Ptx::from_src(PTX))?;
    let device = CudarcDevice { context, module };
    let parts: [(&str, CudarcPart); 10] = [
        ("kernel", kernel),
        ("sizes", sizes),
        ("streams", streams),
        ("events", events),
        ("views", views),
        ("pinned", pinned),
        ("threads", threads),
        ("graph", graph),
        ("refusals", refusals),
        ("information", information),
    ];
    let mut failed = 0;
    for (name, part) in parts {
        match part(&device) {
            Ok(result) => println!("{name}: {result}"),
            Err(error) => {
                failed += 1;
                println!("{name}: error: {error}");
            }
        }
    }
    held(&device)?;
    if failed > 0 {
        return Err(format!("{failed} parts failed").into());
    }
    Ok(())
}
