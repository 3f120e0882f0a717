//! Tests of the whole filesystem: random programs checked against a reference model, with
//! shrinking, and concurrent threads.

mod concurrent;
mod model;
mod ops;
mod world;

use std::fs::OpenOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use bytemuck::Zeroable as _;
use ops::{Failures, Program, program};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use world::{Tally, World};

use fercuda_cuda::{Context, Cuda};
use fercuda_trials::{Budget, Work, seeds};

use super::*;
use crate::file::tests::{memory, seed};
use crate::medium::Verify;
use crate::mount::{StoreGeometry, store};

impl<M: Medium + 'static> RequestHandler<M> {
    /// [`RequestHandler::write`], returning the number of bytes acknowledged.
    fn write_all(
        &self,
        inode: u32,
        offset: u64,
        bytes: &[u8],
        clears_suid_for: Option<Credentials>,
    ) -> SysResult<usize> {
        let file = self.tree.file(inode)?;
        let (written, pending) =
            self.write((inode, &file), offset, bytes, clears_suid_for, false)?;
        pending.finish()?;
        Ok(written)
    }
}

/// Calls of one kind of programs.
const CALLS: Work = Work {
    name: "vramfs-calls",
    least: 20_000,
    ci_seconds: 7,
    soak: 333_334,
};
/// Calls of worker threads, side by side.
const CONCURRENT_CALLS: Work = Work {
    name: "vramfs-concurrent-calls",
    least: 20_000,
    ci_seconds: 0,
    soak: 50_000,
};
/// The same over kernels of the software device.
const CODED_CALLS: Work = Work {
    name: "vramfs-coded-calls",
    least: 60,
    ci_seconds: 0,
    soak: 133,
};

/// Runs a program; a panic counts as an error.
fn run(program: &Program, failures: Failures) -> Result<Tally, String> {
    let run = || World::run(program, failures == Failures::Lost);
    let answer = catch_unwind(AssertUnwindSafe(run));
    answer.unwrap_or_else(|why| {
        let why = why.downcast::<String>().map(|it| *it);
        let why = why.or_else(|it| it.downcast::<&str>().map(|it| (*it).to_owned()));
        Err(why.unwrap_or_default())
    })
}

/// Removes the calls that a failing program does not need to fail; also returns the error.
fn shorten(mut program: Program, failures: Failures) -> (Program, String) {
    let mut why = run(&program, failures).err().unwrap_or_default();
    let mut left = usize::MAX;
    while program.ops.len() < left {
        left = program.ops.len();
        for at in (0..left).rev() {
            let mut less = program.clone();
            less.ops.remove(at);
            if let Err(error) = run(&less, failures) {
                (program, why) = (less, error);
            }
        }
    }
    (program, why)
}

fn hold(failures: Failures) {
    for (name, seed) in seeds(env!("CARGO_MANIFEST_DIR"), CALLS) {
        println!("{name}: FERCUDA_SEED={seed}");
        hold_from(seed, failures);
    }
}

fn hold_from(first: u64, failures: Failures) {
    const PROGRAMS: u32 = 50;
    let (budget, begin, mut done) = (Budget::begin(CALLS), Instant::now(), 0);
    let mut tally = Tally::default();
    for seed in first.. {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let config = Config {
            cases: PROGRAMS,
            failure_persistence: None,
            max_shrink_iters: 5000,
            ..Config::default()
        };
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config, random);
        let met = Mutex::new((0, Tally::default(), false));
        let answer = runner.run(&program(failures), |program| {
            let answer = run(&program, failures);
            let (calls, tally, has_failed) = &mut *met.lock().unwrap();
            // Runs after a failure only shrink the program.
            *calls += if *has_failed { 0 } else { program.ops.len() };
            *has_failed |= answer.is_err();
            answer.map(|it| tally.add(&it)).map_err(TestCaseError::fail)
        });
        let met = met.into_inner().unwrap();
        done += met.0;
        tally.add(&met.1);
        match answer {
            Ok(()) => {}
            Err(TestError::Fail(_, program)) => {
                let (program, why) = shorten(program, failures);
                let calls = program.ops.iter().map(|it| format!("{it:?}\n"));
                panic!(
                    "FERCUDA_SEED={seed}: {why}\nafter {done} calls in {:?}; the shortest are, with {} blocks and {} inodes:\n{}",
                    begin.elapsed(),
                    program.blocks,
                    program.inodes,
                    calls.collect::<String>()
                );
            }
            Err(error) => panic!("FERCUDA_SEED={seed}: {error}"),
        }
        if !budget.has_left(done as u64) {
            break;
        }
    }
    let rate = done as f64 / begin.elapsed().as_secs_f64();
    eprintln!("{failures:?}: {done} calls, {rate:.0} a second, {tally:?}");
    // The programs met each situation often enough.
    let often = done as u64 / 2000;
    let met = [tally.full, tally.moved, tally.corrected, tally.nameless];
    assert!(met.iter().all(|it| *it > often), "{tally:?}");
    let has_failed = failures != Failures::Corrected;
    assert_eq!(tally.failed > often, has_failed, "{tally:?}");
    let has_lost = failures == Failures::Lost;
    assert_eq!(tally.lost > often, has_lost, "{tally:?}");
}

#[test]
fn random_programs_match_the_reference_model() {
    hold(Failures::Corrected);
}

#[test]
fn programs_on_failing_memory_lose_no_acknowledged_change() {
    hold(Failures::Refused);
}

#[test]
fn programs_on_memory_that_loses_blocks_lose_only_their_content() {
    hold(Failures::Lost);
}

