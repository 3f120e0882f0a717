//! Sessions, buffers, jobs and reboots on a device: the software device with two ordinals, or GPUs
//! with `FERCUDA_DEVICE=gpu`. One test at a time; at its end no session holds anything, by the
//! ledger, and the device's checks have found nothing.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    unsafe_code,
    reason = "a test reports by panicking, its seed is for people, and it lends memory and launches kernels"
)]

mod bench;
mod lending;

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bench::Bench;
use fastrand::Rng;
use fercuda_cuda::sys::types::CUresult;
use fercuda_cuda::{CaptureMode, DeviceBuffer, DriverFailure, Image, Launch, Module, Stream};
use fercuda_runtime::{
    Argument, BufferId, Dtype, EndReason, Error, Job, Layout, Regime, Runtime, RuntimeConfig,
    Session, SessionConfig, Status,
};
use lending::Slab;

const LONG: Duration = Duration::from_secs(60);

const REGIMES: [Regime; 4] = [
    Regime::Pool,
    Regime::Driver,
    Regime::Managed,
    Regime::Pinned,
];

fn random() -> Rng {
    let random = Rng::new();
    eprintln!("seed {}", random.get_seed());
    random
}

fn bytes_for(layout: &Layout, random: &mut Rng) -> Vec<u8> {
    let most = if layout.dtype() == Dtype::Bool {
        1
    } else {
        255
    };
    (0..layout.bytes()).map(|_| random.u8(0..=most)).collect()
}

/// A random layout, with its elements in any order.
fn layout(random: &mut Rng) -> Layout {
    let dtype = Dtype::ALL[random.usize(0..Dtype::ALL.len())];
    let shape: Vec<u64> = (0..random.usize(0..4)).map(|_| random.u64(0..6)).collect();
    let whole = Layout::contiguous(dtype, &shape).unwrap();
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if random.bool() {
        random.shuffle(&mut order);
    }
    whole.permute(&order).unwrap()
}

#[test]
fn values_come_back_from_every_regime() {
    let bench = Bench::new();
    let mut random = random();
    let session = bench.session("values");
    for round in 0..40 {
        let regime = REGIMES[round % REGIMES.len()];
        let layout = layout(&mut random);
        let id = session.alloc(layout, regime).unwrap();
        assert_eq!(session.regime(id).unwrap(), regime);
        assert_eq!(session.layout(id).unwrap(), layout);
        let bytes = bytes_for(&layout, &mut random);
        session.upload_bytes(id, &bytes).unwrap();
        assert_eq!(session.download_bytes(id).unwrap(), bytes, "{regime}");
        if random.bool() {
            session.free(id).unwrap();
        }
    }
    let id = session.buffer(&[2, 2], &[1.5f32, -2.0, 3.0, 0.25]).unwrap();
    assert_eq!(session.download::<f32>(id).unwrap(), [1.5, -2.0, 3.0, 0.25]);
    session.close().unwrap();
    assert_eq!(session.held_bytes(), 0);
}

/// Naive model of a handle: offsets in a memory, which several handles may share.
struct Model {
    memory: Arc<Mutex<Vec<u8>>>,
    layout: Layout,
    first: i64,
}

impl Model {
    /// Offset of each element.
    fn places(&self) -> Vec<usize> {
        let size = self.layout.dtype().bytes() as i64;
        let mut places = vec![self.first];
        for (len, stride) in self.layout.shape().iter().zip(self.layout.strides()) {
            let along = |at: i64| (0..*len as i64).map(move |index| at + index * stride * size);
            places = places.into_iter().flat_map(along).collect();
        }
        places.into_iter().map(|at| at as usize).collect()
    }

    fn get(&self) -> Vec<u8> {
        let (size, memory) = (
            self.layout.dtype().bytes() as usize,
            self.memory.lock().unwrap(),
        );
        let at = |place: usize| memory[place..place + size].to_vec();
        self.places().into_iter().flat_map(at).collect()
    }

    fn put(&self, bytes: &[u8]) {
        let size = self.layout.dtype().bytes() as usize;
        let mut memory = self.memory.lock().unwrap();
        for (place, value) in self.places().into_iter().zip(bytes.chunks(size)) {
            memory[place..place + size].copy_from_slice(value);
        }
    }
}

