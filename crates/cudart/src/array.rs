//! Arrays and mipmapped arrays, and the formats of their texels.
//!
//! Invariant: a format that the driver has no number for is an invalid channel descriptor.
//! Elsewhere: copies of arrays (`copy`), textures of them (`texture`).

use core::ffi::{c_int, c_uint};

use crate::call::{self, get, put, put_if, wanted};
use crate::device::existing;
use crate::error::{CudaResult, cudaError_t};
use crate::types::*;

const SIGNED: c_int = 0;
const UNSIGNED: c_int = 1;
const FLOAT: c_int = 2;
const NONE: c_int = 3;
/// Kinds of channels from this one on are formats by themselves.
const FIRST_NORMALIZED: c_int = 5;

/// Formats of the kinds from [`FIRST_NORMALIZED`] on, with bits a channel and channels.
const NORMALIZED: [(CUarray_format, c_int, c_uint); 12] = [
    (CUarray_format::CU_AD_FORMAT_UNORM_INT8X1, 8, 1),
    (CUarray_format::CU_AD_FORMAT_UNORM_INT8X2, 8, 2),
    (CUarray_format::CU_AD_FORMAT_UNORM_INT8X4, 8, 4),
    (CUarray_format::CU_AD_FORMAT_UNORM_INT16X1, 16, 1),
    (CUarray_format::CU_AD_FORMAT_UNORM_INT16X2, 16, 2),
    (CUarray_format::CU_AD_FORMAT_UNORM_INT16X4, 16, 4),
    (CUarray_format::CU_AD_FORMAT_SNORM_INT8X1, 8, 1),
    (CUarray_format::CU_AD_FORMAT_SNORM_INT8X2, 8, 2),
    (CUarray_format::CU_AD_FORMAT_SNORM_INT8X4, 8, 4),
    (CUarray_format::CU_AD_FORMAT_SNORM_INT16X1, 16, 1),
    (CUarray_format::CU_AD_FORMAT_SNORM_INT16X2, 16, 2),
    (CUarray_format::CU_AD_FORMAT_SNORM_INT16X4, 16, 4),
];

/// Formats of plain channels, by kind and bits.
const PLAIN: [(c_int, c_int, CUarray_format); 8] = [
    (SIGNED, 8, CUarray_format::CU_AD_FORMAT_SIGNED_INT8),
    (SIGNED, 16, CUarray_format::CU_AD_FORMAT_SIGNED_INT16),
    (SIGNED, 32, CUarray_format::CU_AD_FORMAT_SIGNED_INT32),
    (UNSIGNED, 8, CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8),
    (UNSIGNED, 16, CUarray_format::CU_AD_FORMAT_UNSIGNED_INT16),
    (UNSIGNED, 32, CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32),
    (FLOAT, 16, CUarray_format::CU_AD_FORMAT_HALF),
    (FLOAT, 32, CUarray_format::CU_AD_FORMAT_FLOAT),
];

/// The driver's format of a channel descriptor, and the number of channels.
pub(crate) fn format(desc: &cudaChannelFormatDesc) -> CudaResult<(CUarray_format, c_uint)> {
    let at = usize::try_from(desc.f - FIRST_NORMALIZED).unwrap_or(usize::MAX);
    if let Some(&(format, _, channels)) = NORMALIZED.get(at) {
        return Ok((format, channels));
    }
    let bits = [desc.x, desc.y, desc.z, desc.w];
    let channels = bits.iter().take_while(|&&it| it != 0).count();
    let are_equal = bits[..channels].iter().all(|&it| it == desc.x);
    let are_last = bits[channels..].iter().all(|&it| it == 0);
    let mut known = PLAIN.iter().filter(|it| (it.0, it.1) == (desc.f, desc.x));
    match known.next() {
        Some(&(_, _, format)) if are_equal && are_last && [1, 2, 4].contains(&channels) => {
            Ok((format, channels as c_uint))
        }
        _ => Err(cudaError_t::INVALID_CHANNELS),
    }
}

