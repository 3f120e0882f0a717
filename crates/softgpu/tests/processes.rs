//! Two processes on one device's memory, and what a fork leaves behind.
#![allow(
    clippy::macro_metavars_in_unsafe,
    reason = "the macros call the driver; their callers argue the pointers"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test reports by panicking, and its figures are for people"
)]

#[allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by several test programs, each of which uses a part"
)]
#[macro_use]
#[path = "api/common.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use common::{Ctx, alloc, d, download, event, free, stream};
use fercuda_cuda_sys::types::*;

const ROLE: &str = "FERCUDA_TEST_ROLE";

fn hex(bytes: &[i8; 64]) -> String {
    bytes.iter().map(|&b| format!("{:02x}", b as u8)).collect()
}

fn unhex(text: &str) -> [i8; 64] {
    let mut bytes = [0; 64];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap() as i8;
    }
    bytes
}

/// This test binary again, running only the named test in the given role.
fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role);
    command
}

#[test]
fn memory_and_events_pass_between_processes() {
    if let Ok(handles) = std::env::var(ROLE) {
        return importer(&handles);
    }
    let _ctx = Ctx::new();
    let at = alloc(10_000);
    ok!(cuMemsetD8_v2(at, 0x11, 10_000));
    let e = event(2 | 4);
    let (mut memory, mut shared) = (CUipcMemHandle::default(), CUipcEventHandle::default());
    ok!(cuIpcGetMemHandle(&mut memory, at + 100));
    ok!(cuIpcGetEventHandle(&mut shared, e));
    let mut here = 0;
    fails!(
        CUDA_ERROR_INVALID_CONTEXT,
        cuIpcOpenMemHandle_v2(&mut here, memory, 1)
    );
    ok!(cuEventRecord(e, CUstream::NULL));
    let role = format!("{}:{}", hex(&memory.reserved), hex(&shared.reserved));
    let mut child = again("memory_and_events_pass_between_processes", &role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut wait_for = |what: &str| {
        while let Some(Ok(line)) = lines.next() {
            if line.contains(what) {
                return;
            }
        }
        panic!("the other process never said {what}");
    };
    wait_for("written");
    assert_eq!(download(at + 5000, 100), [0x22; 100]);
    // Once freed, the same handle opens nothing.
    free(at);
    child.stdin.as_mut().unwrap().write_all(b"freed\n").unwrap();
    wait_for("refused");
    assert!(child.wait().unwrap().success());
}

fn importer(handles: &str) {
    let (memory, shared) = handles.split_once(':').unwrap();
    let memory = CUipcMemHandle {
        reserved: unhex(memory),
    };
    let shared = CUipcEventHandle {
        reserved: unhex(shared),
    };
    let _ctx = Ctx::new();
    let (mut at, mut e) = (0, CUevent::NULL);
    ok!(cuIpcOpenMemHandle_v2(&mut at, memory, 1));
    ok!(cuIpcOpenEventHandle(&mut e, shared));
    let s = stream(1);
    ok!(cuStreamWaitEvent(s, e, 0));
    ok!(cuStreamSynchronize(s));
    assert_eq!(download(at, 10_000), [0x11; 10_000]);
    ok!(cuMemsetD8_v2(at + 5000, 0x22, 100));
    ok!(cuCtxSynchronize());
    println!("written");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let mut again = 0;
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuIpcOpenMemHandle_v2(&mut again, memory, 1)
    );
    let mut forged = memory;
    forged.reserved[40] ^= 1;
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuIpcOpenMemHandle_v2(&mut again, forged, 1)
    );
    ok!(cuIpcCloseMemHandle(at));
    fails!(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(at));
    println!("refused");
}

/// A copy of this process's file behind a descriptor, made as any program can make one.
fn copy_of(fd: u64, name: &std::ffi::CStr, seals: i32) -> std::os::fd::OwnedFd {
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    let bytes = std::fs::read(format!("/proc/self/fd/{fd}")).unwrap();
    // SAFETY: the name is a C string; the descriptor is fresh.
    let file = unsafe {
        let flags = libc::MFD_ALLOW_SEALING;
        OwnedFd::from_raw_fd(libc::memfd_create(name.as_ptr(), flags))
    };
    std::fs::File::from(file.try_clone().unwrap())
        .write_all(&bytes)
        .unwrap();
    // SAFETY: plain system call on our descriptor.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    assert_eq!(sealed, 0);
    file
}

