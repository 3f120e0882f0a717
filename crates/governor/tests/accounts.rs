//! Charges of contexts and tenants, on the software device. Memory that a program would allocate
//! past the governor is allocated directly from the driver here.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

#[macro_use]
mod support;

use std::ffi::{CStr, c_void};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fercuda_cuda_sys::types::*;
use fercuda_cuda_sys::{Driver, DriverOrigin, Symbol};
use fercuda_governor::{
    AllocationDenied, CaptureKey, GovernedPiece, Governor, GovernorConfig, MemorySize, PoolBacking,
    PoolNumber, PoolProvider, TenantLimit, ThreadContext,
};
use fercuda_ledger::{EventKind, Governed, Ledger, TENANTS};
use fercuda_pool::{PoolPlace, TenantId};
use fercuda_softgpu::control::{self, Config as Soft};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let mut config = Soft::default();
        config.memory_bytes = 16 * GIB;
        config.quiet = true;
        assert!(control::configure(config));
        fercuda_softgpu::driver()
    })
}

/// Creates a context of the first device, which becomes current.
fn context() -> CUcontext {
    let mut context = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    context
}

/// Allocates memory past the governor, in the current context.
fn take(bytes: u64) -> CUdeviceptr {
    let mut at = CUdeviceptr::default();
    ok!(cuMemAlloc_v2(&mut at, bytes as usize));
    at
}

fn charged_to_contexts(governor: &Governor) -> u64 {
    let snapshot = governor.ledger().snapshot().unwrap();
    let rows = snapshot.devices.iter().flat_map(|row| &row.governed);
    let its = rows.filter(|held| held.kind == Governed::Context);
    its.map(|held| held.bytes).sum()
}

/// One process has one device: tests that allocate past the governor run one at a time.
fn serialize_tests() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn memory_of_a_destroyed_context_hides_no_ungoverned_memory() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    // Two contexts, for which the driver is assumed to take 3 and 1 GiB.
    let (first, second) = (context(), context());
    ok!(cuCtxSetCurrent(first));
    take(3 * GIB);
    governor.record_context(first);
    ok!(cuCtxSetCurrent(second));
    take(GIB);
    governor.record_context(second);
    let device = governor.device(0).unwrap();
    assert_eq!(charged_to_contexts(&governor), 4 * GIB);
    assert_eq!(governor.reconcile(device).unwrap().ungoverned_bytes, 0);

    governor.while_destroying(|| {
        ok!(cuCtxDestroy_v2(first));
        (vec![first], CUresult::CUDA_SUCCESS)
    });
    assert_eq!(charged_to_contexts(&governor), GIB);
    assert_eq!(governor.reconcile(device).unwrap().ungoverned_bytes, 0);
    // The same amount again, allocated past the governor, is not mistaken for the context's.
    let strange = take(3 * GIB);
    let figures = governor.reconcile(device).unwrap();
    assert!(
        figures.ungoverned_bytes >= 2 * GIB,
        "{figures:?} with {} MiB of contexts",
        charged_to_contexts(&governor) / MIB
    );
    ok!(cuMemFree_v2(strange));

    governor.while_destroying(|| {
        ok!(cuCtxDestroy_v2(second));
        (vec![second], CUresult::CUDA_SUCCESS)
    });
    assert_eq!(charged_to_contexts(&governor), 0);
}

#[test]
fn memory_of_other_processes_stays_charged_when_a_context_ends() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    // Another process has 2 GiB before the first context exists.
    let other = context();
    take(2 * GIB);
    let (first, second) = (context(), context());
    ok!(cuCtxSetCurrent(first));
    take(GIB);
    governor.record_context(first);
    governor.record_context(second);
    governor.while_destroying(|| {
        ok!(cuCtxDestroy_v2(first));
        (vec![first], CUresult::CUDA_SUCCESS)
    });
    assert_eq!(charged_to_contexts(&governor), 2 * GIB);
    let device = governor.device(0).unwrap();
    ok!(cuCtxSetCurrent(second));
    assert_eq!(governor.reconcile(device).unwrap().ungoverned_bytes, 0);
    for context in [second, other] {
        governor.while_destroying(|| {
            ok!(cuCtxDestroy_v2(context));
            (vec![context], CUresult::CUDA_SUCCESS)
        });
    }
}

