//! Texture and surface references.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;

use fercuda_cuda_sys::types::*;

use super::{get, put, put_if, text};
use crate::device::array::texel_format;
use crate::device::context::current;
use crate::device::image_objects::{
    ReferenceState, ReferenceTarget, SurfaceReference, TextureReference,
};
use crate::device::texture::{address_mode, is_linear};
use crate::device::{CuResult, err, lock, machine, texture_reference};
use crate::exec::ReferenceKind;

fn find(reference: CUtexref) -> CuResult<Arc<TextureReference>> {
    let found = machine()?.texture_references.get(reference.0 as usize);
    found.ok_or(err::INVALID_HANDLE)
}

fn find_surface(reference: CUsurfref) -> CuResult<Arc<SurfaceReference>> {
    let found = machine()?.surface_references.get(reference.0 as usize);
    found.ok_or(err::INVALID_HANDLE)
}

/// The handle of a module's reference.
unsafe fn named(module: CUmodule, name: *const c_char, kind: ReferenceKind) -> CuResult<usize> {
    let module = machine()?.modules.get(module.0 as usize);
    // SAFETY: the client promises a terminated name.
    let name = unsafe { text(name)? };
    module.ok_or(err::INVALID_HANDLE)?.reference(name, kind)
}

/// Changes a reference's state.
fn set(reference: CUtexref, f: impl FnOnce(&mut ReferenceState)) -> CuResult {
    f(&mut lock(&find(reference)?.state));
    Ok(())
}

/// Reads a reference's state.
fn ask<T>(reference: CUtexref, f: impl FnOnce(&ReferenceState) -> T) -> CuResult<T> {
    Ok(f(&lock(&find(reference)?.state)))
}

fn dimension(dim: c_int) -> CuResult<usize> {
    let dim = usize::try_from(dim).ok().filter(|&dim| dim < 3);
    dim.ok_or(err::INVALID_VALUE)
}

