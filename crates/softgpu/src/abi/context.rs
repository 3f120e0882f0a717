//! Contexts and peer access.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fercuda_cuda_sys::types::*;

use super::{put, put_if};
use crate::device::context::{
    attach, create, current, current_any, current_handle, destroy, detach, named, pop,
    prepare_thread, primary_release, primary_reset, primary_retain, push, set_current,
};
use crate::device::objects::SoftContext;
use crate::device::{CuResult, Machine, err, lock, machine, memory, stream};

fn handle(ctx: &SoftContext) -> CUcontext {
    CUcontext(ctx.handle as *mut _)
}

/// Makes a context and makes it current.
unsafe fn create_current(out: *mut CUcontext, flags: c_uint, dev: CUdevice) -> CuResult {
    if out.is_null() {
        return Err(err::INVALID_VALUE);
    }
    let m = machine()?;
    let ctx = create(m, dev, flags)?;
    push(ctx.handle);
    // SAFETY: checked for null above; the client promises room.
    unsafe { put(out, handle(&ctx)) }
}

/// Waits also for a context that is lost: what its streams were at when it was lost may still touch
/// host memory.
fn synchronize(m: &Machine, ctx: &Arc<SoftContext>) -> CuResult {
    m.captures.forbid_context_call(ctx)?;
    ctx.synchronize(m)
}

fn set_primary_flags(dev: CUdevice, flags: c_uint) -> CuResult {
    let m = machine()?;
    let device = m.device(dev)?;
    if flags & !0xff != 0 || !matches!(flags & 7, 0 | 1 | 2 | 4) {
        return Err(err::INVALID_VALUE);
    }
    let mut primary = lock(&device.primary);
    primary.flags = flags;
    if let Some(ctx) = &primary.active {
        ctx.flags.store(flags, Ordering::Release);
    }
    Ok(())
}