/// Allocates in a context, for a tenant; returns whether that succeeded.
fn try_allocate(governor: &Governor, context: CUcontext, name: &str, bytes: u64) -> bool {
    let mut thread = ThreadContext::new(governor, 1);
    let of = governor.context(context).unwrap();
    let tenant = governor.tenant(name);
    match thread.allocate(tenant, of, PoolPlace::Anywhere, PoolNumber::NONE, bytes) {
        Ok(_) => true,
        Err(AllocationDenied::OutOfMemory(_)) => false,
        Err(AllocationDenied::Driver) => panic!("it is not pooled"),
    }
}

#[test]
fn a_tenant_keeps_its_limit_however_many_tenants_came_before() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let context = context();
    let limit = |tenant: &str| TenantLimit {
        tenant: tenant.to_owned(),
        limit: "1MiB".parse::<MemorySize>().unwrap(),
    };
    let mut config = GovernorConfig::default();
    config.tenant_limits = vec![limit("late"), limit("last")];
    let governor = Governor::new(driver(), Ledger::in_memory(), config);
    // More than there are rows, some before there is a device.
    let names: Vec<String> = (0..2 * TENANTS).map(|n| format!("tenant {n}")).collect();
    let (before, after) = names.split_at(names.len() / 2);
    for name in before {
        governor.tenant(name);
    }
    for name in after {
        assert!(try_allocate(&governor, context, name, 2 * MIB));
    }
    for name in ["late", "last"] {
        assert!(try_allocate(&governor, context, name, MIB));
        assert!(!try_allocate(&governor, context, name, 2 * MIB));
    }
    assert!(try_allocate(&governor, context, &names[0], 2 * MIB));
    assert!(try_allocate(
        &governor,
        context,
        names.last().unwrap(),
        2 * MIB
    ));
    let snapshot = governor.ledger().snapshot().unwrap();
    let its = snapshot
        .tenants
        .iter()
        .find(|it| it.name == "late")
        .unwrap();
    assert_eq!(its.accounts[0].live_bytes, MIB);
    ok!(cuCtxDestroy_v2(context));
}

#[test]
fn a_tenants_limit_holds_for_blocks_of_any_size_and_for_what_the_driver_allocates() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let context = context();
    let mut config = GovernorConfig::default();
    config.tenant_limits = vec![TenantLimit {
        tenant: "both".to_owned(),
        limit: "4MiB".parse::<MemorySize>().unwrap(),
    }];
    config.limit = Some("16MiB".parse().unwrap());
    let governor = Governor::new(driver(), Ledger::in_memory(), config);
    let both = governor.tenant("both");
    let piece = |bytes: u64| GovernedPiece {
        device: 0,
        tenant: both,
        kind: Governed::Vmm,
        bytes,
        context: None,
    };
    let device = governor.device(0).unwrap();
    let used = || {
        device
            .budget()
            .tenant(TenantId(both.index() as u16))
            .used_bytes()
    };
    // A small block, a large one, and memory of the driver.
    assert!(try_allocate(&governor, context, "both", MIB / 2));
    assert!(try_allocate(&governor, context, "both", MIB + MIB / 2));
    assert!(governor.admit(&piece(MIB)));
    assert_eq!(used(), 3 * MIB);
    governor.charge_physical(7, piece(MIB));
    // None of them may have 2 MiB more, each may have 1 MiB.
    assert!(!governor.admit(&piece(2 * MIB)));
    for bytes in [2 * MIB, MIB + 256] {
        assert!(!try_allocate(&governor, context, "both", bytes));
    }
    assert!(governor.admit(&piece(MIB)));
    assert!(!try_allocate(&governor, context, "both", 256));
    governor.cancel_admission(&piece(MIB));
    assert!(try_allocate(&governor, context, "both", MIB));
    let taken = governor.governed().released(7);
    taken.ended().for_each(|piece| governor.ended(piece));
    assert_eq!(used(), 3 * MIB);
    // What the process's limit refuses is not left with the tenant.
    let physical = device.budget().used_bytes();
    device.budget().charge(16 * MIB - physical).unwrap();
    assert!(!governor.admit(&piece(MIB)));
    assert_eq!(used(), 3 * MIB);
    let snapshot = governor.ledger().snapshot().unwrap();
    let refusals = &snapshot.devices[0].event_counts;
    // Denials of blocks are recorded by those that make no other attempt.
    assert_eq!(refusals[&EventKind::TenantLimit], 1);
    assert_eq!(refusals[&EventKind::Refused], 1);
    ok!(cuCtxDestroy_v2(context));
}