/// A view of a layout, and its offset.
fn view_of(layout: &Layout, random: &mut Rng) -> (Layout, i64) {
    let rank = layout.shape().len();
    if rank == 0 {
        return (*layout, 0);
    }
    let dimension = random.usize(0..rank);
    let len = layout.shape()[dimension];
    let from = random.u64(0..=len);
    let until = random.u64(from..=len);
    layout
        .slice(dimension, from..until, random.u64(1..3))
        .unwrap()
}

/// Random programs of two sessions, against the model: every handle has the model's values, freed
/// handles are refused, and nothing is held in the end.
#[test]
fn random_programs_match_the_model() {
    let bench = Bench::new();
    let mut random = random();
    for round in 0..6 {
        let context = bench.runtime.context();
        let slabs = [0, 1].map(|_| Slab::new(&context, 1 << 20));
        let sessions = [0, 1].map(|at| {
            let (name, config) = (format!("program {round} {at}"), SessionConfig::default());
            let slab = slabs[at].clone();
            let opened = bench.runtime.session_with_allocator(&name, config, slab);
            opened.unwrap()
        });
        let mut live: Vec<HashMap<BufferId, Model>> = vec![HashMap::new(), HashMap::new()];
        let mut gone: Vec<(usize, BufferId)> = Vec::new();
        for _ in 0..150 {
            let of = random.usize(0..2);
            let session = &sessions[of];
            let ids: Vec<BufferId> = live[of].keys().copied().collect();
            let Some(id) = random.choice(ids.clone()).filter(|_| ids.len() > 3) else {
                let layout = layout(&mut random);
                let regimes = [&REGIMES[..], &[Regime::Callbacks; 2]].concat();
                let regime = regimes[random.usize(0..regimes.len())];
                let id = session.alloc(layout, regime).unwrap();
                let bytes = bytes_for(&layout, &mut random);
                session.upload_bytes(id, &bytes).unwrap();
                let model = Model {
                    memory: Arc::new(Mutex::new(vec![0; layout.bytes() as usize])),
                    layout,
                    first: layout.reach_bytes().start.abs(),
                };
                model.put(&bytes);
                assert!(live[of].insert(id, model).is_none());
                continue;
            };
            match random.u8(0..8) {
                0 => {
                    session.free(id).unwrap();
                    live[of].remove(&id);
                    gone.push((of, id));
                }
                1 => {
                    let model = &live[of][&id];
                    let (layout, from) = view_of(&model.layout, &mut random);
                    let view = session.view(id, |_| Ok((layout, from))).unwrap();
                    let model = Model {
                        memory: model.memory.clone(),
                        layout,
                        first: model.first + from,
                    };
                    live[of].insert(view, model);
                }
                2 => {
                    let model = &live[of][&id];
                    let bytes = bytes_for(&model.layout, &mut random);
                    session.upload_async(id, bytes.clone()).unwrap();
                    model.put(&bytes);
                }
                3 => {
                    let model = &live[of][&id];
                    session.fill_bytes(id, 1).unwrap();
                    model.put(&vec![1; model.layout.bytes() as usize]);
                }
                4 | 5 => {
                    let (from, model) = (random.usize(0..2), &live[of][&id]);
                    let like = live[from].iter().find(|(other, it)| {
                        **other != id
                            && it.layout.dtype() == model.layout.dtype()
                            && it.layout.shape() == model.layout.shape()
                    });
                    if let Some((source, it)) = like {
                        session.copy(id, &sessions[from], *source).unwrap();
                        let bytes = it.get();
                        model.put(&bytes);
                    }
                }
                6 if !gone.is_empty() => {
                    let (of, id) = gone[random.usize(0..gone.len())];
                    let refused = sessions[of].download_bytes(id).unwrap_err();
                    assert!(matches!(refused, Error::Stale(_)), "{refused}");
                    let foreign = sessions[1 - of].layout(id).unwrap_err();
                    assert!(foreign.to_string().contains("session"), "{foreign}");
                }
                _ => {
                    let got = match random.bool() {
                        true => session.download_async(id).unwrap().wait(),
                        false => session.download_bytes(id),
                    };
                    assert_eq!(got.unwrap(), live[of][&id].get());
                }
            }
        }
        for (of, ids) in live.iter().enumerate() {
            for (id, model) in ids {
                assert_eq!(sessions[of].download_bytes(*id).unwrap(), model.get());
            }
            sessions[of].close().unwrap();
            assert_eq!(sessions[of].held_bytes(), 0);
            assert_eq!(slabs[of].given(), 0);
        }
    }
}

