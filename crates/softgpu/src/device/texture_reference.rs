//! Texture and surface references: what they are bound to, and how it is sampled.
//!
//! A reference is a variable of a module, or made by a call. What it stands for is read when a
//! kernel of its module is launched.

use std::sync::{Arc, Mutex};

use fercuda_cuda_sys::types::CUDA_ARRAY_DESCRIPTOR;
use rustc_hash::FxHashMap;

use super::array::texel_format;
use super::image_objects::{ReferenceState, ReferenceTarget, SurfaceReference, TextureReference};
use super::objects::{SoftContext, SoftModule};
use super::texture::{TEXTURE_ALIGN, format_of, line, rows, sampler};
use super::{CuResult, Machine, err, lock};
use crate::exec::{ImageBinding, ReferenceKind, TexelImage};

impl ReferenceState {
    fn image(&self, m: &Machine, ctx: &SoftContext) -> Option<TexelImage> {
        match self.target? {
            ReferenceTarget::Array(array) => m.arrays.get(array).map(|a| a.image()),
            ReferenceTarget::Mipmap(mipmap) => m.mipmaps.get(mipmap).map(|a| a.image()),
            ReferenceTarget::Line(at, len) => {
                let format = texel_format(self.format, self.channels).ok()?;
                line(m, ctx, format, at, len).ok()
            }
            ReferenceTarget::Rows(at, d, pitch) => {
                let format = texel_format(self.format, self.channels).ok()?;
                rows(m, ctx, format, at, [d.Width, d.Height], pitch).ok()
            }
        }
    }

    fn binding(&self, m: &Machine, ctx: &SoftContext) -> ImageBinding {
        match (self.image(m, ctx), sampler(&self.sampling)) {
            (Some(image), Ok(sampler)) => ImageBinding::Texture(image, sampler),
            _ => ImageBinding::Unbound,
        }
    }
}

pub(crate) fn create(m: &Machine, is_client_made: bool) -> usize {
    let make = |_| {
        Arc::new(TextureReference {
            is_client_made,
            state: Mutex::new(ReferenceState::default()),
        })
    };
    m.texture_references.insert_with(make).0
}

/// Makes the references of a module.
pub(crate) fn create_for_module(m: &Machine, kind: ReferenceKind) -> usize {
    match kind {
        ReferenceKind::Texture | ReferenceKind::Sampler => create(m, false),
        ReferenceKind::Surface => {
            let make = |_| {
                Arc::new(SurfaceReference {
                    array: Mutex::new(None),
                })
            };
            m.surface_references.insert_with(make).0
        }
    }
}

/// Removes a reference of a module that is unloaded.
pub(crate) fn remove_for_module(m: &Machine, handle: usize) {
    if m.texture_references.remove(handle).is_none() {
        m.surface_references.remove(handle);
    }
}

/// `cuTexRefDestroy`; a module's references go with it.
pub(crate) fn destroy(m: &Machine, handle: usize) -> CuResult {
    let found = m.texture_references.get(handle);
    found
        .filter(|reference| reference.is_client_made)
        .ok_or(err::INVALID_VALUE)?;
    m.texture_references.remove(handle);
    Ok(())
}

impl TextureReference {
    /// Binds an array, whose format the reference takes over.
    pub(crate) fn set_array(&self, m: &Machine, array: usize) -> CuResult {
        let (format, channels) = format_of(m, array)?;
        let mut state = lock(&self.state);
        (state.format, state.channels) = (format, channels);
        state.target = Some(ReferenceTarget::Array(array));
        Ok(())
    }

    /// Binds a mipmapped array, whose format the reference takes over.
    pub(crate) fn set_mipmap(&self, m: &Machine, mipmap: usize) -> CuResult {
        let found = m.mipmaps.get(mipmap).ok_or(err::INVALID_HANDLE)?;
        let mut state = lock(&self.state);
        (state.format, state.channels) = (found.description.Format, found.description.NumChannels);
        state.target = Some(ReferenceTarget::Mipmap(mipmap));
        Ok(())
    }

    /// Binds memory from the aligned address at or before `at`; returns how far before it is, in
    /// bytes. Address 0 ends a binding.
    pub(crate) fn set_line(
        &self,
        m: &Machine,
        at: u64,
        len: usize,
        may_be_before: bool,
    ) -> CuResult<u64> {
        let mut state = lock(&self.state);
        if at == 0 {
            state.target = None;
            return Ok(0);
        }
        let before = at % TEXTURE_ALIGN;
        let is_memory = len > 0 && m.memory.covers(at - before, len as u64 + before);
        if before != 0 && !may_be_before || !is_memory {
            return Err(err::INVALID_VALUE);
        }
        state.target = Some(ReferenceTarget::Line(at - before, len + before as usize));
        Ok(before)
    }

    /// Binds rows in memory.
    pub(crate) fn set_rows(
        &self,
        m: &Machine,
        ctx: &SoftContext,
        at: u64,
        d: CUDA_ARRAY_DESCRIPTOR,
        pitch: usize,
    ) -> CuResult {
        let format = texel_format(d.Format, d.NumChannels)?;
        rows(m, ctx, format, at, [d.Width, d.Height], pitch)?;
        let mut state = lock(&self.state);
        (state.format, state.channels) = (d.Format, d.NumChannels);
        state.target = Some(ReferenceTarget::Rows(at, d, pitch));
        Ok(())
    }

    /// The address of the bound memory.
    pub(crate) fn address(&self) -> CuResult<u64> {
        match lock(&self.state).target {
            Some(ReferenceTarget::Line(at, _) | ReferenceTarget::Rows(at, ..)) => Ok(at),
            _ => Err(err::INVALID_VALUE),
        }
    }
}

impl SoftModule {
    /// The handle of a reference by its name.
    pub(crate) fn reference(&self, name: &str, kind: ReferenceKind) -> CuResult<usize> {
        let found = self.references.get(name).filter(|found| found.0 == kind);
        found.map(|found| found.1).ok_or(err::NOT_FOUND)
    }
}

/// What the references of a module stand for now.
pub(crate) fn bindings(m: &Machine, module: &SoftModule) -> Arc<FxHashMap<u64, Arc<ImageBinding>>> {
    let mut out = FxHashMap::default();
    if module.references.is_empty() {
        return Arc::new(out);
    }
    let Some(ctx) = m.contexts.get(module.ctx_handle) else {
        return Arc::new(out);
    };
    for &(kind, handle) in module.references.values() {
        let binding = match kind {
            ReferenceKind::Texture => m
                .texture_references
                .get(handle)
                .map(|reference| lock(&reference.state).binding(m, &ctx)),
            ReferenceKind::Sampler => {
                let found = m.texture_references.get(handle);
                found.map(|reference| {
                    let sampling = lock(&reference.state).sampling;
                    ImageBinding::Sampler(sampler(&sampling).unwrap_or_default())
                })
            }
            ReferenceKind::Surface => m.surface_references.get(handle).and_then(|reference| {
                let array = (*lock(&reference.array))?;
                Some(ImageBinding::Surface(m.arrays.get(array)?.image()))
            }),
        };
        let binding = binding.unwrap_or(ImageBinding::Unbound);
        out.insert(handle as u64, Arc::new(binding));
    }
    Arc::new(out)
}
