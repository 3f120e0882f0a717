//! Arrays with content, textures of them, and kernels of one fetch a thread.

use std::ffi::CString;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fercuda_cuda_sys::types::*;
use fercuda_softgpu::control;

use crate::common::{CHECKS, Ctx, alloc, download, free, upload};

/// A context for one test, during which no other runs: findings belong to it.
pub(crate) struct Bench {
    _ctx: Ctx,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        CHECKS.store(true, Ordering::Release);
        let ctx = Ctx::new();
        drop(control::take_findings());
        drop(control::take_faults());
        Bench {
            _ctx: ctx,
            _alone: alone,
        }
    }

    /// What the checks have found since the last call.
    pub(crate) fn findings(&self) -> Vec<String> {
        let found = control::take_findings();
        found.iter().map(ToString::to_string).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.findings(), [""; 0]);
        }
    }
}

/// The description of an array.
pub(crate) fn shape(
    extent: [usize; 3],
    format: CUarray_format,
    channels: u32,
    flags: u32,
) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: extent[0],
        Height: extent[1],
        Depth: extent[2],
        Format: format,
        NumChannels: channels,
        Flags: flags,
    }
}

pub(crate) fn array(d: &CUDA_ARRAY3D_DESCRIPTOR) -> CUarray {
    let mut array = CUarray::NULL;
    ok!(cuArray3DCreate_v2(&mut array, d));
    array
}

/// Bytes of a component.
pub(crate) fn component_bytes(format: CUarray_format) -> usize {
    match format {
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8 | CUarray_format::CU_AD_FORMAT_SIGNED_INT8 => 1,
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT16
        | CUarray_format::CU_AD_FORMAT_SIGNED_INT16
        | CUarray_format::CU_AD_FORMAT_HALF => 2,
        _ => 4,
    }
}

/// A copy of all of an array of that description.
fn whole(d: &CUDA_ARRAY3D_DESCRIPTOR) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        WidthInBytes: d.Width * component_bytes(d.Format) * d.NumChannels as usize,
        Height: d.Height.max(1),
        Depth: d.Depth.max(1),
        ..CUDA_MEMCPY3D::default()
    }
}

pub(crate) fn fill(array: CUarray, d: &CUDA_ARRAY3D_DESCRIPTOR, bytes: &[u8]) {
    let mut c = whole(d);
    assert_eq!(bytes.len(), c.WidthInBytes * c.Height * c.Depth);
    c.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
    c.srcHost = bytes.as_ptr().cast();
    c.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
    c.dstArray = array;
    ok!(cuMemcpy3D_v2(&c));
}

pub(crate) fn content(array: CUarray, d: &CUDA_ARRAY3D_DESCRIPTOR) -> Vec<u8> {
    let mut c = whole(d);
    let mut out = vec![0xEE; c.WidthInBytes * c.Height * c.Depth];
    c.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
    c.srcArray = array;
    c.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
    c.dstHost = out.as_mut_ptr().cast();
    ok!(cuMemcpy3D_v2(&c));
    out
}

pub(crate) fn of_array(array: CUarray) -> CUDA_RESOURCE_DESC {
    let mut r = CUDA_RESOURCE_DESC {
        resType: CUresourcetype::CU_RESOURCE_TYPE_ARRAY,
        ..CUDA_RESOURCE_DESC::default()
    };
    r.res.array.hArray = array;
    r
}

pub(crate) fn texture(r: &CUDA_RESOURCE_DESC, t: &CUDA_TEXTURE_DESC) -> CUtexObject {
    let mut object = 0;
    ok!(cuTexObjectCreate(&mut object, r, t, std::ptr::null()));
    object
}

pub(crate) fn surface(array: CUarray) -> CUsurfObject {
    let mut object = 0;
    ok!(cuSurfObjectCreate(&mut object, &of_array(array)));
    object
}

/// A module of kernel `k`: `%rd0` is a handle, `%v0` to `%v3` the words of the thread's input, as
/// floats `%f0` to `%f3`, `%o0` to `%o3` become its output.
pub(crate) fn kernel(before: &str, body: &str) -> String {
    format!(
        ".version 8.4
.target sm_90
.address_size 64
{before}
.visible .entry k(.param .u64 handle, .param .u64 input, .param .u64 output, .param .u64 count)
{{
    .reg .b32 %v<4>; .reg .f32 %f<8>; .reg .b32 %o<8>; .reg .b32 %r<8>; .reg .b64 %rd<12>;
    .reg .pred %p<4>; .reg .b16 %h<4>;
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
    mad.lo.u32 %r0, %r0, %r1, %r2;
    cvt.u64.u32 %rd1, %r0;
    ld.param.u64 %rd2, [count];
    setp.ge.u64 %p0, %rd1, %rd2;
    @%p0 ret;
    ld.param.u64 %rd0, [handle];
    ld.param.u64 %rd3, [input];
    ld.param.u64 %rd4, [output];
    shl.b64 %rd1, %rd1, 4;
    add.u64 %rd3, %rd3, %rd1;
    add.u64 %rd4, %rd4, %rd1;
    ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%rd3];
    mov.b32 %f0, %v0; mov.b32 %f1, %v1; mov.b32 %f2, %v2; mov.b32 %f3, %v3;
    mov.b32 %o0, 0; mov.b32 %o1, 0; mov.b32 %o2, 0; mov.b32 %o3, 0;
{body}
    st.global.v4.b32 [%rd4], {{%o0, %o1, %o2, %o3}};
    ret;
}}
"
    )
}

pub(crate) fn load(text: &str) -> CUmodule {
    let text = CString::new(text).expect("a text without a zero byte");
    let mut module = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    module
}

/// Launches `k` of a module for each input, and waits; the code of the wait.
pub(crate) fn launch(module: CUmodule, handle: u64, input: u64, output: u64, n: usize) -> CUresult {
    let f = crate::common::function(module, c"k");
    let mut values = [handle, input, output, n as u64];
    let mut params = values.each_mut().map(|v| (&raw mut *v).cast());
    let blocks = n.div_ceil(64) as u32;
    ok!(cuLaunchKernel(
        f,
        blocks,
        1,
        1,
        64,
        1,
        1,
        0,
        CUstream::NULL,
        params.as_mut_ptr(),
        std::ptr::null_mut()
    ));
    code!(cuCtxSynchronize())
}

/// What `k` gives for each input.
pub(crate) fn results(module: CUmodule, handle: u64, inputs: &[[u32; 4]]) -> Vec<[u32; 4]> {
    let bytes: Vec<u8> = inputs
        .iter()
        .flatten()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    let input = upload(&bytes);
    let output = alloc(bytes.len());
    assert_eq!(
        launch(module, handle, input, output, inputs.len()),
        CUresult::CUDA_SUCCESS
    );
    let out = download(output, bytes.len());
    free(input);
    free(output);
    let words: Vec<u32> = out
        .as_chunks()
        .0
        .iter()
        .map(|&w| u32::from_le_bytes(w))
        .collect();
    words.as_chunks().0.to_vec()
}

/// The same with coordinates as inputs.
pub(crate) fn fetched(module: CUmodule, handle: u64, at: &[[f32; 4]]) -> Vec<[u32; 4]> {
    let inputs: Vec<[u32; 4]> = at.iter().map(|c| c.map(f32::to_bits)).collect();
    results(module, handle, &inputs)
}
