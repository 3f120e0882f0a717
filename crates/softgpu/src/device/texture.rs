//! Texture and surface objects: which image a description names, and how it is sampled.
//!
//! Elsewhere: arrays (`array`), references of modules (`texture_reference`), sampling
//! ([`crate::exec`]).

use std::sync::Arc;

use fercuda_cuda_sys::types::{
    CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION, CU_TRSF_NORMALIZED_COORDINATES,
    CU_TRSF_READ_AS_INTEGER, CU_TRSF_SEAMLESS_CUBEMAP, CU_TRSF_SRGB, CUDA_RESOURCE_DESC,
    CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUaddress_mode, CUarray_format, CUdevice_attribute,
    CUfilter_mode, CUresourceViewFormat, CUresourcetype,
};

use super::array::texel_format;
use super::attributes;
use super::image_objects::{SoftSurface, SoftTexture};
use super::memory;
use super::objects::SoftContext;
use super::{CuResult, Machine, err};
use crate::exec::{
    AddressMode, ComponentType, ImageBinding, ImageLevel, Sampler, TexelFormat, TexelImage,
};

/// What the memory of a linear texture begins at a multiple of, in bytes.
pub(crate) const TEXTURE_ALIGN: u64 = 512;
/// The same of its rows.
const PITCH_ALIGN: usize = 32;

fn limit(m: &Machine, ctx: &SoftContext, attribute: u32) -> CuResult<usize> {
    let value = attributes::device(m, ctx.device, CUdevice_attribute(attribute))?;
    Ok(value as usize)
}

/// Ordinary memory as a line of texels.
pub(crate) fn line(
    m: &Machine,
    ctx: &SoftContext,
    format: TexelFormat,
    at: u64,
    len: usize,
) -> CuResult<TexelImage> {
    let count = len / format.bytes() as usize;
    let fits = count > 0 && count <= limit(m, ctx, 69)?;
    if !at.is_multiple_of(TEXTURE_ALIGN) || !fits || !m.memory.covers(at, len as u64) {
        return Err(err::INVALID_VALUE);
    }
    Ok(TexelImage {
        format,
        levels: vec![ImageLevel {
            at,
            pitch: len as u64,
            slice: len as u64,
            extent: [count as u32, 1, 1],
        }],
        layers: 0,
        is_buffer: true,
    })
}

/// Ordinary memory as rows of texels.
pub(crate) fn rows(
    m: &Machine,
    ctx: &SoftContext,
    format: TexelFormat,
    at: u64,
    [width, height]: [usize; 2],
    pitch: usize,
) -> CuResult<TexelImage> {
    let row = width.checked_mul(format.bytes() as usize);
    let fits = width > 0
        && height > 0
        && width <= limit(m, ctx, 70)?
        && height <= limit(m, ctx, 71)?
        && pitch <= limit(m, ctx, 72)?
        && pitch.is_multiple_of(PITCH_ALIGN)
        && row.is_some_and(|row| row <= pitch);
    let len = pitch as u64 * (height as u64).saturating_sub(1) + row.unwrap_or(0) as u64;
    if !fits || !at.is_multiple_of(TEXTURE_ALIGN) || !m.memory.covers(at, len) {
        return Err(err::INVALID_VALUE);
    }
    Ok(TexelImage {
        format,
        levels: vec![ImageLevel {
            at,
            pitch: pitch as u64,
            slice: len,
            extent: [width as u32, height as u32, 1],
        }],
        layers: 0,
        is_buffer: false,
    })
}

/// The image that a description names.
fn image(m: &Machine, ctx: &SoftContext, r: &CUDA_RESOURCE_DESC) -> CuResult<TexelImage> {
    if r.flags != 0 {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: the type says which member of the union is in use, and each is plain numbers.
    unsafe {
        match r.resType {
            CUresourcetype::CU_RESOURCE_TYPE_ARRAY => {
                let array = m.arrays.get(r.res.array.hArray.0 as usize);
                array.map(|a| a.image()).ok_or(err::INVALID_HANDLE)
            }
            CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
                let mipmap = m.mipmaps.get(r.res.mipmap.hMipmappedArray.0 as usize);
                mipmap.map(|a| a.image()).ok_or(err::INVALID_HANDLE)
            }
            CUresourcetype::CU_RESOURCE_TYPE_LINEAR => {
                let l = r.res.linear;
                let format = texel_format(l.format, l.numChannels)?;
                line(m, ctx, format, l.devPtr, l.sizeInBytes)
            }
            CUresourcetype::CU_RESOURCE_TYPE_PITCH2D => {
                let p = r.res.pitch2D;
                let format = texel_format(p.format, p.numChannels)?;
                rows(
                    m,
                    ctx,
                    format,
                    p.devPtr,
                    [p.width, p.height],
                    p.pitchInBytes,
                )
            }
            _ => Err(err::INVALID_VALUE),
        }
    }
}