/// The channel descriptor of a driver's format.
pub(crate) fn channels(format: CUarray_format, count: c_uint) -> cudaChannelFormatDesc {
    let plain = PLAIN.iter().find(|it| it.2 == format);
    let normalized = NORMALIZED.iter().position(|it| it.0 == format);
    let (bits, kind, count) = match (plain, normalized) {
        (Some(it), _) => (it.1, it.0, count),
        (None, Some(at)) => (
            NORMALIZED[at].1,
            FIRST_NORMALIZED + at as c_int,
            NORMALIZED[at].2,
        ),
        (None, None) => (0, NONE, 0),
    };
    let bits = |channel| if channel < count { bits } else { 0 };
    cudaChannelFormatDesc {
        x: bits(0),
        y: bits(1),
        z: bits(2),
        w: bits(3),
        f: kind,
    }
}

/// What an array is.
pub(crate) fn descriptor(array: cudaArray_t) -> CudaResult<CUDA_ARRAY3D_DESCRIPTOR> {
    let mut descriptor = CUDA_ARRAY3D_DESCRIPTOR::default();
    // SAFETY: the output outlives the call; the driver looks the handle up.
    unsafe { drv!(cuArray3DGetDescriptor_v2(&mut descriptor, array)) }?;
    Ok(descriptor)
}

/// Bytes of a texel of an array.
pub(crate) fn texel_bytes(array: cudaArray_t) -> CudaResult<usize> {
    let it = descriptor(array)?;
    let desc = channels(it.Format, it.NumChannels);
    let bits = desc.x + desc.y + desc.z + desc.w;
    match bits {
        0 => Err(cudaError_t::NOT_SUPPORTED),
        bits => Ok(bits as usize / 8),
    }
}

fn new_descriptor(
    desc: &cudaChannelFormatDesc,
    extent: cudaExtent,
    flags: c_uint,
) -> CudaResult<CUDA_ARRAY3D_DESCRIPTOR> {
    let (format, channels) = format(desc)?;
    Ok(CUDA_ARRAY3D_DESCRIPTOR {
        Width: extent.width,
        Height: extent.height,
        Depth: extent.depth,
        Format: format,
        NumChannels: channels,
        Flags: flags,
    })
}

