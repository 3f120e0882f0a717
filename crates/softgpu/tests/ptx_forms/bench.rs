//! Launches of a kernel `k` that reads one buffer and writes another.

use std::sync::Arc;
use std::time::Duration;

use fercuda_softgpu::check::CheckContext;
use fercuda_softgpu::exec::{
    CompileOptions, DeviceInfo, Executor, KernelHeap, LaunchSpec, Loaded, compile,
};
use fercuda_softgpu::mem::{AddressSpace, AllocKind, DriverCallSite, GRANULE};
use fercuda_softgpu::order::{ActorId, OpKind, Order};
use fercuda_softgpu::report::{Fault, FindingSink};

/// A module of kernel `k`: `%rd0` is the input, `%rd1` the output, `%r0` the thread's number.
pub(crate) fn module(before: &str, body: &str) -> String {
    format!(
        ".version 8.4
.target sm_90
.address_size 64
{before}
.visible .entry k(.param .u64 input, .param .u64 output)
{{
    .reg .u32 %r<16>; .reg .u64 %rd<8>; .reg .pred %p<4>; .reg .f32 %f<16>;
    ld.param.u64 %rd0, [input];
    ld.param.u64 %rd1, [output];
    mov.u32 %r0, %tid.x;
{body}
    ret;
}}
"
    )
}

fn run(
    text: &str,
    input: &[u8],
    out_len: usize,
    threads: u32,
    checks: bool,
) -> Result<(Vec<u8>, Vec<String>), Box<Fault>> {
    let module = fercuda_ptx::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let printed = fercuda_ptx::print(&module);
    assert!(fercuda_ptx::parse(&printed).unwrap() == module, "{printed}");
    assert_eq!(fercuda_ptx::check(&module), [], "{text}");
    assert_eq!(fercuda_ptx::check_operands(&module), [], "{text}");
    let image = compile(&module, &CompileOptions::default()).unwrap();
    let space = AddressSpace::new(64 * GRANULE, checks).unwrap();
    let (from, _from) = space.map_new(GRANULE, 1).unwrap();
    let (to, _to) = space.map_new(GRANULE, 1).unwrap();
    let (blocks, _blocks) = space.map_new(GRANULE, 1).unwrap();
    for (at, len) in [(from, input.len()), (to, out_len)] {
        let (kind, site) = (AllocKind::Device, DriverCallSite::default());
        space.add(at, len.max(1) as u64, kind, 0, None, site, true, None);
    }
    let sink = Arc::new(FindingSink::new());
    let context = checks.then(|| {
        let order = Arc::new(Order::new());
        CheckContext {
            options: Default::default(),
            op: order.begin(ActorId::HOST, OpKind::Kernel("k".into())),
            order,
            sink: sink.clone(),
        }
    });
    space.write(0, from, input, None).unwrap();
    let loaded = Loaded::new(image, Default::default()).unwrap();
    let spec = LaunchSpec {
        grid: [1, 1, 1],
        block: [threads, 1, 1],
        cluster: [1; 3],
        explicit_cluster: false,
        dynamic_shared_bytes: 0,
        params: [from.to_le_bytes(), to.to_le_bytes()].concat(),
        device: DeviceInfo::default(),
        cooperative: false,
        space: space.clone(),
        checks: context,
        watchdog: Some(Duration::from_secs(60)),
        late_copies: false,
        print: Arc::new(|_| {}),
        heap: Some(KernelHeap::new(space.clone(), 0, blocks, GRANULE)),
        bindings: Default::default(),
        cancel: None,
    };
    Executor::new(1).run(&loaded, 0, &spec)?;
    let mut out = vec![0; out_len];
    space.read(0, to, &mut out, None).unwrap();
    let findings = sink.take().iter().map(ToString::to_string).collect();
    Ok((out, findings))
}

/// What kernel `k` of `text` writes, with checks and without.
pub(crate) fn launch(text: &str, input: &[u8], out_len: usize, threads: u32) -> Vec<u8> {
    let outcome = |checks| run(text, input, out_len, threads, checks);
    let (plain, _) = outcome(false).unwrap_or_else(|fault| panic!("{fault:?}\n{text}"));
    let (checked, findings) = outcome(true).unwrap_or_else(|fault| panic!("{fault:?}\n{text}"));
    assert!(findings.is_empty(), "{findings:?}\n{text}");
    assert_eq!(plain, checked, "{text}");
    plain
}

/// The fault that ends kernel `k` of `text`.
pub(crate) fn fault(text: &str) -> String {
    match run(text, &[0; 64], 64, 32, false) {
        Ok(_) => panic!("no fault: {text}"),
        Err(fault) => format!("{fault:?}"),
    }
}

/// What checks find in kernel `k` of `text`.
pub(crate) fn findings(text: &str) -> Vec<String> {
    run(text, &[0; 64], 4096, 32, true).unwrap().1
}

/// `bytes` as words.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks();
    words.iter().copied().map(u32::from_le_bytes).collect()
}

/// Words as bytes.
pub(crate) fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A 32-bit value that is often at or near a limit.
pub(crate) fn word(random: &mut fastrand::Rng) -> u32 {
    match random.u32(0..4) {
        0 => [
            0,
            1,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0xffff,
            0x7fff_ffff,
            0x8000_0000,
            u32::MAX,
        ][random.usize(0..11)],
        1 => random.u32(0..40),
        _ => random.u32(..),
    }
}
