//! The software device's checks in a session: accesses that leave a buffer of any size, whatever
//! lies beside it. In a process of its own, since what is pooled is settled once a process.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and this one launches a kernel that leaves its buffer"
)]

use std::process::Command;

use fercuda_cuda::{Image, Launch, Module};
use fercuda_runtime::{Dtype, Layout, Regime, Runtime, RuntimeConfig, Session, SessionConfig};
use fercuda_softgpu::control;
use fercuda_softgpu::report::FindingKind;

/// Reads the word at `p + offset` and writes it back.
const TOUCH: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry touch(.param .u64 p, .param .s64 offset)
{
    .reg .b64 %d<4>;
    .reg .b32 %r<2>;
    ld.param.u64 %d1, [p];
    ld.param.s64 %d2, [offset];
    add.s64 %d3, %d1, %d2;
    ld.global.u32 %r1, [%d3];
    st.global.u32 [%d3], %r1;
    ret;
}
";

const SIZES: [u64; 12] = [
    4,
    100,
    256,
    512,
    1000,
    4096,
    65536,
    1 << 20,
    (1 << 20) + 512,
    2 << 20,
    (2 << 20) + 4,
    32 << 20,
];

/// Launches the kernel on an address; returns the kinds of what was found.
fn touch(session: &Session, address: u64, offset: i64) -> Vec<FindingKind> {
    let job = session.submit(move |stream| {
        let module = Module::load(stream.context(), &Image::ptx(TOUCH))?;
        let touch = module.function("touch")?;
        // SAFETY: that it leaves its buffer is intended; the device makes no such access.
        unsafe { Launch::new(1, 1).run(&touch, stream, (address, offset)) }?;
        stream.synchronize()?;
        Ok(())
    });
    job.unwrap().wait().unwrap();
    let findings = control::take_findings();
    findings.iter().map(|finding| finding.kind).collect()
}

fn plant(regime: Regime) {
    let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
    let session = runtime.session("bounds", SessionConfig::default()).unwrap();
    for bytes in SIZES {
        let layout = || Layout::contiguous(Dtype::U8, &[bytes]).unwrap();
        let ids: Vec<_> = (0..3)
            .map(|_| session.alloc(layout(), regime).unwrap())
            .collect();
        for &id in &ids {
            let address = session.export(id).unwrap().address.0;
            session.fill_bytes(id, 0).unwrap();
            session.synchronize().unwrap();
            assert_eq!(touch(&session, address, 0), [], "{regime} {bytes}");
            let end = bytes as i64;
            for outside in [end, end + 4092, -4, -4096] {
                let found = touch(&session, address, outside);
                assert_eq!(found.len(), 2, "{regime} {bytes} at {outside}: {found:?}");
                let all_out = found.iter().all(|kind| *kind == FindingKind::OutOfBounds);
                assert!(all_out, "{regime} {bytes} at {outside}: {found:?}");
            }
        }
        for id in ids {
            session.free(id).unwrap();
        }
    }
}

/// Set in the process in which the kernels run.
const CHILD: &str = "RUNTIME_BOUNDS_CHILD";

#[test]
fn an_access_outside_a_buffer_of_any_size_is_found() {
    if std::env::var_os(CHILD).is_some() {
        for regime in [Regime::Pool, Regime::Managed, Regime::Pinned] {
            plant(regime);
        }
        return;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_access_outside_a_buffer_of_any_size_is_found"])
        .env(CHILD, "1")
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "1")
        .env("FERCUDA_SOFT_CHECK_EXIT", "0")
        .env_remove("FERCUDA_BACKING")
        .status();
    assert!(status.unwrap().success());
}