pub(crate) fn address_mode(mode: CUaddress_mode) -> CuResult<AddressMode> {
    Ok(match mode {
        CUaddress_mode::CU_TR_ADDRESS_MODE_WRAP => AddressMode::Wrap,
        CUaddress_mode::CU_TR_ADDRESS_MODE_CLAMP => AddressMode::Clamp,
        CUaddress_mode::CU_TR_ADDRESS_MODE_MIRROR => AddressMode::Mirror,
        CUaddress_mode::CU_TR_ADDRESS_MODE_BORDER => AddressMode::Border,
        _ => return Err(err::INVALID_VALUE),
    })
}

pub(crate) fn is_linear(mode: CUfilter_mode) -> CuResult<bool> {
    match mode {
        CUfilter_mode::CU_TR_FILTER_MODE_POINT => Ok(false),
        CUfilter_mode::CU_TR_FILTER_MODE_LINEAR => Ok(true),
        _ => Err(err::INVALID_VALUE),
    }
}

/// How a description samples.
pub(crate) fn sampler(t: &CUDA_TEXTURE_DESC) -> CuResult<Sampler> {
    let known = CU_TRSF_READ_AS_INTEGER
        | CU_TRSF_NORMALIZED_COORDINATES
        | CU_TRSF_SRGB
        | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION
        | CU_TRSF_SEAMLESS_CUBEMAP;
    if t.flags & !known != 0 {
        return Err(err::INVALID_VALUE);
    }
    let [x, y, z] = t.addressMode;
    Ok(Sampler {
        address: [address_mode(x)?, address_mode(y)?, address_mode(z)?],
        is_linear: is_linear(t.filterMode)?,
        is_normalised: t.flags & CU_TRSF_NORMALIZED_COORDINATES != 0,
        reads_fractions: t.flags & CU_TRSF_READ_AS_INTEGER == 0,
        is_srgb: t.flags & CU_TRSF_SRGB != 0,
        is_linear_in_levels: is_linear(t.mipmapFilterMode)?,
        level_bias: t.mipmapLevelBias,
        level_range: [t.minMipmapLevelClamp, t.maxMipmapLevelClamp],
        border: t.borderColor,
    })
}

/// The format of a view; `None` leaves the image's.
fn view_format(format: CUresourceViewFormat) -> CuResult<Option<TexelFormat>> {
    const COMPONENTS: [ComponentType; 8] = [
        ComponentType::U8,
        ComponentType::S8,
        ComponentType::U16,
        ComponentType::S16,
        ComponentType::U32,
        ComponentType::S32,
        ComponentType::F16,
        ComponentType::F32,
    ];
    if format == CUresourceViewFormat::CU_RES_VIEW_FORMAT_NONE {
        return Ok(None);
    }
    let n = format.0 as usize - 1;
    let Some(&component) = COMPONENTS.get(n / 3) else {
        let known = CUresourceViewFormat::ALL.iter().any(|f| f.0 == format);
        return Err(if known {
            err::NOT_SUPPORTED
        } else {
            err::INVALID_VALUE
        });
    };
    Ok(Some(TexelFormat {
        component,
        channels: [1, 2, 4][n % 3],
        fraction: false,
    }))
}