#[test]
fn mismatches_are_refused_with_numbers() {
    let bench = Bench::new();
    let limit_bytes = Some(4096);
    let session = bench
        .runtime
        .session("small", SessionConfig { limit_bytes })
        .unwrap();
    let id = session.buffer(&[2, 3], &[1i32, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(session.held_bytes(), 512);
    let says = |error: Error, parts: &[&str]| {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    };
    let piece = Layout::contiguous(Dtype::U8, &[1]).unwrap();
    // Physical memory comes in whole granules, which count.
    assert!(matches!(
        session.alloc(piece, Regime::Driver),
        Err(Error::Limit(_))
    ));
    let too_much = Layout::contiguous(Dtype::U8, &[4096]).unwrap();
    let refused = session.alloc(too_much, Regime::Pool).unwrap_err();
    says(refused, &["small", "4.0 KiB", "512 B", "try:"]);
    says(
        session.upload(id, &[1.0f32; 6]).unwrap_err(),
        &["i32", "f32"],
    );
    says(
        session.upload(id, &[1i32; 5]).unwrap_err(),
        &["20 bytes", "[2, 3]", "24"],
    );
    says(session.download::<u8>(id).unwrap_err(), &["i32", "u8"]);
    let beyond = Layout::contiguous(Dtype::I32, &[7]).unwrap();
    says(
        session.view(id, |_| Ok((beyond, 0))).unwrap_err(),
        &["28", "24"],
    );
    says(
        session.view(id, |_| Ok((beyond, i64::MAX))).unwrap_err(),
        &["24"],
    );
    says(session.view(id, |_| Ok((beyond, -4))).unwrap_err(), &["-4"]);
    let one = Layout::contiguous(Dtype::I32, &[1]).unwrap();
    says(
        session.view(id, |_| Ok((one, 2))).unwrap_err(),
        &["multiple of the 4"],
    );
    let woven = Layout::strided(Dtype::I32, &[4, 4], &[1, 1]).unwrap();
    says(
        session.alloc(woven, Regime::Pool).unwrap_err(),
        &["[4, 4]", "may overlap"],
    );
    let all_one = session.view(id, |it| {
        Ok((it.slice(0, 0..1, 1)?.0.broadcast(&[2, 3])?, 0))
    });
    let all_one = all_one.unwrap();
    assert_eq!(
        session.download::<i32>(all_one).unwrap(),
        [1, 2, 3, 1, 2, 3]
    );
    says(
        session.upload(all_one, &[0i32; 6]).unwrap_err(),
        &["may overlap"],
    );
    let flag = Layout::contiguous(Dtype::Bool, &[2]).unwrap();
    let flag = session.alloc(flag, Regime::Pool).unwrap();
    says(
        session.upload_bytes(flag, &[1, 2]).unwrap_err(),
        &["byte 1 is 2"],
    );
    let other = session.buffer(&[3, 2], &[0i32; 6]).unwrap();
    says(
        session.copy(other, &session, id).unwrap_err(),
        &["[2, 3]", "[3, 2]"],
    );
    assert!(matches!(
        bench.runtime.session("small", SessionConfig::default()),
        Err(Error::Name { .. })
    ));
    session.free(id).unwrap();
    says(session.free(id).unwrap_err(), &["freed"]);
    session.close().unwrap();
    says(
        session.alloc(one, Regime::Pool).unwrap_err(),
        &["small", "closed", "try:"],
    );
    // Its name is available again.
    bench.session("small").close().unwrap();
}

#[test]
fn out_of_memory_error_lists_the_holders() {
    let bench = Bench::new();
    let session = bench.session("greedy");
    let one = session.alloc(
        Layout::contiguous(Dtype::U8, &[1 << 20]).unwrap(),
        Regime::Pool,
    );
    let total = bench.runtime.memory().unwrap().total_bytes;
    let all = Layout::contiguous(Dtype::U8, &[total]).unwrap();
    let refused = session.alloc(all, Regime::Pool).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
    assert!(refused.to_string().contains("greedy 1.0 MiB"), "{refused}");
    session.free(one.unwrap()).unwrap();
    session.close().unwrap();
}

#[test]
fn session_is_a_tenant_under_its_name() {
    let bench = Bench::new();
    let (a, b) = (bench.session("tenant a"), bench.session("tenant b"));
    let layout = Layout::contiguous(Dtype::U8, &[3 << 20]).unwrap();
    let held = |name: &str| {
        let holders = bench.runtime.holders();
        holders.into_iter().find(|it| it.tenant == name)
    };
    let kept = a.alloc(layout, Regime::Pool).unwrap();
    b.alloc(layout, Regime::Managed).unwrap();
    b.alloc(layout, Regime::Pinned).unwrap();
    b.alloc(layout, Regime::Driver).unwrap();
    assert_eq!(held("tenant a").unwrap().pooled_bytes, 3 << 20);
    let of_b = held("tenant b").unwrap();
    assert_eq!(of_b.pooled_bytes, 0);
    assert!(of_b.governed_bytes >= 9 << 20, "{of_b:?}");
    // In a job too.
    let made = a.submit(|stream| Ok(DeviceBuffer::<u8>::alloc_ordered(stream, 1 << 20)?));
    let made = made.unwrap().wait().unwrap();
    assert_eq!(held("tenant a").unwrap().pooled_bytes, 4 << 20);
    drop(made);
    a.free(kept).unwrap();
    a.close().unwrap();
    b.close().unwrap();
    assert_eq!(held("tenant a"), None);
    assert_eq!(held("tenant b"), None);
}

#[test]
fn imported_memory_is_released_once_behind_its_last_use() {
    let bench = Bench::new();
    let session = bench.session("borrower");
    let stream = Stream::new(&bench.runtime.context()).unwrap();
    let lent = DeviceBuffer::<u8>::zeroed(&stream, 64).unwrap();
    stream.synchronize().unwrap();
    let ends = Arc::new(AtomicU32::new(0));
    let layout = Layout::contiguous(Dtype::U32, &[16]).unwrap();
    let heard = ends.clone();
    // SAFETY: `lent` outlives the session.
    let id = unsafe {
        session.import(lent.address(), layout, move || {
            heard.fetch_add(1, Ordering::SeqCst);
            panic!("a deleter that throws");
        })
    };
    let id = id.unwrap();
    assert_eq!(session.regime(id).unwrap(), Regime::Foreign);
    let half = session.view(id, |it| Ok(it.slice(0, 8..16, 1)?)).unwrap();
    session.upload(half, &[7u32; 8]).unwrap();
    assert!(!session.is_exported(id).unwrap());
    assert_eq!(
        session.export(half).unwrap().address.0,
        lent.address().0 + 32
    );
    assert!(session.is_exported(half).unwrap());
    session.free(id).unwrap();
    assert_eq!(ends.load(Ordering::SeqCst), 0, "another handle leads there");
    session.free(half).unwrap();
    assert_eq!(ends.load(Ordering::SeqCst), 1);
    let values = lent.to_vec(&stream).unwrap();
    assert_eq!(&values[32..36], [7, 0, 0, 0]);
    // SAFETY: it is refused.
    let nowhere = unsafe { session.import(fercuda_cuda::DeviceAddr(0), layout, || {}) };
    assert!(nowhere.is_err());
    drop(lent);
    session.close().unwrap();
}

const SCALE: &str = "
.version 8.0
.target sm_80
.address_size 64
// x[i] *= factor, for each of `count`
.visible .entry scale(.param .u64 x, .param .f32 factor, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .f32 %f<3>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [x];
    ld.param.f32 %f1, [factor];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 ret;
    cvta.to.global.u64 %d1, %d1;
    mul.wide.u32 %d2, %r2, 4;
    add.s64 %d1, %d1, %d2;
    ld.global.f32 %f2, [%d1];
    mul.f32 %f2, %f2, %f1;
    st.global.f32 [%d1], %f2;
    ret;
}
";

#[test]
fn kernels_are_launched_with_handles() {
    let bench = Bench::new();
    let session = bench.session("kernels");
    let module = Module::load(&bench.runtime.context(), &Image::ptx(SCALE)).unwrap();
    let scale = module.function("scale").unwrap();
    let id = session.buffer(&[8], &[1.0f32; 8]).unwrap();
    let half = session.view(id, |it| Ok(it.slice(0, 4..8, 1)?)).unwrap();
    let launch = |arguments: &[Argument]| {
        // SAFETY: the kernel changes `count` values, which exist.
        unsafe { session.launch(&scale, Launch::new(1, 32), arguments) }
    };
    launch(&[half.into(), 3.0f32.into(), 4u32.into()]).unwrap();
    let scaled = [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0];
    assert_eq!(session.download::<f32>(id).unwrap(), scaled);
    let unfit = launch(&[half.into(), 3.0f64.into(), 4u32.into()]).unwrap_err();
    assert!(matches!(unfit, Error::Cuda(_)), "{unfit}");
    let memory = session.memory(half).unwrap();
    session.free(half).unwrap();
    let stale = launch(&[half.into(), 3.0f32.into(), 4u32.into()]).unwrap_err();
    assert!(matches!(stale, Error::Stale(_)), "{stale}");
    session.free(id).unwrap();
    // It lives as long as it has an owner.
    let values = memory.to_vec(session.stream()).unwrap();
    assert_eq!(values[..4], 3.0f32.to_le_bytes());
    drop(memory);
    drop((scale, module));
    session.close().unwrap();
}

/// A job that waits on the host until it is released.
fn held_back(session: &Session) -> std::sync::mpsc::Sender<()> {
    let (go_on, wait) = channel();
    let job = session.submit(move |_| {
        wait.recv_timeout(Duration::from_secs(20)).ok();
        Ok(())
    });
    drop(job.unwrap());
    go_on
}

#[test]
fn jobs_complete_in_order_and_can_be_cancelled_before_submission() {
    let bench = Bench::new();
    let session = bench.session("jobs");
    let log = Arc::new(Mutex::new(Vec::new()));
    let go_on = held_back(&session);
    let noted = |number: u32| {
        let log = log.clone();
        session.submit(move |_| {
            log.lock().unwrap().push(number);
            Ok(number)
        })
    };
    let jobs: Vec<_> = (0..200).map(|number| noted(number).unwrap()).collect();
    assert_eq!(jobs[7].status(), Status::Waiting);
    let late = jobs[7].wait_for(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    assert!(jobs[7].cancel());
    assert!(jobs[7].cancel(), "it stays cancelled");
    // A synchronous call comes behind them: it waits for the waiting jobs.
    let waits = {
        let session = session.clone();
        std::thread::spawn(move || {
            let id = session.buffer(&[3], &[1u8, 2, 3]).unwrap();
            session.download::<u8>(id).unwrap()
        })
    };
    go_on.send(()).unwrap();
    assert_eq!(waits.join().unwrap(), [1, 2, 3]);
    let expected: Vec<u32> = (0..200).filter(|number| *number != 7).collect();
    for (number, job) in (0..200).zip(&jobs) {
        let outcome = job.wait();
        match number {
            7 => assert!(
                matches!(outcome, Err(Error::Cancelled { job: 9 })),
                "{outcome:?}"
            ),
            number => assert_eq!(outcome.unwrap(), number),
        }
        assert!(!job.cancel() || number == 7);
    }
    assert_eq!(*log.lock().unwrap(), expected);
    assert!(matches!(jobs[1].wait(), Err(Error::Taken { job: 3 })));
    let panics = session.submit(|_| -> Result<(), Error> { panic!("on purpose") });
    let panicked = panics.unwrap().wait().unwrap_err();
    assert!(panicked.to_string().contains("on purpose"), "{panicked}");
    // Nothing else has failed.
    let ended = session.close().unwrap_err();
    assert!(matches!(ended, Error::Panicked { .. }), "{ended}");
    assert!(session.submit(|_| Ok(())).is_err());
}

#[test]
fn job_that_fails_on_the_host_does_not_stop_later_jobs() {
    let bench = Bench::new();
    let session = bench.session("busy");
    let (go_on, waits) = channel::<()>();
    let busy = session.submit(move |stream| {
        let until_released = move || {
            waits.recv_timeout(Duration::from_secs(60)).ok();
        };
        Ok(stream.host_callback(until_released)?)
    });
    let bad = session.submit(|_| -> Result<(), Error> { Err(Error::Rebooting) });
    let (busy, bad) = (busy.unwrap(), bad.unwrap());
    // Long enough for the submission thread to poll the device.
    let late = bad.wait_for(Duration::from_millis(100)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    go_on.send(()).unwrap();
    busy.wait().unwrap();
    let failed = bad.wait().unwrap_err();
    assert!(matches!(failed, Error::Rebooting), "{failed}");
    assert_eq!(session.submit(|_| Ok(7)).unwrap().wait().unwrap(), 7);
    session.close().unwrap_err();
}

#[test]
fn job_without_notification_does_not_fail_others() {
    let bench = Bench::new();
    let session = bench.session("captured");
    // The session's jobs were done when that began.
    let capture = session.stream().begin_capture(CaptureMode::Relaxed);
    let unnotified = [(); 2].map(|()| session.submit(|_| Ok(())).unwrap());
    // Also for jobs waited for after the capture has ended.
    for job in unnotified {
        let refused = job.wait_for(LONG).unwrap_err();
        assert!(matches!(refused, Error::Cuda(_)), "{refused}");
    }
    drop(capture.unwrap());
    let notified = [3, 4].map(|it| session.submit(move |_| Ok(it)).unwrap());
    assert_eq!(notified.map(|job| job.wait_for(LONG).unwrap()), [3, 4]);
    session.close().unwrap_err();
}

#[test]
fn job_that_fails_with_another_devices_context_does_not_fail_others() {
    let bench = Bench::new();
    let session = bench.session("healthy");
    let (go_on, waits) = channel::<()>();
    let busy = session.submit(move |stream| {
        let until_released = move || {
            waits.recv_timeout(Duration::from_secs(60)).ok();
        };
        Ok(stream.host_callback(until_released)?)
    });
    let bad = session.submit(|_| -> Result<(), Error> {
        Err(Error::from(fercuda_cuda::Error::Driver(Box::new(
            DriverFailure {
                call: "cuMemcpyPeerAsync",
                code: CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
                doing: "copy from another device".to_owned(),
            },
        ))))
    });
    let behind = session.submit(|_| Ok(7)).unwrap();
    while behind.status() == Status::Waiting {
        std::thread::yield_now();
    }
    go_on.send(()).unwrap();
    busy.unwrap().wait_for(LONG).unwrap();
    let failed = bad.unwrap().wait_for(LONG).unwrap_err();
    assert!(failed.is_sticky(), "{failed}");
    assert_eq!(behind.wait_for(LONG).unwrap(), 7);
    assert_eq!(
        session.submit(|_| Ok(8)).unwrap().wait_for(LONG).unwrap(),
        8
    );
    session.close().unwrap_err();
}

#[test]
fn every_job_is_over_after_synchronize() {
    let bench = Bench::new();
    let session = bench.session("jobs");
    for round in 0..100 {
        let jobs: Vec<_> = (0..50)
            .map(|_| {
                let work = |stream: &Stream| {
                    stream.host_callback(|| std::thread::sleep(Duration::from_micros(50)))?;
                    Ok(())
                };
                session.submit(work).unwrap()
            })
            .collect();
        // From then on only the device has to be waited for.
        while jobs[49].status() == Status::Waiting {
            std::thread::yield_now();
        }
        session.synchronize().unwrap();
        let done = |job: &Job<()>| job.status() == Status::Done;
        assert!(jobs.iter().all(done), "round {round}: {jobs:?}");
    }
}

#[test]
fn job_may_use_its_session_but_not_wait_for_its_other_jobs() {
    let bench = Bench::new();
    let session = bench.session("within");
    let id = session.buffer(&[4], &[0u8; 4]).unwrap();
    let within = session.clone();
    let job = session.submit(move |_| {
        within.fill_bytes(id, 3)?;
        let other = within.buffer(&[4], &[1u8, 2, 3, 4])?;
        within.copy(id, &within, other)?;
        within.free(other)?;
        within.synchronize()?;
        within.download::<u8>(id)
    });
    assert_eq!(job.unwrap().wait().unwrap(), [1, 2, 3, 4]);
    let (give, take) = channel::<fercuda_runtime::Job<()>>();
    let waits = session
        .submit(move |_| take.recv().unwrap().wait())
        .unwrap();
    give.send(session.submit(|_| Ok(())).unwrap()).unwrap();
    let refused = waits.wait().unwrap_err();
    assert!(matches!(refused, Error::WithinJob { job: 3 }), "{refused}");
    // Ended by one of its jobs: the later ones are done all the same.
    let closes = session.clone();
    let last = session.submit(move |_| closes.close()).unwrap();
    last.wait().unwrap();
    assert!(session.buffers().is_err());
    session.close().unwrap();
    assert_eq!(session.held_bytes(), 0);
}

/// Panics when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a value that panics when it is dropped");
        }
    }
}

#[test]
fn destructors_of_a_jobs_values_may_panic() {
    let bench = Bench::new();
    let session = bench.session("grenades");
    for _ in 0..3 {
        let go_on = held_back(&session);
        let held = Grenade;
        let cancelled = session.submit(move |_| {
            std::mem::forget(held);
            Ok(())
        });
        assert!(cancelled.unwrap().cancel());
        // Its values are forgotten with it.
        drop(session.submit(|_| Ok(Grenade)).unwrap());
        go_on.send(()).unwrap();
        let after = session.submit(|_| Ok(5)).unwrap();
        assert_eq!(after.wait_for(Duration::from_secs(20)).unwrap(), 5);
    }
    session.close().unwrap();
}

#[test]
fn jobs_submitted_during_teardown_are_done_or_refused() {
    let bench = Bench::new();
    for _ in 0..50 {
        let session = bench.session("closing");
        let done = Arc::new(AtomicU32::new(0));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                let (session, done) = (session.clone(), done.clone());
                threads.spawn(move || {
                    for _ in 0..20 {
                        let counted = done.clone();
                        let job = session.submit(move |_| {
                            counted.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        });
                        let Ok(job) = job else { return };
                        match job.wait_for(Duration::from_secs(20)) {
                            Ok(()) | Err(Error::GivenUp { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            let session = session.clone();
            threads.spawn(move || session.close().unwrap());
        });
        session.close().unwrap();
        assert_eq!(session.held_bytes(), 0);
    }
}

#[test]
fn error_of_a_call_is_not_reported_again_by_close() {
    let bench = Bench::new();
    let session = bench.session("reported once");
    let scale = session.load(&Image::ptx(SCALE)).unwrap();
    let scale = scale.function("scale").unwrap();
    let go_on = held_back(&session);
    let waits = std::thread::spawn({
        let session = session.clone();
        move || {
            // It waits on the host behind that.
            // SAFETY: nothing is launched.
            unsafe { session.launch(&scale, Launch::new(1, 32), &[1.0f64.into()]) }
        }
    });
    std::thread::sleep(Duration::from_millis(5));
    go_on.send(()).unwrap();
    let refused = waits.join().unwrap().unwrap_err();
    assert!(
        refused.to_string().contains("takes 3 arguments"),
        "{refused}"
    );
    session.close().unwrap();
}

struct Unparker(std::thread::Thread);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unparker(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(20)),
        }
    }
}

#[test]
fn job_is_a_future() {
    let bench = Bench::new();
    let session = bench.session("future");
    let id = session.buffer(&[4], &[1u16, 2, 3, 4]).unwrap();
    let go_on = held_back(&session);
    let download = session.download_async(id).unwrap();
    let after = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        go_on.send(()).unwrap();
    });
    assert_eq!(block_on(download).unwrap(), [1, 0, 2, 0, 3, 0, 4, 0]);
    after.join().unwrap();
    let go_on = held_back(&session);
    let cancelled = session.download_async(id).unwrap();
    assert!(cancelled.cancel());
    assert!(matches!(block_on(cancelled), Err(Error::Cancelled { .. })));
    go_on.send(()).unwrap();
    session.close().unwrap();
}