driver_fns! {
    fn cuModuleGetTexRef[](tex_ref: *mut CUtexref, module: CUmodule, name: *const c_char) {
        put(tex_ref, CUtexref(named(module, name, ReferenceKind::Texture)? as *mut _))
    }

    fn cuModuleGetSurfRef[](surf_ref: *mut CUsurfref, module: CUmodule, name: *const c_char) {
        put(surf_ref, CUsurfref(named(module, name, ReferenceKind::Surface)? as *mut _))
    }

    fn cuTexRefCreate[](tex_ref: *mut CUtexref) {
        let (m, _) = current()?;
        if tex_ref.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(tex_ref, CUtexref(texture_reference::create(m, true) as *mut _))
    }

    fn cuTexRefDestroy[](tex_ref: CUtexref) {
        texture_reference::destroy(machine()?, tex_ref.0 as usize)
    }

    fn cuTexRefSetArray[](tex_ref: CUtexref, array: CUarray, flags: c_uint) {
        if flags != CU_TRSA_OVERRIDE_FORMAT {
            return Err(err::INVALID_VALUE);
        }
        find(tex_ref)?.set_array(machine()?, array.0 as usize)
    }

    fn cuTexRefSetMipmappedArray[](tex_ref: CUtexref, mipmapped_array: CUmipmappedArray, flags: c_uint) {
        if flags != CU_TRSA_OVERRIDE_FORMAT {
            return Err(err::INVALID_VALUE);
        }
        find(tex_ref)?.set_mipmap(machine()?, mipmapped_array.0 as usize)
    }

    fn cuTexRefSetAddress_v2[](byte_offset: *mut usize, tex_ref: CUtexref, dptr: CUdeviceptr, bytes: usize) {
        let before = find(tex_ref)?.set_line(machine()?, dptr, bytes, !byte_offset.is_null())?;
        put_if(byte_offset, before as usize);
        Ok(())
    }

    fn cuTexRefSetAddress2D_v2[](tex_ref: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR, dptr: CUdeviceptr, pitch: usize) {
        let (m, ctx) = current()?;
        find(tex_ref)?.set_rows(m, &ctx, dptr, *get(desc)?, pitch)
    }

    fn cuTexRefSetAddress2D_v3[](tex_ref: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR, dptr: CUdeviceptr, pitch: usize) {
        let (m, ctx) = current()?;
        find(tex_ref)?.set_rows(m, &ctx, dptr, *get(desc)?, pitch)
    }

    fn cuTexRefSetFormat[](tex_ref: CUtexref, fmt: CUarray_format, num_packed_components: c_int) {
        let channels = u32::try_from(num_packed_components).map_err(|_| err::INVALID_VALUE)?;
        texel_format(fmt, channels)?;
        set(tex_ref, |s| (s.format, s.channels) = (fmt, channels))
    }

    fn cuTexRefSetAddressMode[](tex_ref: CUtexref, dim: c_int, am: CUaddress_mode) {
        let dim = dimension(dim)?;
        address_mode(am)?;
        set(tex_ref, |s| s.sampling.addressMode[dim] = am)
    }

    fn cuTexRefSetFilterMode[](tex_ref: CUtexref, fm: CUfilter_mode) {
        is_linear(fm)?;
        set(tex_ref, |s| s.sampling.filterMode = fm)
    }

    fn cuTexRefSetMipmapFilterMode[](tex_ref: CUtexref, fm: CUfilter_mode) {
        is_linear(fm)?;
        set(tex_ref, |s| s.sampling.mipmapFilterMode = fm)
    }

    fn cuTexRefSetMipmapLevelBias[](tex_ref: CUtexref, bias: f32) {
        set(tex_ref, |s| s.sampling.mipmapLevelBias = bias)
    }

    fn cuTexRefSetMipmapLevelClamp[](tex_ref: CUtexref, min_mipmap_level_clamp: f32, max_mipmap_level_clamp: f32) {
        set(tex_ref, |s| {
            s.sampling.minMipmapLevelClamp = min_mipmap_level_clamp;
            s.sampling.maxMipmapLevelClamp = max_mipmap_level_clamp;
        })
    }

    fn cuTexRefSetMaxAnisotropy[](tex_ref: CUtexref, max_aniso: c_uint) {
        set(tex_ref, |s| s.sampling.maxAnisotropy = max_aniso)
    }

    fn cuTexRefSetBorderColor[](tex_ref: CUtexref, border_color: *mut f32) {
        let color = *get(border_color.cast_const().cast::<[f32; 4]>())?;
        set(tex_ref, |s| s.sampling.borderColor = color)
    }

    fn cuTexRefSetFlags[](tex_ref: CUtexref, flags: c_uint) {
        let known = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB
            | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION;
        if flags & !known != 0 {
            return Err(err::INVALID_VALUE);
        }
        set(tex_ref, |s| s.sampling.flags = flags)
    }

    fn cuTexRefGetAddress_v2[](dptr: *mut CUdeviceptr, tex_ref: CUtexref) {
        put(dptr, find(tex_ref)?.address()?)
    }

    fn cuTexRefGetArray[](array: *mut CUarray, tex_ref: CUtexref) {
        match ask(tex_ref, |s| s.target)? {
            Some(ReferenceTarget::Array(found)) => put(array, CUarray(found as *mut _)),
            _ => Err(err::INVALID_VALUE),
        }
    }

    fn cuTexRefGetMipmappedArray[](mipmapped_array: *mut CUmipmappedArray, tex_ref: CUtexref) {
        match ask(tex_ref, |s| s.target)? {
            Some(ReferenceTarget::Mipmap(found)) => put(mipmapped_array, CUmipmappedArray(found as *mut _)),
            _ => Err(err::INVALID_VALUE),
        }
    }

    fn cuTexRefGetAddressMode[](pam: *mut CUaddress_mode, tex_ref: CUtexref, dim: c_int) {
        let dim = dimension(dim)?;
        put(pam, ask(tex_ref, |s| s.sampling.addressMode[dim])?)
    }

    fn cuTexRefGetFilterMode[](mode: *mut CUfilter_mode, tex_ref: CUtexref) {
        put(mode, ask(tex_ref, |s| s.sampling.filterMode)?)
    }

    fn cuTexRefGetFormat[](format: *mut CUarray_format, num_channels: *mut c_int, tex_ref: CUtexref) {
        let (found, channels) = ask(tex_ref, |s| (s.format, s.channels))?;
        put(format, found)?;
        put(num_channels, channels as c_int)
    }

    fn cuTexRefGetMipmapFilterMode[](mode: *mut CUfilter_mode, tex_ref: CUtexref) {
        put(mode, ask(tex_ref, |s| s.sampling.mipmapFilterMode)?)
    }

    fn cuTexRefGetMipmapLevelBias[](bias: *mut f32, tex_ref: CUtexref) {
        put(bias, ask(tex_ref, |s| s.sampling.mipmapLevelBias)?)
    }

    fn cuTexRefGetMipmapLevelClamp[](
        min_mipmap_level_clamp: *mut f32, max_mipmap_level_clamp: *mut f32, tex_ref: CUtexref,
    ) {
        let (least, most) = ask(tex_ref, |s| (s.sampling.minMipmapLevelClamp, s.sampling.maxMipmapLevelClamp))?;
        put(min_mipmap_level_clamp, least)?;
        put(max_mipmap_level_clamp, most)
    }

    fn cuTexRefGetMaxAnisotropy[](max_aniso: *mut c_int, tex_ref: CUtexref) {
        put(max_aniso, ask(tex_ref, |s| s.sampling.maxAnisotropy)? as c_int)
    }

    fn cuTexRefGetBorderColor[](border_color: *mut f32, tex_ref: CUtexref) {
        put(border_color.cast::<[f32; 4]>(), ask(tex_ref, |s| s.sampling.borderColor)?)
    }

    fn cuTexRefGetFlags[](flags: *mut c_uint, tex_ref: CUtexref) {
        put(flags, ask(tex_ref, |s| s.sampling.flags)?)
    }

    fn cuSurfRefSetArray[](surf_ref: CUsurfref, array: CUarray, flags: c_uint) {
        let m = machine()?;
        if flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        let found = m.arrays.get(array.0 as usize).ok_or(err::INVALID_HANDLE)?;
        if !found.is_for_surfaces() {
            return Err(err::INVALID_VALUE);
        }
        *lock(&find_surface(surf_ref)?.array) = Some(found.handle);
        Ok(())
    }

    fn cuSurfRefGetArray[](array: *mut CUarray, surf_ref: CUsurfref) {
        let found = *lock(&find_surface(surf_ref)?.array);
        put(array, CUarray(found.ok_or(err::INVALID_VALUE)? as *mut _))
    }
}