#[test]
fn random_requests_are_answered_without_a_panic() {
    const HEADER: usize = size_of::<wire::Header>();
    let seed = seed();
    let mut random = Rng::with_seed(seed);
    let (_memory, store) = memory(4);
    let handler = world::handler(store, 50, THREADS);
    let kernel = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let (mut body, mut done) = (Vec::new(), 0);
    for step in 0..20_000 {
        let mut header = wire::Header::zeroed();
        header.opcode = random.u32(0..56);
        header.nodeid = match random.u8(..10) {
            0 => random.u64(..),
            _ => random.u64(..8),
        };
        // Small numbers, or numbers with all bits set, with a name in between now and then.
        let mut bytes = vec![0; HEADER];
        while bytes.len() < HEADER + random.usize(..120) {
            match random.u8(..8) {
                0 => bytes.extend(random.u64(..).to_le_bytes()),
                1 => bytes.extend([b'a' + random.u8(..4), 0]),
                2 => bytes.extend(u32::MAX.to_le_bytes()),
                3 => bytes.extend(b"user.it\0"),
                _ => bytes.extend(random.u32(..300).to_le_bytes()),
            }
        }
        header.len = bytes.len() as u32;
        bytes[..HEADER].copy_from_slice(bytemuck::bytes_of(&header));
        let mut call = wire::KernelRequest::new(&bytes).unwrap();
        let mut reply = wire::Reply::new(&kernel, step, &mut body);
        let answer = catch_unwind(AssertUnwindSafe(|| handler.answer(&mut call, &mut reply)));
        let answer =
            answer.unwrap_or_else(|_| panic!("FERCUDA_SEED={seed}: step {step}, {header:?}"));
        done += usize::from(answer.is_ok());
        reply.complete(answer);
    }
    assert!(done > 2_000, "{done} of them meant anything");
}

#[test]
fn fsync_reports_a_device_failure_after_an_acknowledged_write() {
    let (memory, store) = memory(4);
    let handler = world::handler(store, 50, THREADS);
    let tree = &handler.tree;
    let mode = libc::S_IFREG | 0o600;
    let caller = Credentials {
        user: 0,
        group: 0,
        umask: 0,
    };
    let inode = tree
        .make(ROOT, b"it", mode, 0, caller, now())
        .unwrap()
        .inode;
    let kernel = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let ask = |opcode, body: &[u8]| {
        let mut request = wire::Header::zeroed();
        request.opcode = opcode;
        request.nodeid = inode.into();
        request.len = (size_of::<wire::Header>() + body.len()) as u32;
        let bytes = [bytemuck::bytes_of(&request), body].concat();
        let mut call = wire::KernelRequest::new(&bytes).unwrap();
        let mut body = Vec::new();
        let mut reply = wire::Reply::new(&kernel, 1, &mut body);
        let answer = handler.answer(&mut call, &mut reply);
        reply.complete(answer);
        answer
    };
    // The file handle and the datasync flag are ignored.
    let sync = || ask(wire::operation::FSYNC, &[0; 16]);
    let write = |flags: i32| {
        let mut it = wire::WriteIn::zeroed();
        (it.size, it.flags) = (PAGE_BYTES as u32, flags as u32);
        let body = [bytemuck::bytes_of(&it), &[7; PAGE_BYTES]].concat();
        let before = handler.writes.bytes();
        let answer = ask(wire::operation::WRITE, &body);
        (answer, handler.writes.bytes() - before)
    };
    let page = PAGE_BYTES as u64;
    assert_eq!(write(0), (Ok(()), page));
    assert_eq!(sync(), Ok(()));
    memory.yields.store(true, Relaxed);
    // A synchronous writer gets the error from its own write.
    for (flags, acked) in [(libc::O_DSYNC, 0), (libc::O_SYNC, 0), (0, page)] {
        memory.fails_then.store(1, Relaxed);
        assert_eq!(write(flags), (Err(Errno::IO), acked));
        assert_eq!(sync().is_err(), acked > 0);
    }
    assert_eq!(write(libc::O_SYNC), (Ok(()), page));
    assert_eq!(sync(), Err(Errno::IO));
    assert!(handler.figures().contains("\nunkept_writes 1\n"));
}

/// Worker threads.
const THREADS: usize = 8;

#[test]
fn threads_find_their_bytes_during_scrubbing_faults_and_resizes() {
    const BLOCKS: u32 = 48;
    let (memory, store) = memory(BLOCKS);
    memory.has_code.store(true, Relaxed);
    memory.yields.store(true, Relaxed);
    let handler = world::handler(store, 200, THREADS);
    let calls = Budget::begin(CONCURRENT_CALLS).planned_steps() as u32;
    concurrent::work(
        &handler,
        20..BLOCKS.into(),
        calls,
        &mut Rng::with_seed(seed()),
    );
}

#[test]
fn threads_on_a_device_with_error_correction_find_their_bytes() {
    const BLOCKS: u64 = 48;
    let device = Cuda::from_env().unwrap().device(0).unwrap();
    let context = Context::primary(device).unwrap();
    let shape = StoreGeometry {
        size_bytes: BLOCKS * DATA_BYTES as u64,
        has_code: true,
        verify: Verify::Read,
        threads: THREADS,
    };
    let handler = world::handler(
        store(&context, &shape, &crate::Kernels::load).unwrap(),
        200,
        THREADS,
    );
    let calls = Budget::begin(CODED_CALLS).planned_steps() as u32;
    concurrent::work(&handler, 20..BLOCKS, calls, &mut Rng::with_seed(seed()));
    let found = fercuda_softgpu::control::take_findings();
    assert!(found.is_empty(), "{found:#?}");
}