#[test]
fn concurrent_closes_end_a_session_once_and_return_when_it_has_ended() {
    let bench = Bench::new();
    let lender = bench.session("lender");
    let stream = Stream::new(lender.stream().context()).unwrap();
    let lent = DeviceBuffer::from_host(&[0u32; 16], &stream).unwrap();
    let layout = Layout::contiguous(Dtype::U32, &[16]).unwrap();
    for _ in 0..30 {
        let session = bench.session("ended twice");
        session.buffer(&[1000], &[1u8; 1000]).unwrap();
        drop(session.submit(|_| Ok(())).unwrap());
        let (ended, within) = (Arc::new(AtomicU32::new(0)), session.clone());
        let heard = ended.clone();
        // SAFETY: `lent` outlives the session.
        let id = unsafe {
            session.import(lent.address(), layout, move || {
                std::thread::sleep(Duration::from_millis(5));
                // The deleter must not wait for the end.
                within.close().unwrap();
                heard.fetch_add(1, Ordering::SeqCst);
            })
        };
        id.unwrap();
        std::thread::scope(|threads| {
            for _ in 0..3 {
                let (session, heard) = (session.clone(), ended.clone());
                threads.spawn(move || {
                    session.close().unwrap();
                    assert_eq!(
                        heard.load(Ordering::SeqCst),
                        1,
                        "close came back before the end"
                    );
                    let ended = session.buffers().unwrap_err();
                    assert!(
                        matches!(
                            ended,
                            Error::Ended {
                                why: EndReason::Closed,
                                ..
                            }
                        ),
                        "{ended}"
                    );
                });
            }
        });
        assert_eq!(session.held_bytes(), 0);
    }
}