#[test]
fn no_context_is_made_between_the_end_of_another_and_its_bookkeeping() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    let first = context();
    governor.record_context(first);
    let (old, _) = governor.context(first).unwrap();
    let (destroyed, is_trying) = (AtomicBool::new(false), AtomicBool::new(false));
    // The driver gives the second one the handle of the first.
    let second = std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            while !destroyed.load(Acquire) {
                std::thread::yield_now();
            }
            is_trying.store(true, Release);
            governor.with_lifecycle_lock(|| {
                // The handle's old meaning is forgotten by now.
                assert_eq!(governor.raw(old), None);
                governor.record_context(first);
                governor.record_primary(0, first);
            });
            governor.context(first).unwrap().0
        });
        governor.while_destroying(|| {
            destroyed.store(true, Release);
            while !is_trying.load(Acquire) {
                std::thread::yield_now();
            }
            // Time for the other thread to record the handle, if nothing prevents it.
            std::thread::sleep(Duration::from_millis(100));
            (vec![first], CUresult::CUDA_SUCCESS)
        });
        maker.join().unwrap()
    });
    assert_ne!(second, old);
    assert_eq!(governor.context(first).unwrap().0, second);
    assert_eq!(governor.primary(0), Some(first));
    governor.while_destroying(|| {
        ok!(cuCtxDestroy_v2(first));
        (vec![first], CUresult::CUDA_SUCCESS)
    });
}

#[test]
fn a_multicast_object_is_neither_charged_to_nor_refunded_from_the_budget() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    let device = governor.device(0).unwrap();
    device.budget().charge(8 * MIB).unwrap();
    let object = GovernedPiece {
        device: 0,
        tenant: governor.tenant("tenant"),
        kind: Governed::Multicast,
        bytes: 2 * MIB,
        context: None,
    };
    for handle in 0..3 {
        governor.charge_physical(handle, object);
        let taken = governor.governed().released(handle);
        taken.ended().for_each(|piece| governor.ended(piece));
    }
    assert_eq!(device.budget().used_bytes(), 8 * MIB);
}

#[test]
fn a_capture_of_a_threads_default_stream_ends_by_any_of_its_names() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let context = context();
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    let (id, _) = governor.context(context).unwrap();
    let names = [(CUstream::NULL, true), (CU_STREAM_PER_THREAD, false)];
    for (begun, ended) in [(names[0], names[1]), (names[1], names[0])] {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let own = CU_STREAM_PER_THREAD;
        let result = governor.begin_capture(CaptureKey::new(begun.0, begun.1), (id, mode), || {
            ok!(cuStreamBeginCapture_v2(own, mode));
            CUresult::CUDA_SUCCESS
        });
        assert_eq!(result, CUresult::CUDA_SUCCESS);
        assert!(governor.anything_captures());
        governor.end_capture(CaptureKey::new(ended.0, ended.1), || {
            let mut graph = CUgraph::NULL;
            ok!(cuStreamEndCapture(own, &mut graph));
            ok!(cuGraphDestroy(graph));
            CUresult::CUDA_SUCCESS
        });
        assert!(!governor.anything_captures());
    }
    ok!(cuCtxDestroy_v2(context));
}

