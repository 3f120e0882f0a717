//! Texture and surface objects.
//!
//! Invariant: a description that the driver gives back is the one that the program gave, but for
//! what the driver itself normalises. Elsewhere: formats of texels (`array`).

use core::ffi::{c_int, c_uint};

use crate::array::{channels, format};
use crate::call::{self, address, get, pointer, put, wanted};
use crate::error::{CudaResult, cudaError_t};
use crate::types::*;

const ARRAY: c_uint = 0;
const MIPMAPPED: c_uint = 1;
const LINEAR: c_uint = 2;
const PITCH_2D: c_uint = 3;
/// The read mode in which integers stay integers.
const ELEMENT_TYPE: c_uint = 0;
const NORMALIZED_FLOAT: c_uint = 1;

fn driver_resource(it: &cudaResourceDesc) -> CudaResult<CUDA_RESOURCE_DESC> {
    let mut out = CUDA_RESOURCE_DESC {
        resType: CUresourcetype(it.resType as _),
        flags: it.flags,
        ..Default::default()
    };
    // SAFETY: every member of the union accepts all bytes, and the type says which was set.
    unsafe {
        match it.resType {
            ARRAY => {
                out.res.array = CUDA_RESOURCE_DESC_res_array {
                    hArray: it.res.array,
                };
            }
            MIPMAPPED => {
                out.res.mipmap = CUDA_RESOURCE_DESC_res_mipmap {
                    hMipmappedArray: it.res.mipmap,
                };
            }
            LINEAR => {
                let linear = it.res.linear;
                let (format, channels) = format(&linear.desc)?;
                out.res.linear = CUDA_RESOURCE_DESC_res_linear {
                    devPtr: address(linear.devPtr),
                    format,
                    numChannels: channels,
                    sizeInBytes: linear.sizeInBytes,
                };
            }
            PITCH_2D => {
                let pitched = it.res.pitch2D;
                let (format, channels) = format(&pitched.desc)?;
                out.res.pitch2D = CUDA_RESOURCE_DESC_res_pitch2D {
                    devPtr: address(pitched.devPtr),
                    format,
                    numChannels: channels,
                    width: pitched.width,
                    height: pitched.height,
                    pitchInBytes: pitched.pitchInBytes,
                };
            }
            _ => return Err(cudaError_t::INVALID_VALUE),
        }
    }
    Ok(out)
}

fn runtime_resource(it: &CUDA_RESOURCE_DESC) -> cudaResourceDesc {
    let mut out = cudaResourceDesc::zero();
    out.resType = it.resType.0 as c_uint;
    out.flags = it.flags;
    // SAFETY: as for `driver_resource`; the driver set the member that the type names.
    unsafe {
        match out.resType {
            ARRAY => out.res.array = it.res.array.hArray,
            MIPMAPPED => out.res.mipmap = it.res.mipmap.hMipmappedArray,
            LINEAR => {
                let linear = it.res.linear;
                out.res.linear = cudaResourceDesc_linear {
                    devPtr: pointer(linear.devPtr),
                    desc: channels(linear.format, linear.numChannels),
                    sizeInBytes: linear.sizeInBytes,
                };
            }
            _ => {
                let pitched = it.res.pitch2D;
                out.res.pitch2D = cudaResourceDesc_pitch2D {
                    devPtr: pointer(pitched.devPtr),
                    desc: channels(pitched.format, pitched.numChannels),
                    width: pitched.width,
                    height: pitched.height,
                    pitchInBytes: pitched.pitchInBytes,
                };
            }
        }
    }
    out
}

fn driver_texture(it: &cudaTextureDesc) -> CudaResult<CUDA_TEXTURE_DESC> {
    if it.readMode > NORMALIZED_FLOAT || it.addressMode.iter().any(|&mode| mode > 3) {
        return Err(cudaError_t::INVALID_VALUE);
    }
    let flags = [
        (it.readMode == ELEMENT_TYPE, CU_TRSF_READ_AS_INTEGER),
        (it.normalizedCoords != 0, CU_TRSF_NORMALIZED_COORDINATES),
        (it.sRGB != 0, CU_TRSF_SRGB),
        (
            it.disableTrilinearOptimization != 0,
            CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION,
        ),
        (it.seamlessCubemap != 0, CU_TRSF_SEAMLESS_CUBEMAP),
    ];
    let flags = flags.iter().filter(|it| it.0).fold(0, |all, it| all | it.1);
    Ok(CUDA_TEXTURE_DESC {
        addressMode: it.addressMode.map(|mode| CUaddress_mode(mode as _)),
        filterMode: CUfilter_mode(it.filterMode as _),
        flags,
        maxAnisotropy: it.maxAnisotropy,
        mipmapFilterMode: CUfilter_mode(it.mipmapFilterMode as _),
        mipmapLevelBias: it.mipmapLevelBias,
        minMipmapLevelClamp: it.minMipmapLevelClamp,
        maxMipmapLevelClamp: it.maxMipmapLevelClamp,
        borderColor: it.borderColor,
        ..Default::default()
    })
}

