//! Each function that allocates, at the limit of the process and at a tenant's: it is refused as by
//! a device without memory, free memory is what the ledger leaves, and the limit is reached whole,
//! again after everything was freed.

#[macro_use]
mod support;

use core::ptr::null_mut;

use fercuda_cuda_sys::types::*;
use fercuda_ledger::{EventKind, Governed};
use fercuda_pool::TenantId;
use fercuda_regime::interface;

use support::{MIB, begin, device, free_bytes, its_governor, properties, used_bytes};

const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
const LIMIT: u64 = 128 * MIB;
const PIECE: u64 = 32 * MIB;

/// Frees what a function allocated.
type Free = Box<dyn FnOnce()>;
type Taken = Result<Free, CUresult>;
/// Allocates so many bytes.
type Take = fn(u64) -> Taken;

/// The result of an allocation: `free`, or why it was refused.
fn taken(result: CUresult, free: impl FnOnce() + 'static) -> Taken {
    match result {
        CUresult::CUDA_SUCCESS => Ok(Box::new(free)),
        refused => Err(refused),
    }
}

fn linear(bytes: u64) -> Taken {
    let mut at = 0;
    let made = call!(cuMemAlloc_v2(&mut at, bytes as usize));
    taken(made, move || ok!(cuMemFree_v2(at)))
}

fn pitched(bytes: u64) -> Taken {
    let (mut at, mut pitch) = (0, 0);
    let rows = (bytes / 4096) as usize;
    let made = call!(cuMemAllocPitch_v2(&mut at, &mut pitch, 4000, rows, 4));
    taken(made, move || ok!(cuMemFree_v2(at)))
}

fn managed(bytes: u64) -> Taken {
    let mut at = 0;
    let made = call!(cuMemAllocManaged(&mut at, bytes as usize, 1));
    taken(made, move || ok!(cuMemFree_v2(at)))
}

fn ordered(bytes: u64) -> Taken {
    let mut at = 0;
    let made = call!(cuMemAllocAsync(&mut at, bytes as usize, CUstream::NULL));
    taken(made, move || ok!(cuMemFreeAsync(at, CUstream::NULL)))
}

/// From a pool that the program created, which is ours or, if it can be exported, the driver's.
fn from_pool(bytes: u64, exported: bool) -> Taken {
    let mut of = CUmemPoolProps {
        location: properties().location,
        ..Default::default()
    };
    of.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    if exported {
        of.handleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    let mut pool = CUmemoryPool::NULL;
    ok!(cuMemPoolCreate(&mut pool, &of));
    let (mut at, stream) = (0, CUstream::NULL);
    let made = call!(cuMemAllocFromPoolAsync(
        &mut at,
        bytes as usize,
        pool,
        stream
    ));
    if made != CUresult::CUDA_SUCCESS {
        ok!(cuMemPoolDestroy(pool));
    }
    taken(made, move || {
        ok!(cuMemFreeAsync(at, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemPoolDestroy(pool));
    })
}

fn from_own_pool(bytes: u64) -> Taken {
    from_pool(bytes, false)
}

fn from_exported_pool(bytes: u64) -> Taken {
    from_pool(bytes, true)
}

fn created(bytes: u64) -> Taken {
    let mut handle = 0;
    let made = call!(cuMemCreate(&mut handle, bytes as usize, &properties(), 0));
    taken(made, move || ok!(cuMemRelease(handle)))
}

/// Physical memory that is held by its mapping, and then by a handle that was made of that.
fn retained(bytes: u64) -> Taken {
    let (mut handle, mut again, mut at) = (0, 0, 0);
    let made = call!(cuMemCreate(&mut handle, bytes as usize, &properties(), 0));
    if made == CUresult::CUDA_SUCCESS {
        ok!(cuMemAddressReserve(&mut at, bytes as usize, 0, 0, 0));
        ok!(cuMemMap(at, bytes as usize, 0, handle, 0));
        ok!(cuMemRelease(handle));
        ok!(cuMemRetainAllocationHandle(&mut again, at as *mut _));
        ok!(cuMemUnmap(at, bytes as usize));
        ok!(cuMemAddressFree(at, bytes as usize));
    }
    taken(made, move || ok!(cuMemRelease(again)))
}

fn flat_array(bytes: u64) -> Taken {
    let of = CUDA_ARRAY_DESCRIPTOR {
        Width: 4096,
        Height: (bytes / 4096 / 4) as usize,
        Format: CUarray_format::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
    };
    let mut array = CUarray::NULL;
    let made = call!(cuArrayCreate_v2(&mut array, &of));
    taken(made, move || ok!(cuArrayDestroy(array)))
}

fn volume(bytes: u64) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: 1024,
        Height: 1024,
        Depth: (bytes / 1024 / 1024 / 4) as usize,
        Format: CUarray_format::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: 0,
    }
}