/// A device's default pool, and a block of 4 MiB of it for a context.
fn block_of_the_default_pool(governor: &Governor, context: CUcontext) -> (CUmemoryPool, u64) {
    let mut pool = CUmemoryPool::NULL;
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    let PoolProvider::Here(_, number) = governor.served(pool) else {
        panic!("the default pool is the driver's");
    };
    let tenant = governor.tenant("tenant");
    let of = governor.context(context).unwrap();
    let mut thread = ThreadContext::for_teardown(governor, 0);
    let got = thread.allocate(tenant, of, PoolPlace::Anywhere, number, 4 * MIB);
    (pool, got.unwrap())
}

#[test]
fn stream_ordered_memory_in_use_outlives_its_context() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    let first = context();
    governor.record_context(first);
    let (pool, kept) = block_of_the_default_pool(&governor, first);
    let before = governor.pool_figures(pool).unwrap();
    assert_eq!(before[..2], [4 * MIB; 2]);
    let destroyed = governor.while_destroying(|| {
        ok!(cuCtxDestroy_v2(first));
        (vec![first], CUresult::CUDA_SUCCESS)
    });
    assert_eq!(destroyed.ordered_bytes, 0);
    assert_eq!(governor.pool_figures(pool).unwrap(), before);
    assert_eq!(governor.find(kept).unwrap().1.requested_bytes, 4 * MIB);
    // No context is left to query, and no work left to wait for.
    let mut thread = ThreadContext::for_teardown(&governor, 0);
    assert!(thread.free(kept, PoolPlace::Anywhere, |_| true).is_some());
    governor.reset_pool_marks(pool, true);
    assert_eq!(governor.pool_figures(pool).unwrap()[..2], [0, 0]);
    assert_eq!(governor.device(0).unwrap().trim(), 4 * MIB);
}

#[test]
fn stream_ordered_memory_in_slabs_ends_with_their_context() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let mut slabs = GovernorConfig::default();
    slabs.backing = PoolBacking::Slabs;
    let governor = Governor::new(driver(), Ledger::in_memory(), slabs);
    let first = context();
    governor.record_context(first);
    let (pool, lost) = block_of_the_default_pool(&governor, first);
    let destroyed = governor.while_destroying(|| {
        ok!(cuCtxDestroy_v2(first));
        (vec![first], CUresult::CUDA_SUCCESS)
    });
    assert_eq!(destroyed.ordered_bytes, 4 * MIB);
    assert!(governor.find(lost).is_none());
    governor.reset_pool_marks(pool, true);
    assert_eq!(governor.pool_figures(pool).unwrap(), [0; 4]);
}

#[test]
fn pending_memory_of_a_context_is_ready_when_it_ends_whatever_other_contexts_do() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    let (busy, first) = (context(), context());
    governor.record_context(busy);
    governor.record_context(first);
    let mut raw = CUstream::NULL;
    ok!(cuStreamCreate(&mut raw, 1));
    let mut thread = ThreadContext::for_teardown(&governor, 0);
    let stream = thread.stream(raw, false).unwrap();
    let place = PoolPlace::Stream(stream.id);
    let (tenant, of) = (governor.tenant("tenant"), governor.context(first).unwrap());
    let mut got = || thread.allocate(tenant, of, place, PoolNumber::NONE, 4 * MIB);
    let block = got().unwrap();
    assert!(thread.free(block, place, |_| true).is_some());
    // The other context has work that takes a while.
    unsafe extern "C" fn until_let_go(held: *mut c_void) {
        // SAFETY: the test's own, which outlives the work.
        let held = unsafe { &*held.cast::<AtomicBool>() };
        while held.load(Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let held = AtomicBool::new(true);
    ok!(cuCtxSetCurrent(busy));
    let of_it = (&raw const held).cast_mut().cast();
    ok!(cuLaunchHostFunc(CUstream::NULL, Some(until_let_go), of_it));
    let usage = std::thread::scope(|scope| {
        // Returning memory to this device waits for all of its work.
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            held.store(false, Release);
        });
        governor.while_destroying(|| {
            ok!(cuCtxDestroy_v2(first));
            (vec![first], CUresult::CUDA_SUCCESS)
        });
        governor.device(0).unwrap().usage()
    });
    ok!(cuCtxSynchronize());
    assert_eq!((usage.waiting_bytes, usage.bytes), (0, 0), "{usage:?}");
    ok!(cuCtxDestroy_v2(busy));
}

