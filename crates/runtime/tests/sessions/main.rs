//! Sessions, buffers, jobs and reboots on a device: the software device with two ordinals, or GPUs
//! with `FERCUDA_DEVICE=gpu`. One test at a time; at its end no session holds anything, by the
//! ledger, and the device's checks have found nothing.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    unsafe_code,
    reason = "a test reports by panicking, its seed is for people, and it lends memory and launches kernels"
)]

#[path = "../bench/mod.rs"]
mod bench;
#[path = "../lending/mod.rs"]
mod lending;

mod ending;
mod jobs;
mod values;

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
    BufferId, Dtype, EndReason, Error, Job, LaunchArgument, Layout, Regime, Runtime, RuntimeConfig,
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
