//! A context that fails, and is reset: in a separate process, since NVIDIA's driver does not
//! recover from that.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and this one launches a kernel that fails"
)]

mod faulty;
mod wild;

use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use faulty::{FAULTY, fail};
use fercuda_cuda::{CaptureMode, Context, DeviceAddr, DeviceBuffer, Image, Launch, Module, Stream};
use fercuda_runtime::{
    DispatchError, DispatchOptions, Dtype, Error, Layout, MemoryAllocator, Regime, Runtime,
    RuntimeConfig, Session, SessionConfig, TaskArgs, TaskBuffer,
};

const LONG: Duration = Duration::from_secs(30);

/// Two good jobs, one that fails, and one behind it; with their results.
fn fail_between_others(session: &Session) {
    let (go_on, wait) = channel();
    let held_back = session.submit(move |_| {
        wait.recv_timeout(Duration::from_secs(20)).ok();
        Ok(())
    });
    drop(held_back.unwrap());
    let good = session.submit(|_| Ok(7)).unwrap();
    let bad = fail(session).unwrap();
    let behind = session.submit(|_| Ok(8)).unwrap();
    go_on.send(()).unwrap();
    assert_eq!(good.wait().unwrap(), 7);
    let failed = bad.wait().unwrap_err();
    assert!(
        matches!(&failed, Error::Cuda(error) if error.is_sticky()),
        "{failed}"
    );
    let not_run = behind.wait().unwrap_err();
    assert!(
        matches!(&not_run, Error::NotRun { job: 4, by: 3, .. }),
        "{not_run}"
    );
    let late = session.submit(|_| -> Result<(), Error> { panic!("it is not to run") });
    let late = late.unwrap().wait().unwrap_err();
    assert!(matches!(&late, Error::NotRun { by: 3, .. }), "{late}");
    assert_eq!((bad.number(), behind.number()), (3, 4));
}

/// Calls the driver each time, and records for each free whether it had a stream.
#[derive(Clone, Default)]
struct Direct {
    held: Arc<Mutex<HashMap<u64, DeviceBuffer<u8>>>>,
    back: Arc<Mutex<Vec<bool>>>,
}

// SAFETY: memory of the driver that is held until it is freed.
unsafe impl MemoryAllocator for Direct {
    fn allocate(
        &self,
        bytes: u64,
        _: u64,
        stream: &Stream,
    ) -> Result<DeviceAddr, Box<dyn std::error::Error + Send + Sync>> {
        let memory = DeviceBuffer::alloc_ordered(stream, bytes as usize)?;
        let address = memory.address();
        self.held.lock().unwrap().insert(address.0, memory);
        Ok(address)
    }

    fn free(&self, address: DeviceAddr, _: u64, stream: Option<&Stream>) {
        self.back.lock().unwrap().push(stream.is_some());
        drop(self.held.lock().unwrap().remove(&address.0).unwrap());
    }
}

/// Opens a session when dropped, which must not deadlock with the session that had it.
struct OpensAnother(Runtime);

// SAFETY: it returns no memory.
unsafe impl MemoryAllocator for OpensAnother {
    fn allocate(
        &self,
        _: u64,
        _: u64,
        _: &Stream,
    ) -> Result<DeviceAddr, Box<dyn std::error::Error + Send + Sync>> {
        Err("nothing".into())
    }

    fn free(&self, _: DeviceAddr, _: u64, _: Option<&Stream>) {}
}

impl Drop for OpensAnother {
    fn drop(&mut self) {
        drop(self.0.session("another", SessionConfig::default()));
    }
}

struct UntilReset(Context);

impl Drop for UntilReset {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.0.bind().is_err(), "it is not reset yet");
        }
    }
}

/// Resident kernels end with a failed context, also a lost one: stopping them returns the error
/// each time, and after the reset none is resident, even if handles remain.
fn kernels_end_with_their_context(runtime: &Runtime) {
    let options = DispatchOptions {
        threads: 64,
        watchdog: Duration::from_millis(20),
        ..DispatchOptions::default()
    };
    let (set, wild) = wild::wild();
    let session = new(runtime, "faulty");
    let id = session.buffer(&[16], &[0u32; 16]).unwrap();
    let serve = || session.dispatcher(&set, &[id], options).unwrap();
    let (resident, lost) = (serve(), serve());
    let arguments = TaskArgs::new().span(TaskBuffer(0), 0..4);
    lost.submit(0, wild, &arguments).unwrap();
    let is_lost = lost.stop(LONG);
    assert!(matches!(is_lost, Err(DispatchError::Lost)), "{is_lost:?}");
    fail(&session).unwrap().wait().unwrap_err();
    for _ in 0..2 {
        let stopped = resident.stop(LONG);
        assert!(
            matches!(&stopped, Err(DispatchError::Cuda(error)) if error.is_sticky()),
            "{stopped:?}"
        );
    }
    let (opens, (give, take)) = (runtime.clone(), channel());
    std::thread::spawn(move || {
        let allocator = Arc::new(OpensAnother(opens.clone()));
        let config = SessionConfig::default();
        give.send(opens.session_with_allocator("refused", config, allocator))
    });
    let refused = take.recv_timeout(LONG).expect("it waits for itself");
    assert!(matches!(refused, Err(Error::Cuda(_))), "{refused:?}");
    // A caller with threads keeps these from the context while it is reset, and no longer.
    let quiet = |context: &Context| {
        assert_eq!(runtime.sessions(), [""; 0]);
        assert!(context.bind().is_ok(), "it was reset before");
        UntilReset(context.clone())
    };
    // SAFETY: nothing else uses the context.
    assert!(unsafe { runtime.reset_with(quiet) }.unwrap().was_reset);
    assert!(!runtime.context().has_resident_kernel());
    let never = |_: &Context| panic!("nothing is reset");
    // SAFETY: as above.
    assert!(!unsafe { runtime.reset_with(never) }.unwrap().was_reset);
    runtime.reboot().unwrap();
    for ended in [resident.stop(LONG), lost.stop(LONG)] {
        let error = ended.unwrap_err();
        assert!(
            matches!(error, DispatchError::Cuda(_) | DispatchError::Lost),
            "{error}"
        );
    }
    assert_eq!(fercuda_softgpu::control::take_faults().len(), 1);
}