#[test]
fn a_destroyed_context_is_not_mistaken_for_an_existing_one() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    let mut primary = CUcontext::NULL;
    ok!(cuDevicePrimaryCtxRetain(&mut primary, 0));
    ok!(cuCtxSetCurrent(primary));
    governor.record_primary(0, primary);
    let mut thread = ThreadContext::for_teardown(&governor, 0);
    let (first, _) = thread.current().unwrap();
    assert!(!thread.query_current_over());
    governor.while_destroying(|| {
        ok!(cuDevicePrimaryCtxReset_v2(0));
        (vec![primary], CUresult::CUDA_SUCCESS)
    });
    // It can still be made current, and was never known here.
    ok!(cuCtxSetCurrent(primary));
    assert_eq!(thread.current(), None);
    assert!(thread.query_current_over());
    assert_eq!(governor.context(primary), None);
    ok!(cuCtxSetCurrent(CUcontext::NULL));
    assert!(!thread.query_current_over());
    ok!(cuDevicePrimaryCtxRetain(&mut primary, 0));
    ok!(cuCtxSetCurrent(primary));
    governor.record_primary(0, primary);
    let (second, _) = thread.current().unwrap();
    assert_ne!(first, second);
    assert!(!thread.query_current_over());
    for _ in 0..2 {
        ok!(cuDevicePrimaryCtxRelease_v2(0));
    }
    ok!(cuCtxSetCurrent(CUcontext::NULL));
}

#[test]
fn the_driver_serves_no_device_after_its_pool_is_gone() {
    let _one = serialize_tests();
    ok!(cuInit(0));
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    let kind = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation {
            r#type: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: 0,
        },
        ..Default::default()
    };
    let mut pool = CUmemoryPool::NULL;
    ok!(cuMemPoolCreate(&mut pool, &kind));
    governor.record_pool(pool, None);
    ok!(cuDeviceSetMemPool(0, pool));
    governor.set_current_pool(0, pool);
    assert!(governor.passes_ordered(0));
    let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!(governor.destroy_pool(pool, || refused), refused);
    assert!(governor.passes_ordered(0));
    governor.destroy_pool(pool, || {
        ok!(cuMemPoolDestroy(pool));
        CUresult::CUDA_SUCCESS
    });
    assert!(!governor.passes_ordered(0));
}

#[test]
fn a_driver_that_is_too_old_for_a_pool_is_reported_once() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let _one = serialize_tests();
    ok!(cuInit(0));
    let resolver = |name: &CStr| {
        let symbols = Symbol::ALL.iter();
        let mut symbols = symbols.filter(|it| **it != Symbol::cuCtxRecordEvent);
        let symbol = symbols.find(|it| Ok(it.name()) == name.to_str());
        symbol.and_then(|symbol| driver().address(*symbol).ok())
    };
    let origin = DriverOrigin::Linked("a driver for CUDA 12.4");
    // SAFETY: what it finds is another table's function of that name.
    let old = unsafe { Driver::from_resolver(Box::new(resolver), origin) };
    let old: &'static Driver = Box::leak(Box::new(old));
    let governor = Governor::new(old, Ledger::in_memory(), GovernorConfig::default());
    governor.on_missing_pool(|text| SAID.lock().unwrap().push(text.to_owned()));
    // There is no such device, which the driver reports.
    assert!(governor.device(7).is_none());
    assert!(SAID.lock().unwrap().is_empty());
    for _ in 0..2 {
        assert!(governor.device(0).is_none());
    }
    let said = SAID.lock().unwrap();
    assert_eq!(said.len(), 1);
    assert!(
        said[0].starts_with("GPU 0: no pool and no limit"),
        "{said:?}"
    );
    assert!(said[0].contains("no `cuCtxRecordEvent`"), "{said:?}");
    assert!(said[0].contains("CUDA 12.5"), "{said:?}");
}