fn runtime_texture(it: &CUDA_TEXTURE_DESC) -> cudaTextureDesc {
    let is_set = |flag: c_uint| c_int::from(it.flags & flag != 0);
    cudaTextureDesc {
        addressMode: it.addressMode.map(|mode| mode.0 as c_uint),
        filterMode: it.filterMode.0 as c_uint,
        readMode: match it.flags & CU_TRSF_READ_AS_INTEGER {
            0 => NORMALIZED_FLOAT,
            _ => ELEMENT_TYPE,
        },
        sRGB: is_set(CU_TRSF_SRGB),
        borderColor: it.borderColor,
        normalizedCoords: is_set(CU_TRSF_NORMALIZED_COORDINATES),
        maxAnisotropy: it.maxAnisotropy,
        mipmapFilterMode: it.mipmapFilterMode.0 as c_uint,
        mipmapLevelBias: it.mipmapLevelBias,
        minMipmapLevelClamp: it.minMipmapLevelClamp,
        maxMipmapLevelClamp: it.maxMipmapLevelClamp,
        disableTrilinearOptimization: is_set(CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION),
        seamlessCubemap: is_set(CU_TRSF_SEAMLESS_CUBEMAP),
    }
}

runtime_fns! {
    fn cudaCreateTextureObject[](
        object: *mut CUtexObject, resource: *const cudaResourceDesc,
        texture: *const cudaTextureDesc, view: *const cudaResourceViewDesc,
    ) {
        wanted(object)?;
        let resource = driver_resource(&get(resource)?)?;
        let texture = driver_texture(&get(texture)?)?;
        call::context()?;
        drv!(cuTexObjectCreate(object, &resource, &texture, view))
    }

    fn cudaDestroyTextureObject[](object: CUtexObject) {
        call::context()?;
        match object {
            0 => Ok(()),
            object => drv!(cuTexObjectDestroy(object)),
        }
    }

    fn cudaGetTextureObjectResourceDesc[](out: *mut cudaResourceDesc, object: CUtexObject) {
        wanted(out)?;
        call::context()?;
        let mut resource = CUDA_RESOURCE_DESC::default();
        drv!(cuTexObjectGetResourceDesc(&mut resource, object))?;
        put(out, runtime_resource(&resource))
    }

    fn cudaGetTextureObjectTextureDesc[](out: *mut cudaTextureDesc, object: CUtexObject) {
        wanted(out)?;
        call::context()?;
        let mut texture = CUDA_TEXTURE_DESC::default();
        drv!(cuTexObjectGetTextureDesc(&mut texture, object))?;
        put(out, runtime_texture(&texture))
    }

    fn cudaGetTextureObjectResourceViewDesc[](
        out: *mut cudaResourceViewDesc, object: CUtexObject,
    ) {
        wanted(out)?;
        call::context()?;
        drv!(cuTexObjectGetResourceViewDesc(out, object))
    }

    fn cudaCreateSurfaceObject[](object: *mut CUsurfObject, resource: *const cudaResourceDesc) {
        wanted(object)?;
        let resource = driver_resource(&get(resource)?)?;
        call::context()?;
        drv!(cuSurfObjectCreate(object, &resource))
    }

    fn cudaDestroySurfaceObject[](object: CUsurfObject) {
        call::context()?;
        match object {
            0 => Ok(()),
            object => drv!(cuSurfObjectDestroy(object)),
        }
    }

    fn cudaGetSurfaceObjectResourceDesc[](out: *mut cudaResourceDesc, object: CUsurfObject) {
        wanted(out)?;
        call::context()?;
        let mut resource = CUDA_RESOURCE_DESC::default();
        drv!(cuSurfObjectGetResourceDesc(&mut resource, object))?;
        put(out, runtime_resource(&resource))
    }
}