fn new(runtime: &Runtime, name: &str) -> Session {
    runtime.session(name, SessionConfig::default()).unwrap()
}

#[test]
fn fault_is_the_failure_of_its_job_and_reset_recovers() {
    let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
    let session = |name: &str| new(&runtime, name);
    runtime.reboot().unwrap();
    let before = runtime.memory().unwrap();
    for round in 0..5 {
        let session = session("faulty");
        let id = session.buffer(&[1000], &[1u8; 1000]).unwrap();
        let mut old = session.memory(id).unwrap();
        let managed = Layout::contiguous(Dtype::U8, &[64]).unwrap();
        let managed = session.alloc(managed, Regime::Managed).unwrap();
        let mut managed = session.memory(managed).unwrap();
        let lent = Direct::default();
        let (config, allocator) = (SessionConfig::default(), Arc::new(lent.clone()));
        let lending = runtime.session_with_allocator("lending", config, allocator);
        let lending = lending.unwrap();
        let layout = Layout::contiguous(Dtype::U8, &[1000]).unwrap();
        lending.alloc(layout, Regime::Callbacks).unwrap();
        let still = lending.alloc(layout, Regime::Callbacks).unwrap();
        let still = lending.memory(still).unwrap();
        let event = session.stream().record().unwrap();
        let module = Module::load(&runtime.context(), &Image::ptx(FAULTY)).unwrap();
        let function = module.function("beyond").unwrap();
        // A graph that has been launched in its stream before needs no further check of it.
        let own = Stream::new(&runtime.context()).unwrap();
        let capture = own.begin_capture(CaptureMode::Relaxed).unwrap();
        managed.fill_bytes(1, &own).unwrap();
        let mut graph = capture.end().unwrap().instantiate().unwrap();
        (0..3).for_each(|_| graph.launch(&own).unwrap());
        own.synchronize().unwrap();
        fail_between_others(&session);
        let refused = runtime.reboot().unwrap_err();
        assert!(matches!(refused, Error::Failed { device: 0 }), "{refused}");
        let ended = session.buffers().unwrap_err();
        assert!(ended.to_string().contains("rebooted"), "{ended}");
        assert_eq!(*lent.back.lock().unwrap(), [false], "in order of what");
        // SAFETY: nothing else uses the context.
        let reset = unsafe { runtime.reset() };
        // Objects of the old context are freed without a driver call, and refused.
        assert!(session.stream().synchronize().is_err());
        drop(session);
        if !runtime.device().cuda().is_software() {
            let lost = reset.unwrap_err();
            assert!(matches!(lost, Error::Lost { device: 0, .. }), "{lost}");
            let nothing = runtime.session("afterwards", SessionConfig::default());
            assert!(matches!(nothing, Err(Error::Lost { .. })));
            assert!(matches!(runtime.reboot(), Err(Error::Lost { .. })));
            return;
        }
        assert!(reset.unwrap().was_reset);
        // Nor do they reach the driver through new objects.
        let new = self::new(&runtime, "new");
        let is_refused = |it: fercuda_cuda::Result<()>| {
            matches!(
                it,
                Err(fercuda_cuda::Error::ContextReset | fercuda_cuda::Error::OtherContext { .. })
            )
        };
        assert!(is_refused(old.fill_bytes(0, new.stream())));
        assert!(is_refused(managed.fill_bytes(0, new.stream())));
        assert!(is_refused(new.stream().wait_for(&event)));
        assert!(is_refused(event.record(new.stream())));
        // SAFETY: it is refused.
        let launched = unsafe { Launch::new(1, 1).run(&function, new.stream(), ()) };
        assert!(is_refused(launched));
        assert!(is_refused(graph.launch(&own)));
        drop((graph, own));
        drop(still);
        assert_eq!(*lent.back.lock().unwrap(), [false; 2]);
        drop((old, managed, event, function, module));
        new.close().unwrap();
        runtime.trim();
        assert_eq!(runtime.memory().unwrap(), before, "round {round}");
        assert!(runtime.holders().iter().all(|it| it.pooled_bytes == 0));
        assert_eq!(fercuda_softgpu::control::take_faults().len(), 1);
    }
    let session = session("afterwards");
    let id = session.buffer(&[2], &[5u64, 6]).unwrap();
    assert_eq!(session.download::<u64>(id).unwrap(), [5, 6]);
    session.close().unwrap();
    kernels_end_with_their_context(&runtime);
}
