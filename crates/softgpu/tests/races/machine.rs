//! One kernel of one buffer, run with all checks on.

use std::sync::Arc;
use std::time::Duration;

use fercuda_softgpu::check::{CheckContext, CheckOptions};
use fercuda_softgpu::exec::{
    CompileOptions, DeviceInfo, Executor, LaunchSpec, LaunchStats, Loaded, compile,
};
use fercuda_softgpu::mem::{AddressSpace, AllocKind, DriverCallSite, GRANULE};
use fercuda_softgpu::order::{ActorId, OpKind, Order};
use fercuda_softgpu::report::{Finding, FindingSink};

/// A kernel: its name, blocks, threads of a block, and body. In it `%r0` and `%r1` are thread and
/// block, `%r2` the thread's number in the grid, `%rd1` the buffer and `%rd2` the thread's word in
/// it; `%r20` to `%r39` and `%rd10` to `%rd19` are free, and so are `%p0` to `%p9`.
pub(crate) type Kernel = (&'static str, u32, u32, &'static str);

fn text(body: &str, threads: u32) -> String {
    format!(
        ".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 buffer)
{{
    .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .pred %p<10>;
    ld.param.u64 %rd1, [buffer];
    mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
    mad.lo.u32 %r2, %r1, {threads}, %r0;
    mul.wide.u32 %rd2, %r2, 4; add.u64 %rd2, %rd1, %rd2;
{body}
    ret;
}}
"
    )
}

pub(crate) struct Outcome {
    pub(crate) stats: LaunchStats,
    pub(crate) findings: Vec<Finding>,
    pub(crate) words: Vec<u32>,
}

/// Runs a kernel on a buffer of zeros.
pub(crate) fn run(kernel: Kernel, options: CheckOptions, threads: usize) -> Outcome {
    launch(kernel, Some(options), threads)
}

pub(crate) fn launch(kernel: Kernel, options: Option<CheckOptions>, threads: usize) -> Outcome {
    let (name, blocks, width, body) = kernel;
    let module = fercuda_ptx::parse(&text(body, width)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let image = compile(&module, &CompileOptions::default()).unwrap();
    let space = AddressSpace::new(64 * GRANULE, options.is_some()).unwrap();
    let (at, _backing) = space.map_new(GRANULE, 1).unwrap();
    let (kind, site) = (AllocKind::Device, DriverCallSite::default());
    space.add(at, GRANULE, kind, 0, None, site, true, None);
    let (order, sink) = (Arc::new(Order::new()), Arc::new(FindingSink::new()));
    let spec = LaunchSpec {
        heap: None,
        grid: [blocks, 1, 1],
        block: [width, 1, 1],
        cluster: [1; 3],
        explicit_cluster: false,
        dynamic_shared_bytes: 0,
        params: at.to_le_bytes().to_vec(),
        device: DeviceInfo::default(),
        cooperative: false,
        space: space.clone(),
        checks: options.map(|options| CheckContext {
            op: order.begin(ActorId::HOST, OpKind::Call("launch")),
            order,
            sink: sink.clone(),
            options,
        }),
        watchdog: Some(Duration::from_secs(60)),
        late_copies: false,
        print: Arc::new(|_| {}),
        bindings: Default::default(),
        cancel: None,
    };
    let loaded = Loaded::new(image, Default::default()).unwrap();
    let result = Executor::new(threads).run(&loaded, 0, &spec);
    let stats = result.unwrap_or_else(|fault| panic!("{name}: {fault}"));
    let mut bytes = vec![0; 4096];
    space.read(0, at, &mut bytes, None).unwrap();
    let words = bytes.as_chunks::<4>().0;
    Outcome {
        stats,
        findings: sink.take(),
        words: words.iter().map(|w| u32::from_le_bytes(*w)).collect(),
    }
}