#[test]
fn reboot_ends_sessions_and_returns_all_memory() {
    let bench = Bench::new();
    let mut before = None;
    let mut epoch = bench.runtime.epoch();
    for _ in 0..20 {
        let sessions: Vec<Session> = ["one", "two"].map(|name| bench.session(name)).into();
        let ids: Vec<BufferId> = sessions
            .iter()
            .map(|session| session.buffer(&[300_000], &[1u64; 300_000]).unwrap())
            .collect();
        drop(sessions[0].download_async(ids[0]).unwrap());
        let reboot = bench.runtime.reboot().unwrap();
        assert_eq!((reboot.sessions, reboot.was_reset), (2, false));
        assert!(reboot.returned_bytes >= 2 * 8 * 300_000, "{reboot:?}");
        epoch += 1;
        assert_eq!(bench.runtime.epoch(), epoch);
        // After the first round the driver has allocated its own memory.
        let after = bench.runtime.memory().unwrap();
        assert_eq!(*before.get_or_insert(after), after);
        for (session, id) in sessions.iter().zip(ids) {
            let ended = session.download_bytes(id).unwrap_err();
            assert!(
                matches!(
                    ended,
                    Error::Ended {
                        why: EndReason::Rebooted(_),
                        ..
                    }
                ),
                "{ended}"
            );
        }
    }
}