fn array_3d(bytes: u64) -> Taken {
    let mut array = CUarray::NULL;
    let made = call!(cuArray3DCreate_v2(&mut array, &volume(bytes)));
    taken(made, move || ok!(cuArrayDestroy(array)))
}

fn mipmapped(bytes: u64) -> Taken {
    let mut array = CUmipmappedArray::NULL;
    let made = call!(cuMipmappedArrayCreate(&mut array, &volume(bytes), 1));
    taken(made, move || ok!(cuMipmappedArrayDestroy(array)))
}

/// A graph with an allocation node, captured or made by hand, and the node's address.
fn graph_of(bytes: u64, captured: bool) -> (CUgraph, CUdeviceptr) {
    let (mut graph, mut at) = (CUgraph::NULL, 0);
    if captured {
        let mut stream = CUstream::NULL;
        ok!(cuStreamCreate(&mut stream, 1));
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        ok!(cuStreamBeginCapture_v2(stream, mode));
        ok!(cuMemAllocAsync(&mut at, bytes as usize, stream));
        ok!(cuMemsetD8Async(at, 1, 64, stream));
        ok!(cuStreamEndCapture(stream, &mut graph));
        ok!(cuStreamDestroy_v2(stream));
        return (graph, at);
    }
    ok!(cuGraphCreate(&mut graph, 0));
    let mut of = CUDA_MEM_ALLOC_NODE_PARAMS {
        bytesize: bytes as usize,
        ..Default::default()
    };
    of.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    of.poolProps.location = properties().location;
    let mut node = CUgraphNode::NULL;
    ok!(cuGraphAddMemAllocNode(
        &mut node,
        graph,
        null_mut(),
        0,
        &mut of
    ));
    (graph, of.dptr)
}

/// Launches a graph that allocates; `upload`: only uploads it.
fn launched(bytes: u64, captured: bool, upload: bool) -> Taken {
    let (graph, at) = graph_of(bytes, captured);
    let mut exec = CUgraphExec::NULL;
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    let made = match upload {
        true => call!(cuGraphUpload(exec, CUstream::NULL)),
        false => call!(cuGraphLaunch(exec, CUstream::NULL)),
    };
    let free = move || {
        if made == CUresult::CUDA_SUCCESS && !upload {
            ok!(cuMemFree_v2(at));
        }
        ok!(cuGraphExecDestroy(exec));
        ok!(cuGraphDestroy(graph));
        ok!(cuCtxSynchronize());
        ok!(cuDeviceGraphMemTrim(0));
    };
    if made != CUresult::CUDA_SUCCESS {
        free();
        return Err(made);
    }
    taken(made, free)
}

fn captured_graph(bytes: u64) -> Taken {
    launched(bytes, true, false)
}

fn explicit_graph(bytes: u64) -> Taken {
    launched(bytes, false, false)
}