driver_fns! {
    fn cuDevicePrimaryCtxRetain[](ctx: *mut CUcontext, dev: CUdevice) {
        if ctx.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let made = primary_retain(machine()?, dev)?;
        put(ctx, handle(&made))
    }

    fn cuDevicePrimaryCtxRelease[](dev: CUdevice) {
        primary_release(machine()?, dev)
    }

    fn cuDevicePrimaryCtxRelease_v2[](dev: CUdevice) {
        primary_release(machine()?, dev)
    }

    fn cuDevicePrimaryCtxReset[](dev: CUdevice) {
        primary_reset(machine()?, dev)
    }

    fn cuDevicePrimaryCtxReset_v2[](dev: CUdevice) {
        primary_reset(machine()?, dev)
    }

    fn cuDevicePrimaryCtxSetFlags[](dev: CUdevice, flags: c_uint) {
        set_primary_flags(dev, flags)
    }

    fn cuDevicePrimaryCtxSetFlags_v2[](dev: CUdevice, flags: c_uint) {
        set_primary_flags(dev, flags)
    }

    fn cuDevicePrimaryCtxGetState[](dev: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        let m = machine()?;
        let primary = lock(&m.device(dev)?.primary);
        put(flags, primary.flags)?;
        put(active, c_int::from(primary.active.is_some()))
    }

    fn cuCtxCreate[](ctx: *mut CUcontext, flags: c_uint, dev: CUdevice) {
        create_current(ctx, flags, dev)
    }

    fn cuCtxCreate_v2[](ctx: *mut CUcontext, flags: c_uint, dev: CUdevice) {
        create_current(ctx, flags, dev)
    }

    fn cuCtxCreate_v3[](
        ctx: *mut CUcontext, params_array: *mut CUexecAffinityParam, num_params: c_int, flags: c_uint, dev: CUdevice,
    ) {
        let _ = params_array;
        if num_params != 0 {
            return Err(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        create_current(ctx, flags, dev)
    }

    fn cuCtxCreate_v4[](ctx: *mut CUcontext, ctx_create_params: *mut CUctxCreateParams, flags: c_uint, dev: CUdevice) {
        if let Some(params) = ctx_create_params.as_ref() {
            if params.numExecAffinityParams != 0 {
                return Err(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
            }
            if !params.cigParams.is_null() {
                return Err(err::NOT_SUPPORTED);
            }
        }
        create_current(ctx, flags, dev)
    }

    fn cuCtxDestroy[](ctx: CUcontext) {
        destroy(machine()?, ctx.0 as usize)
    }

    fn cuCtxDestroy_v2[](ctx: CUcontext) {
        destroy(machine()?, ctx.0 as usize)
    }

    fn cuCtxAttach[](pctx: *mut CUcontext, flags: c_uint) {
        let (_, ctx) = current()?;
        if pctx.is_null() || flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        attach(&ctx);
        put(pctx, handle(&ctx))
    }

    fn cuCtxDetach[](ctx: CUcontext) {
        detach(machine()?, ctx.0 as usize)
    }

    fn cuCtxPushCurrent[](ctx: CUcontext) {
        let m = machine()?;
        m.contexts.get(ctx.0 as usize).ok_or(err::INVALID_CONTEXT)?;
        push(ctx.0 as usize);
        Ok(())
    }

    fn cuCtxPushCurrent_v2[](ctx: CUcontext) {
        let m = machine()?;
        m.contexts.get(ctx.0 as usize).ok_or(err::INVALID_CONTEXT)?;
        push(ctx.0 as usize);
        Ok(())
    }

    fn cuCtxPopCurrent[](ctx: *mut CUcontext) {
        machine()?;
        put_if(ctx, CUcontext(pop()? as *mut _));
        Ok(())
    }

    fn cuCtxPopCurrent_v2[](ctx: *mut CUcontext) {
        machine()?;
        put_if(ctx, CUcontext(pop()? as *mut _));
        Ok(())
    }

    fn cuCtxSetCurrent[](ctx: CUcontext) {
        let m = machine()?;
        if !ctx.is_null() {
            m.contexts.get(ctx.0 as usize).ok_or(err::INVALID_CONTEXT)?;
        }
        set_current(ctx.0 as usize);
        Ok(())
    }

    fn cuCtxGetCurrent[](ctx: *mut CUcontext) {
        prepare_thread();
        machine()?;
        put(ctx, CUcontext(current_handle() as *mut _))
    }

    fn cuCtxGetDevice[](device: *mut CUdevice) {
        let m = machine()?;
        let ctx = m.contexts.get(current_handle()).ok_or(err::INVALID_CONTEXT)?;
        put(device, ctx.device as CUdevice)
    }

    fn cuCtxGetDevice_v2[](device: *mut CUdevice, ctx: CUcontext) {
        let m = machine()?;
        let handle = if ctx.is_null() { current_handle() } else { ctx.0 as usize };
        let ctx = m.contexts.get(handle).ok_or(err::INVALID_CONTEXT)?;
        put(device, ctx.device as CUdevice)
    }

    fn cuCtxGetFlags[](flags: *mut c_uint) {
        let m = machine()?;
        put(flags, current_any(m)?.flags.load(Ordering::Acquire))
    }

    fn cuCtxSetFlags[](flags: c_uint) {
        let (_, ctx) = current()?;
        if flags & !0xff != 0 || !matches!(flags & 7, 0 | 1 | 2 | 4) {
            return Err(err::INVALID_VALUE);
        }
        ctx.flags.store(flags, Ordering::Release);
        Ok(())
    }

    fn cuCtxGetId[](ctx: CUcontext, ctx_id: *mut c_ulonglong) {
        let m = machine()?;
        put(ctx_id, named(m, ctx.0 as usize)?.id)
    }

    fn cuCtxSynchronize[]() {
        let m = machine()?;
        synchronize(m, &current_any(m)?)
    }

    fn cuCtxSynchronize_v2[](ctx: CUcontext) {
        let m = machine()?;
        synchronize(m, &named(m, ctx.0 as usize)?)
    }

    fn cuCtxSetLimit[](limit: CUlimit, value: usize) {
        let (m, ctx) = current()?;
        m.captures.forbid_unsafe_call()?;
        ctx.set_limit(limit, value)
    }

    fn cuCtxGetLimit[](value: *mut usize, limit: CUlimit) {
        put(value, current()?.1.limit(limit)?)
    }

    fn cuCtxGetCacheConfig[](config: *mut CUfunc_cache) {
        put(config, CUfunc_cache(current()?.1.cache_config.load(Ordering::Acquire)))
    }

    fn cuCtxSetCacheConfig[](config: CUfunc_cache) {
        if config.0 > 3 {
            return Err(err::INVALID_VALUE);
        }
        current()?.1.cache_config.store(config.0, Ordering::Release);
        Ok(())
    }

    fn cuCtxGetSharedMemConfig[](config: *mut CUsharedconfig) {
        put(config, CUsharedconfig(current()?.1.shared_config.load(Ordering::Acquire)))
    }

    fn cuCtxSetSharedMemConfig[](config: CUsharedconfig) {
        if config.0 > 2 {
            return Err(err::INVALID_VALUE);
        }
        current()?.1.shared_config.store(config.0.max(1), Ordering::Release);
        Ok(())
    }

    fn cuCtxGetApiVersion[](ctx: CUcontext, version: *mut c_uint) {
        let m = machine()?;
        named(m, ctx.0 as usize)?;
        put(version, 3020)
    }

    fn cuCtxGetStreamPriorityRange[](least_priority: *mut c_int, greatest_priority: *mut c_int) {
        current()?;
        put_if(least_priority, 0);
        put_if(greatest_priority, stream::PRIORITY_GREATEST);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache[]() {
        current().map(|_| ())
    }

    fn cuCtxGetExecAffinity[](exec_affinity: *mut CUexecAffinityParam, kind: CUexecAffinityType) {
        let _ = (exec_affinity, kind);
        current()?;
        Err(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)
    }

    fn cuCtxRecordEvent[](ctx: CUcontext, event: CUevent) {
        let m = machine()?;
        let ctx = named(m, ctx.0 as usize)?;
        ctx.health.check()?;
        let event = m.events.get(event.0 as usize).ok_or(err::INVALID_HANDLE)?;
        m.captures.forbid_context_call(&ctx)?;
        if event.ctx_id != ctx.id {
            return Err(err::INVALID_HANDLE);
        }
        event.record_context(m, &ctx);
        Ok(())
    }

    fn cuCtxWaitEvent[](ctx: CUcontext, event: CUevent) {
        let m = machine()?;
        let ctx = named(m, ctx.0 as usize)?;
        ctx.health.check()?;
        let event = m.events.get(event.0 as usize).ok_or(err::INVALID_HANDLE)?;
        m.captures.forbid_context_call(&ctx)?;
        if let Some(record) = event.current() {
            let streams: Vec<_> = lock(&ctx.streams).clone();
            for stream in streams {
                stream.wait_record(m, &ctx, &record);
            }
        }
        Ok(())
    }

    fn cuCtxEnablePeerAccess[](peer_context: CUcontext, flags: c_uint) {
        let (m, ctx) = current()?;
        if flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        let peer = m.contexts.get(peer_context.0 as usize).ok_or(err::INVALID_CONTEXT)?;
        if peer.device == ctx.device {
            return Err(err::INVALID_DEVICE);
        }
        if !lock(&ctx.peers).insert(peer.device) {
            return Err(err::PEER_ALREADY_ENABLED);
        }
        memory::set_peer_access(m, peer.device, ctx.device, true);
        Ok(())
    }

    fn cuCtxDisablePeerAccess[](peer_context: CUcontext) {
        let (m, ctx) = current()?;
        let peer = m.contexts.get(peer_context.0 as usize).ok_or(err::INVALID_CONTEXT)?;
        if !lock(&ctx.peers).remove(&peer.device) {
            return Err(err::PEER_NOT_ENABLED);
        }
        ctx.synchronize(m)?;
        ctx.shut_peer(m, peer.device);
        Ok(())
    }
}
