//! The software device's checks in a session: accesses that leave a buffer of any size, whatever
//! lies beside it, come before its first write or after its freeing. In a process of its own, since
//! what is pooled is settled once a process.
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

/// 64 sizes: powers of two, a word more, half as much again, 512 bytes more.
fn sizes() -> impl Iterator<Item = u64> {
    (2..18).flat_map(|shift| {
        let power: u64 = 1 << shift;
        [
            power,
            power + 4,
            (power + power / 2).next_multiple_of(4),
            power + 512,
        ]
    })
}

/// Larger ones, up to several strides of a pool.
const LARGE: [u64; 4] = [(1 << 20) + 512, 2 << 20, (2 << 20) + 4, 32 << 20];

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

/// Three buffers side by side; the kernel leaves the middle one on both sides, and uses it before
/// anything is written and after it is freed.
fn plant(session: &Session, regime: Regime, bytes: u64) {
    let layout = || Layout::contiguous(Dtype::U8, &[bytes]).unwrap();
    let ids = [(); 3].map(|()| session.alloc(layout(), regime).unwrap());
    let address = session.export(ids[1]).unwrap().address.0;
    // The host may have written managed and pinned memory unseen.
    let fresh = match regime {
        Regime::Pool => vec![FindingKind::Uninitialised],
        _ => Vec::new(),
    };
    let at = |place: &str| format!("{regime}, {bytes} bytes, {place}");
    assert_eq!(touch(session, address, 0), fresh, "{}", at("fresh"));
    session.fill_bytes(ids[1], 0).unwrap();
    session.synchronize().unwrap();
    let last = bytes as i64 - 4;
    for inside in [0, last] {
        assert_eq!(touch(session, address, inside), [], "{}", at("inside"));
    }
    let both = |kind| vec![kind; 2];
    for outside in [last + 4, last + 4096, -4, -4096] {
        let found = touch(session, address, outside);
        assert_eq!(
            found,
            both(FindingKind::OutOfBounds),
            "{}",
            at(&format!("at {outside}"))
        );
    }
    session.free(ids[1]).unwrap();
    let found = touch(session, address, 0);
    assert_eq!(found, both(FindingKind::UseAfterFree), "{}", at("freed"));
    session.free(ids[0]).unwrap();
    session.free(ids[2]).unwrap();
}

/// Set in the process in which the kernels run.
const CHILD: &str = "RUNTIME_BOUNDS_CHILD";

#[test]
fn an_access_outside_a_live_buffer_of_any_size_is_found() {
    if std::env::var_os(CHILD).is_some() {
        let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
        let session = runtime.session("bounds", SessionConfig::default()).unwrap();
        for bytes in sizes().chain(LARGE) {
            plant(&session, Regime::Pool, bytes);
        }
        for bytes in sizes().step_by(7) {
            plant(&session, Regime::Managed, bytes);
            plant(&session, Regime::Pinned, bytes);
        }
        return;
    }
    let run = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "an_access_outside_a_live_buffer_of_any_size_is_found",
        ])
        .env(CHILD, "1")
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "1")
        .env("FERCUDA_SOFT_CHECK_EXIT", "0")
        .env_remove("FERCUDA_BACKING")
        .output()
        .unwrap();
    // Findings are printed on standard error.
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}");
}