runtime_fns! {
    fn cudaMallocArray[](
        array: *mut cudaArray_t, desc: *const cudaChannelFormatDesc, width: usize, height: usize,
        flags: c_uint,
    ) {
        wanted(array)?;
        let extent = cudaExtent { width, height, depth: 0 };
        let descriptor = new_descriptor(&get(desc)?, extent, flags)?;
        call::context()?;
        drv!(cuArray3DCreate_v2(array, &descriptor))
    }

    fn cudaMalloc3DArray[](
        array: *mut cudaArray_t, desc: *const cudaChannelFormatDesc, extent: cudaExtent,
        flags: c_uint,
    ) {
        wanted(array)?;
        let descriptor = new_descriptor(&get(desc)?, extent, flags)?;
        call::context()?;
        drv!(cuArray3DCreate_v2(array, &descriptor))
    }

    fn cudaMallocMipmappedArray[](
        mipmap: *mut cudaMipmappedArray_t, desc: *const cudaChannelFormatDesc, extent: cudaExtent,
        levels: c_uint, flags: c_uint,
    ) {
        wanted(mipmap)?;
        let descriptor = new_descriptor(&get(desc)?, extent, flags)?;
        call::context()?;
        drv!(cuMipmappedArrayCreate(mipmap, &descriptor, levels))
    }

    fn cudaGetMipmappedArrayLevel[](
        level: *mut cudaArray_t, mipmap: cudaMipmappedArray_t, which: c_uint,
    ) {
        wanted(level)?;
        call::context()?;
        drv!(cuMipmappedArrayGetLevel(level, mipmap, which))
    }

    fn cudaFreeArray[](array: cudaArray_t) {
        call::context()?;
        match array.is_null() {
            true => Ok(()),
            false => drv!(cuArrayDestroy(array)),
        }
    }

    fn cudaFreeMipmappedArray[](mipmap: cudaMipmappedArray_t) {
        call::context()?;
        match mipmap.is_null() {
            true => Ok(()),
            false => drv!(cuMipmappedArrayDestroy(mipmap)),
        }
    }

    fn cudaArrayGetInfo[](
        desc: *mut cudaChannelFormatDesc, extent: *mut cudaExtent, flags: *mut c_uint,
        array: cudaArray_t,
    ) {
        call::context()?;
        let it = descriptor(array)?;
        put_if(desc, channels(it.Format, it.NumChannels));
        put_if(extent, cudaExtent { width: it.Width, height: it.Height, depth: it.Depth });
        put_if(flags, it.Flags);
        Ok(())
    }

    fn cudaGetChannelDesc[](desc: *mut cudaChannelFormatDesc, array: cudaArray_t) {
        wanted(desc)?;
        call::context()?;
        let it = descriptor(array)?;
        put(desc, channels(it.Format, it.NumChannels))
    }

    fn cudaArrayGetPlane[](plane: *mut cudaArray_t, array: cudaArray_t, index: c_uint) {
        call::context()?;
        drv!(cuArrayGetPlane(plane, array, index))
    }

    fn cudaArrayGetMemoryRequirements[](
        out: *mut cudaArrayMemoryRequirements, array: cudaArray_t, device: c_int,
    ) {
        let device = existing(device)?;
        call::context()?;
        drv!(cuArrayGetMemoryRequirements(out, array, device))
    }

    fn cudaMipmappedArrayGetMemoryRequirements[](
        out: *mut cudaArrayMemoryRequirements, mipmap: cudaMipmappedArray_t, device: c_int,
    ) {
        let device = existing(device)?;
        call::context()?;
        drv!(cuMipmappedArrayGetMemoryRequirements(out, mipmap, device))
    }

    fn cudaArrayGetSparseProperties[](out: *mut cudaArraySparseProperties, array: cudaArray_t) {
        call::context()?;
        drv!(cuArrayGetSparseProperties(out, array))
    }

    fn cudaMipmappedArrayGetSparseProperties[](
        out: *mut cudaArraySparseProperties, mipmap: cudaMipmappedArray_t,
    ) {
        call::context()?;
        drv!(cuMipmappedArrayGetSparseProperties(out, mipmap))
    }

    fn cudaDeviceGetTexture1DLinearMaxWidth[](
        width: *mut usize, desc: *const cudaChannelFormatDesc, device: c_int,
    ) {
        wanted(width)?;
        let (format, channels) = format(&get(desc)?)?;
        let device = existing(device)?;
        drv!(cuDeviceGetTexture1DLinearMaxWidth(width, format, channels, device))
    }
}

/// A channel descriptor of these bits.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaCreateChannelDesc(
    x: c_int,
    y: c_int,
    z: c_int,
    w: c_int,
    f: c_int,
) -> cudaChannelFormatDesc {
    cudaChannelFormatDesc { x, y, z, w, f }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_the_same_there_and_back() {
        for &(kind, bits, expected) in &PLAIN {
            for count in [1, 2, 4] {
                let desc = channels(expected, count);
                assert_eq!((desc.x, desc.f), (bits, kind));
                assert_eq!(format(&desc), Ok((expected, count)));
            }
        }
        for &(expected, _, count) in &NORMALIZED {
            assert_eq!(format(&channels(expected, count)), Ok((expected, count)));
        }
    }

    #[test]
    fn three_channels_and_mixed_bits_are_refused() {
        for (x, y, z, w, f) in [
            (8, 8, 8, 0, UNSIGNED),
            (8, 16, 0, 0, UNSIGNED),
            (0, 0, 0, 0, FLOAT),
            (8, 0, 0, 0, FLOAT),
            (8, 0, 8, 0, SIGNED),
            (8, 0, 0, 0, NONE),
        ] {
            let desc = cudaChannelFormatDesc { x, y, z, w, f };
            assert_eq!(
                format(&desc),
                Err(cudaError_t::INVALID_CHANNELS),
                "{desc:?}"
            );
        }
    }
}