/// The part of an image that a view shows, perhaps in another format.
fn viewed(mut image: TexelImage, v: &CUDA_RESOURCE_VIEW_DESC) -> CuResult<TexelImage> {
    if let Some(format) = view_format(v.format)? {
        if format.bytes() != image.format.bytes() {
            return Err(err::INVALID_VALUE);
        }
        image.format = format;
    }
    let (first, last) = (v.firstMipmapLevel as usize, v.lastMipmapLevel as usize);
    let (first_layer, last_layer) = (v.firstLayer, v.lastLayer);
    let has_layers = first_layer == 0 && last_layer == 0 || last_layer < image.layers;
    if first > last || last >= image.levels.len() || first_layer > last_layer || !has_layers {
        return Err(err::INVALID_VALUE);
    }
    image.levels = image.levels[first..=last].to_vec();
    let size = image.levels[0].extent;
    let asked = [v.width, v.height, v.depth];
    if (0..2).any(|n| asked[n] > size[n].max(1) as usize) {
        return Err(err::INVALID_VALUE);
    }
    if image.layers > 0 && last_layer > 0 {
        for level in &mut image.levels {
            level.at += level.slice * u64::from(first_layer);
        }
        image.layers = last_layer - first_layer + 1;
    }
    Ok(image)
}

pub(crate) fn create_texture(
    m: &Machine,
    ctx: &SoftContext,
    resource: CUDA_RESOURCE_DESC,
    sampling: CUDA_TEXTURE_DESC,
    view: Option<CUDA_RESOURCE_VIEW_DESC>,
) -> CuResult<usize> {
    let mut image = image(m, ctx, &resource)?;
    let sampler = sampler(&sampling)?;
    if let Some(view) = &view {
        let kind = resource.resType;
        let is_array = kind == CUresourcetype::CU_RESOURCE_TYPE_ARRAY
            || kind == CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
        if !is_array {
            return Err(err::INVALID_VALUE);
        }
        image = viewed(image, view)?;
    }
    // Levels have no coordinates in texels.
    if resource.resType == CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
        && !sampler.is_normalised
    {
        return Err(err::INVALID_VALUE);
    }
    let (handle, _) = m.textures.insert_with(|handle| {
        Arc::new(SoftTexture {
            handle,
            ctx_id: ctx.id,
            resource,
            sampling,
            view,
        })
    });
    let binding = ImageBinding::Texture(image, sampler);
    m.bindings.insert(handle as u64, binding);
    Ok(handle)
}

/// Destroys a texture object when the work that may use it is done, of which the host learns
/// nothing: programs destroy objects right behind the launch that reads them.
pub(crate) fn destroy_texture(m: &Machine, handle: usize) -> CuResult {
    m.textures.remove(handle).ok_or(err::INVALID_VALUE)?;
    memory::drain(m);
    m.bindings.remove(handle as u64);
    Ok(())
}

pub(crate) fn create_surface(
    m: &Machine,
    ctx: &SoftContext,
    resource: CUDA_RESOURCE_DESC,
) -> CuResult<usize> {
    if resource.resType != CUresourcetype::CU_RESOURCE_TYPE_ARRAY || resource.flags != 0 {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: the type says that the array is the member in use.
    let array = unsafe { resource.res.array.hArray.0 as usize };
    let array = m.arrays.get(array).ok_or(err::INVALID_HANDLE)?;
    if !array.is_for_surfaces() {
        return Err(err::INVALID_VALUE);
    }
    let (handle, _) = m.surfaces.insert_with(|handle| {
        Arc::new(SoftSurface {
            handle,
            ctx_id: ctx.id,
            resource,
        })
    });
    let binding = ImageBinding::Surface(array.image());
    m.bindings.insert(handle as u64, binding);
    Ok(handle)
}

/// As for a texture object.
pub(crate) fn destroy_surface(m: &Machine, handle: usize) -> CuResult {
    m.surfaces.remove(handle).ok_or(err::INVALID_VALUE)?;
    memory::drain(m);
    m.bindings.remove(handle as u64);
    Ok(())
}

/// Removes the objects of a context.
pub(crate) fn forget_context(m: &Machine, ctx_id: u64) {
    // An object that another thread has just destroyed is gone as it should be.
    for texture in m.textures.all().iter().filter(|t| t.ctx_id == ctx_id) {
        destroy_texture(m, texture.handle).ok();
    }
    for surface in m.surfaces.all().iter().filter(|s| s.ctx_id == ctx_id) {
        destroy_surface(m, surface.handle).ok();
    }
}

/// The format of the driver's that a reference to an array takes over.
pub(crate) fn format_of(m: &Machine, array: usize) -> CuResult<(CUarray_format, u32)> {
    let array = m.arrays.get(array).ok_or(err::INVALID_HANDLE)?;
    Ok((array.description.Format, array.description.NumChannels))
}
