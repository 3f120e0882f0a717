//! Objects of arrays, textures and surfaces: their data.
//!
//! Elsewhere: what calls do with them (`array`, `texture`, `texture_reference`).

use std::sync::{Arc, Mutex};

use fercuda_cuda_sys::types::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_SURFACE_LDST, CUDA_RESOURCE_DESC,
    CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray_format,
};

use crate::exec::{ImageLevel, TexelFormat, TexelImage};

/// An array, or one level of a mipmapped one.
#[derive(Debug)]
pub(crate) struct SoftArray {
    pub(crate) handle: usize,
    pub(crate) ctx_id: u64,
    pub(crate) description: CUDA_ARRAY3D_DESCRIPTOR,
    pub(crate) format: TexelFormat,
    pub(crate) level: ImageLevel,
    /// 0 if it has none.
    pub(crate) layers: u32,
    /// Part of a mipmapped array, which owns the memory.
    pub(super) is_level: bool,
}

/// An array in several sizes.
#[derive(Debug)]
pub(crate) struct SoftMipmap {
    pub(crate) handle: usize,
    pub(crate) ctx_id: u64,
    pub(crate) description: CUDA_ARRAY3D_DESCRIPTOR,
    /// The largest first.
    pub(crate) levels: Vec<Arc<SoftArray>>,
}

impl SoftArray {
    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> u64 {
        u64::from(self.level.extent[0]) * u64::from(self.format.bytes())
    }

    /// Slices or layers.
    pub(crate) fn slices(&self) -> u64 {
        u64::from(self.level.extent[2]) * u64::from(self.layers.max(1))
    }

    /// Whether `at` is an address in it.
    pub(crate) fn holds(&self, at: u64) -> bool {
        let end = self.level.at + self.level.slice * self.slices();
        (self.level.at..end).contains(&at)
    }

    pub(crate) fn is_for_surfaces(&self) -> bool {
        self.description.Flags & CUDA_ARRAY3D_SURFACE_LDST != 0
    }

    pub(crate) fn image(&self) -> TexelImage {
        TexelImage {
            format: self.format,
            levels: vec![self.level],
            layers: self.layers,
            is_buffer: false,
        }
    }
}

impl SoftMipmap {
    pub(crate) fn image(&self) -> TexelImage {
        let first = &self.levels[0];
        TexelImage {
            format: first.format,
            levels: self.levels.iter().map(|array| array.level).collect(),
            layers: first.layers,
            is_buffer: false,
        }
    }
}

/// A texture object.
pub(crate) struct SoftTexture {
    pub(crate) handle: usize,
    pub(crate) ctx_id: u64,
    pub(crate) resource: CUDA_RESOURCE_DESC,
    pub(crate) sampling: CUDA_TEXTURE_DESC,
    pub(crate) view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

/// A surface object.
pub(crate) struct SoftSurface {
    pub(crate) handle: usize,
    pub(crate) ctx_id: u64,
    pub(crate) resource: CUDA_RESOURCE_DESC,
}

/// What a texture reference is bound to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReferenceTarget {
    /// An array's handle.
    Array(usize),
    /// A mipmapped array's handle.
    Mipmap(usize),
    /// An aligned address and bytes from there.
    Line(u64, usize),
    /// An address, the description of the rows and their pitch.
    Rows(u64, CUDA_ARRAY_DESCRIPTOR, usize),
}

/// What calls have set.
#[derive(Debug, Clone)]
pub(crate) struct ReferenceState {
    pub(crate) target: Option<ReferenceTarget>,
    pub(crate) format: CUarray_format,
    pub(crate) channels: u32,
    pub(crate) sampling: CUDA_TEXTURE_DESC,
}

/// A texture reference.
pub(crate) struct TextureReference {
    /// Made by a call rather than by a module.
    pub(crate) is_client_made: bool,
    pub(crate) state: Mutex<ReferenceState>,
}

/// A surface reference.
pub(crate) struct SurfaceReference {
    pub(crate) array: Mutex<Option<usize>>,
}

impl Default for ReferenceState {
    fn default() -> Self {
        ReferenceState {
            target: None,
            format: CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8,
            channels: 1,
            sampling: CUDA_TEXTURE_DESC::default(),
        }
    }
}