/// Handles of a board that another process made up: only one whose size is sealed, and
/// whose name is a board's, is mapped.
#[test]
fn a_board_that_could_be_cut_or_has_another_name_is_refused() {
    use std::os::fd::AsRawFd as _;
    if let Ok(handles) = std::env::var(ROLE) {
        let _ctx = Ctx::new();
        for (number, handle) in handles.split(':').enumerate() {
            let memory = CUipcMemHandle {
                reserved: unhex(handle),
            };
            let mut at = 0;
            if number == 0 {
                ok!(cuIpcOpenMemHandle_v2(&mut at, memory, 1));
                ok!(cuIpcCloseMemHandle(at));
            } else {
                fails!(
                    CUDA_ERROR_INVALID_HANDLE,
                    cuIpcOpenMemHandle_v2(&mut at, memory, 1)
                );
            }
        }
        return;
    }
    let _ctx = Ctx::new();
    let at = alloc(10_000);
    let mut memory = CUipcMemHandle::default();
    ok!(cuIpcGetMemHandle(&mut memory, at));
    // The third word is the board's descriptor.
    let word = memory.reserved[16..24].iter().rev();
    let board = word.fold(0, |all, byte| all << 8 | u64::from(*byte as u8));
    let both = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let files = [
        copy_of(board, c"fercuda-device-board", both),
        copy_of(board, c"fercuda-device-board", 0),
        copy_of(board, c"fercuda-device-board", libc::F_SEAL_SHRINK),
        copy_of(board, c"x/memfd:fercuda-device-board", both),
    ];
    let handles = files.each_ref().map(|file| {
        let mut forged = memory;
        let number = (file.as_raw_fd() as u64).to_le_bytes();
        for (byte, new) in forged.reserved[16..24].iter_mut().zip(number) {
            *byte = new as i8;
        }
        hex(&forged.reserved)
    });
    let name = "a_board_that_could_be_cut_or_has_another_name_is_refused";
    let child = again(name, &handles.join(":")).output().unwrap();
    assert!(child.status.success(), "{child:?}");
    free(at);
}

#[test]
fn a_forked_child_gets_not_initialized() {
    let _ctx = Ctx::new();
    d();
    // SAFETY: the child calls the driver's error paths and `_exit`, which take no lock that another
    // thread may hold.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above; no pointers but to this frame.
        let codes = unsafe {
            let mut at = 0;
            [
                d().cuMemAlloc_v2(&mut at, 16),
                d().cuInit(0),
                d().cuCtxSynchronize(),
            ]
        };
        let all = codes
            .iter()
            .all(|c| matches!(c, Ok(CUresult::CUDA_ERROR_NOT_INITIALIZED)));
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(if all { 0 } else { 1 }) };
    }
    let mut status = 1;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
}

#[test]
fn a_process_may_end_with_work_in_flight() {
    unsafe extern "C" fn nap(_: *mut std::ffi::c_void) {
        std::thread::sleep(std::time::Duration::from_secs(30));
    }
    if std::env::var(ROLE).is_ok() {
        let _ctx = std::mem::ManuallyDrop::new(Ctx::new());
        let s = stream(1);
        ok!(cuLaunchHostFunc(s, Some(nap), std::ptr::null_mut()));
        ok!(cuMemsetD8Async(alloc(1 << 20), 1, 1 << 20, s));
        std::process::exit(7);
    }
    let begin = std::time::Instant::now();
    let status = again("a_process_may_end_with_work_in_flight", "1")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(7));
    assert!(begin.elapsed() < std::time::Duration::from_secs(20));
}

#[test]
fn an_exported_event_gives_its_place_back_with_its_context() {
    // More than there are places.
    for _ in 0..4200 {
        let _ctx = Ctx::new();
        let mut handle = CUipcEventHandle::default();
        ok!(cuIpcGetEventHandle(&mut handle, event(2 | 4)));
    }
}

unsafe extern "C" fn note(seen: *mut std::ffi::c_void) {
    // SAFETY: the one caller passes a live AtomicU32.
    unsafe { &*seen.cast::<std::sync::atomic::AtomicU32>() }
        .fetch_add(1, std::sync::atomic::Ordering::AcqRel);
}

/// Whether every other thread of this process waits for something.
fn others_sleep() -> bool {
    // SAFETY: plain system call.
    let own = unsafe { libc::gettid() }.to_string();
    std::fs::read_dir("/proc/self/task").unwrap().all(|task| {
        let task = task.unwrap();
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        task.file_name() == *own || !stat.contains(") R ")
    })
}

#[test]
fn work_is_done_also_where_no_thread_can_be_had() {
    if std::env::var(ROLE).is_err() {
        let role = "few threads";
        let test = "work_is_done_also_where_no_thread_can_be_had";
        // Kept from standard output, where it would mix with what other tests say.
        let output = again(test, role).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let _ctx = Ctx::new();
    let s = stream(1);
    // Threads that are still starting need memory of their own.
    std::thread::sleep(std::time::Duration::from_millis(200));
    while !others_sleep() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    // Room for this and that, not for a thread's stack.
    let room = pages * 4096 + (4 << 20);
    let limit = libc::rlimit {
        rlim_cur: room,
        rlim_max: room,
    };
    // SAFETY: plain system call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let seen = std::sync::atomic::AtomicU32::new(0);
    let begin = std::time::Instant::now();
    for _ in 0..20 {
        let data = (&raw const seen).cast_mut().cast();
        ok!(cuLaunchHostFunc(s, Some(note), data));
    }
    ok!(cuStreamSynchronize(s));
    assert_eq!(seen.load(std::sync::atomic::Ordering::Acquire), 20);
    // Each used to wait for more work with the context's streams locked, two seconds long.
    assert!(begin.elapsed() < std::time::Duration::from_secs(10));
}
