//! Texture and surface objects.

use std::sync::Arc;

use fercuda_cuda_sys::types::*;

use super::{get, put};
use crate::device::context::current;
use crate::device::image_objects::{SoftSurface, SoftTexture};
use crate::device::{CuResult, err, machine, texture};

fn find(object: CUtexObject) -> CuResult<Arc<SoftTexture>> {
    machine()?
        .textures
        .get(object as usize)
        .ok_or(err::INVALID_VALUE)
}

fn find_surface(object: CUsurfObject) -> CuResult<Arc<SoftSurface>> {
    machine()?
        .surfaces
        .get(object as usize)
        .ok_or(err::INVALID_VALUE)
}

driver_fns! {
    fn cuTexObjectCreate[](
        tex_object: *mut CUtexObject, res_desc: *const CUDA_RESOURCE_DESC, tex_desc: *const CUDA_TEXTURE_DESC,
        res_view_desc: *const CUDA_RESOURCE_VIEW_DESC,
    ) {
        let (m, ctx) = current()?;
        let view = if res_view_desc.is_null() { None } else { Some(*get(res_view_desc)?) };
        if tex_object.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let made = texture::create_texture(m, &ctx, *get(res_desc)?, *get(tex_desc)?, view)?;
        put(tex_object, made as CUtexObject)
    }

    fn cuTexObjectDestroy[](tex_object: CUtexObject) {
        texture::destroy_texture(machine()?, tex_object as usize)
    }

    fn cuTexObjectGetResourceDesc[](res_desc: *mut CUDA_RESOURCE_DESC, tex_object: CUtexObject) {
        put(res_desc, find(tex_object)?.resource)
    }

    fn cuTexObjectGetTextureDesc[](tex_desc: *mut CUDA_TEXTURE_DESC, tex_object: CUtexObject) {
        put(tex_desc, find(tex_object)?.sampling)
    }

    fn cuTexObjectGetResourceViewDesc[](res_view_desc: *mut CUDA_RESOURCE_VIEW_DESC, tex_object: CUtexObject) {
        put(res_view_desc, find(tex_object)?.view.ok_or(err::INVALID_VALUE)?)
    }

    fn cuSurfObjectCreate[](surf_object: *mut CUsurfObject, res_desc: *const CUDA_RESOURCE_DESC) {
        let (m, ctx) = current()?;
        if surf_object.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let made = texture::create_surface(m, &ctx, *get(res_desc)?)?;
        put(surf_object, made as CUsurfObject)
    }

    fn cuSurfObjectDestroy[](surf_object: CUsurfObject) {
        texture::destroy_surface(machine()?, surf_object as usize)
    }

    fn cuSurfObjectGetResourceDesc[](res_desc: *mut CUDA_RESOURCE_DESC, surf_object: CUsurfObject) {
        put(res_desc, find_surface(surf_object)?.resource)
    }
}