#[test]
fn memory_behind_device_work_is_freed_when_that_is_done() {
    const MIB: u64 = 1 << 20;
    let bench = Bench::new();
    bench.runtime.trim();
    let session = bench.session("slow");
    let layout = Layout::contiguous(Dtype::U8, &[8 * MIB]).unwrap();
    let id = session.alloc(layout, Regime::Pool).unwrap();
    let slow = || std::thread::sleep(Duration::from_millis(50));
    session.stream().host_callback(slow).unwrap();
    session.free(id).unwrap();
    assert_eq!(bench.runtime.trim(), 8 * MIB);
    // Nor does anything wait where nothing is pending. A wrong wait takes a second each time; a
    // correct call may be descheduled as long, but not each time.
    let is_waited_for = |_| {
        let begun = Instant::now();
        assert_eq!(bench.runtime.trim(), 0);
        begun.elapsed() > Duration::from_millis(500)
    };
    assert!(!(0..20).all(is_waited_for));
    session.close().unwrap();
}

#[test]
fn buffers_are_copied_between_devices() {
    let Some(second) = Bench::on(1) else { return };
    let first = Runtime::open(RuntimeConfig::default()).unwrap();
    let here = first.session("here", SessionConfig::default()).unwrap();
    let there = second.session("there");
    let values: Vec<f64> = (0..999).map(f64::from).collect();
    let from = here.buffer(&[999], &values).unwrap();
    let to = there.buffer(&[999], &vec![0.0; 999]).unwrap();
    there.copy(to, &here, from).unwrap();
    assert_eq!(there.download::<f64>(to).unwrap(), values);
    here.fill_bytes(from, 0).unwrap();
    here.copy(from, &there, to).unwrap();
    assert_eq!(here.download::<f64>(from).unwrap(), values);
    assert_eq!(here.stream().context().device().ordinal(), 0);
    assert_eq!(there.stream().context().device().ordinal(), 1);
    here.close().unwrap();
    there.close().unwrap();
}

#[test]
fn forked_child_gets_an_error() {
    let bench = Bench::new();
    let session = bench.session("forked");
    let id = session.buffer(&[2], &[1u8, 2]).unwrap();
    drop(session.submit(|_| Ok(())).unwrap());
    // SAFETY: the child calls nothing but this library and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_told = |error: Error| matches!(error, Error::Forked { .. });
        let refusals = [
            session.download_bytes(id).map(drop),
            session.free(id),
            session.submit(|_| Ok(())).map(drop),
            session.close(),
            session.synchronize(),
        ];
        let all = refusals.into_iter().all(|it| it.is_err_and(is_told));
        // SAFETY: it exits at once.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let begun = Instant::now();
    let mut status = 0;
    // SAFETY: the child that was made above; `status` outlives the call.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the child hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0);
    assert_eq!(session.download::<u8>(id).unwrap(), [1, 2]);
    session.close().unwrap();
}