fn every_function() -> Vec<(&'static str, Take)> {
    vec![
        ("cuMemAlloc", linear),
        ("cuMemAllocPitch", pitched),
        ("cuMemAllocManaged", managed),
        ("cuMemAllocAsync", ordered),
        ("cuMemAllocFromPoolAsync", from_own_pool),
        (
            "cuMemAllocFromPoolAsync of an exported pool",
            from_exported_pool,
        ),
        ("cuMemCreate", created),
        ("cuMemRetainAllocationHandle", retained),
        ("cuArrayCreate", flat_array),
        ("cuArray3DCreate", array_3d),
        ("cuMipmappedArrayCreate", mipmapped),
        ("cuGraphLaunch of a capture", captured_graph),
        ("cuGraphLaunch of an explicit node", explicit_graph),
    ]
}

/// Bytes of the device that the ledger shows, pooled and governed.
fn in_the_ledger() -> u64 {
    rows_of_the_ledger().iter().map(|(_, bytes)| bytes).sum()
}

/// The same by kind.
fn rows_of_the_ledger() -> Vec<(String, u64)> {
    let snapshot = its_governor().ledger().snapshot().expect("a ledger");
    let row = snapshot.devices.iter().find(|row| row.device == 0);
    row.map_or(Vec::new(), |row| {
        let held = row.governed.iter().filter(|held| {
            held.kind.is_on_device() && !matches!(held.kind, Governed::Context | Governed::Module)
        });
        let held = held.map(|held| (format!("{:?}", held.kind), held.bytes));
        held.chain([("pooled".to_owned(), row.live_bytes)])
            .collect()
    })
}

fn refusals(kind: EventKind) -> u64 {
    let snapshot = its_governor().ledger().snapshot().expect("a ledger");
    let row = snapshot.devices.iter().find(|row| row.device == 0);
    row.and_then(|row| row.event_counts.get(&kind).copied())
        .unwrap_or(0)
}

/// Takes pieces until one is refused; `check` runs after each call.
fn fill(name: &str, take: Take, check: &dyn Fn(u64)) -> Vec<Free> {
    let mut all = Vec::new();
    loop {
        match take(PIECE) {
            Ok(free) => all.push(free),
            Err(refused) => {
                assert_eq!(refused, OUT_OF_MEMORY, "{name}");
                check(all.len() as u64);
                return all;
            }
        }
        check(all.len() as u64);
        assert!(all.len() as u64 <= LIMIT / PIECE, "{name} passes the limit");
    }
}

#[test]
fn every_function_is_refused_at_the_limit_of_the_process() {
    let _turn = begin();
    device().trim();
    let budget = device().budget();
    for (name, take) in every_function() {
        budget.set_limit(LIMIT);
        match take(4 * MIB) {
            Ok(free) => free(),
            // Not on this device.
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) => continue,
            Err(other) => panic!("{name}: {other:?}"),
        }
        ok!(cuCtxSynchronize());
        device().trim();
        let before = (in_the_ledger(), used_bytes());
        assert_eq!(before.0, 0, "before {name}");
        // Again after everything was freed.
        for round in 0..2 {
            let check = |pieces: u64| {
                let held = in_the_ledger();
                let rows = rows_of_the_ledger();
                assert_eq!(
                    held,
                    pieces * PIECE,
                    "{name}, {pieces}, round {round}: {rows:?}"
                );
                assert_eq!(free_bytes(), LIMIT - held, "{name}, {pieces} pieces");
                assert!(used_bytes() - before.1 <= LIMIT, "{name}");
            };
            let refused = refusals(EventKind::Refused);
            let all = fill(name, take, &check);
            assert_eq!(all.len() as u64, LIMIT / PIECE, "{name}, round {round}");
            assert_eq!(refusals(EventKind::Refused), refused + 1, "{name}");
            // Nothing else fits then.
            for (other, take) in every_function() {
                if let Err(refused) = take(4 * MIB).map(|free| free()) {
                    assert!(
                        refused == OUT_OF_MEMORY || refused == CUresult::CUDA_ERROR_NOT_SUPPORTED
                    );
                } else {
                    panic!("{other} passes a limit that {name} has reached");
                }
            }
            all.into_iter().for_each(|free| free());
        }
        ok!(cuCtxSynchronize());
        device().trim();
        assert_eq!(budget.used_bytes(), 0, "{name}");
        assert_eq!(used_bytes(), before.1, "{name}");
    }
    budget.set_limit(u64::MAX);
}

#[test]
fn every_function_is_refused_at_the_limit_of_a_tenant() {
    let _turn = begin();
    let own = interface::own().expect("the driver is interposed");
    let tenant = own.tenant("ten");
    let id = TenantId(tenant as u16);
    let account = device().budget().tenant(id);
    let set_limit = |bytes| {
        for region in device().regions() {
            region.set_tenant_limit(id, bytes);
        }
    };
    set_limit(LIMIT);
    for (name, take) in every_function() {
        let acting = own.act_as(tenant);
        if take(4 * MIB).map(|free| free()) == Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) {
            continue;
        }
        assert_eq!(account.used_bytes(), 0, "before {name}");
        let check = |pieces: u64| {
            let held = own.usage(0, tenant).expect("it is governed");
            assert_eq!(held.pooled + held.governed, pieces * PIECE, "{name}");
            assert_eq!(account.used_bytes(), pieces * PIECE, "{name}");
        };
        let refused = refusals(EventKind::TenantLimit);
        let all = fill(name, take, &check);
        assert_eq!(all.len() as u64, LIMIT / PIECE, "{name}");
        assert_eq!(refusals(EventKind::TenantLimit), refused + 1, "{name}");
        for (other, take) in every_function() {
            assert!(
                take(4 * MIB).is_err(),
                "{other} passes a limit that {name} has reached"
            );
        }
        drop(acting);
        // It is the tenant's limit alone.
        take(4 * MIB).map(|free| free()).expect("others have room");
        all.into_iter().for_each(|free| free());
        ok!(cuCtxSynchronize());
        assert_eq!(account.used_bytes(), 0, "after {name}");
    }
    set_limit(u64::MAX);
    device().trim();
}

/// What is free in the pool, or pending, is no loss: the limit is reached whole, with blocks of any
/// kind, after blocks of any other.
#[test]
fn a_limit_is_reached_whole_after_frees() {
    let _turn = begin();
    ok!(cuCtxSynchronize());
    device().trim();
    let limit = 64 * MIB;
    device().budget().set_limit(limit);
    let mut stream = CUstream::NULL;
    ok!(cuStreamCreate(&mut stream, 1));
    let mut random = fastrand::Rng::with_seed(support::seed());
    for round in 0..20 {
        let in_order = random.bool();
        let mut live = Vec::new();
        loop {
            let bytes = match random.u8(..3) {
                0 => random.usize(1..64 << 10),
                1 => random.usize(1..1 << 20),
                _ => random.usize(1..12 << 20),
            };
            let mut at = 0;
            let made = match in_order {
                true => call!(cuMemAllocAsync(&mut at, bytes, stream)),
                false => call!(cuMemAlloc_v2(&mut at, bytes)),
            };
            if made != CUresult::CUDA_SUCCESS {
                break;
            }
            live.push(at);
            ok!(cuMemsetD8Async(at, 1, bytes, stream));
        }
        random.shuffle(&mut live);
        for at in live {
            match random.bool() {
                true => ok!(cuMemFreeAsync(at, stream)),
                false => ok!(cuMemFree_v2(at)),
            }
        }
        let mut all = Vec::new();
        let bytes = 2 * MIB;
        loop {
            let mut at = 0;
            let made = match random.bool() {
                true => call!(cuMemAllocAsync(&mut at, bytes as usize, stream)),
                false => call!(cuMemAlloc_v2(&mut at, bytes as usize)),
            };
            if made != CUresult::CUDA_SUCCESS {
                break;
            }
            all.push(at);
        }
        assert_eq!(all.len() as u64, limit / bytes, "round {round}");
        for at in all {
            ok!(cuMemFreeAsync(at, stream));
        }
    }
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuCtxSynchronize());
    device().trim();
    device().budget().set_limit(u64::MAX);
}
