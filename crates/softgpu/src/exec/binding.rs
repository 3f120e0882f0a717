//! Bindings of texture and surface handles: the memory of an image, and how it is sampled.
//!
//! A kernel names a texture, surface or sampler by a 64-bit handle. Objects are looked up when an
//! instruction uses them; references are those of the time of the launch.

use std::sync::{Arc, PoisonError, RwLock};

use rustc_hash::FxHashMap;

use super::texel::TexelFormat;

/// What a coordinate outside the image leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressMode {
    /// The image repeated.
    Wrap,
    /// The nearest texel.
    Clamp,
    /// The image repeated, every other time mirrored.
    Mirror,
    /// The border's colour.
    Border,
}

/// One level of an image in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLevel {
    /// Address of the first texel.
    pub at: u64,
    /// Bytes from one row to the next.
    pub pitch: u64,
    /// Bytes from one slice or layer to the next.
    pub slice: u64,
    /// Texels in each dimension, at least 1.
    pub extent: [u32; 3],
}

/// An image in memory: of one dimension, two or three, or layers of images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TexelImage {
    /// Of its texels.
    pub format: TexelFormat,
    /// The largest first; at least one.
    pub levels: Vec<ImageLevel>,
    /// Layers, faces of cubes counted; 0 if it has none.
    pub layers: u32,
    /// Ordinary memory without rows: what is outside reads as zero.
    pub is_buffer: bool,
}

/// How an image is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// By dimension.
    pub address: [AddressMode; 3],
    /// Texels are interpolated, else the nearest is taken.
    pub is_linear: bool,
    /// Coordinates run from 0 to 1, else over the texels.
    pub is_normalised: bool,
    /// Integers of 8 and 16 bits are read as numbers from -1 or 0 to 1.
    pub reads_fractions: bool,
    /// 8-bit colours are converted from sRGB.
    pub is_srgb: bool,
    /// Levels are interpolated, else the nearest is taken.
    pub is_linear_in_levels: bool,
    /// Added to the level.
    pub level_bias: f32,
    /// The least and the largest level.
    pub level_range: [f32; 2],
    /// The components outside the image in [`AddressMode::Border`].
    pub border: [f32; 4],
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler {
            address: [AddressMode::Clamp; 3],
            is_linear: false,
            is_normalised: false,
            reads_fractions: true,
            is_srgb: false,
            is_linear_in_levels: false,
            level_bias: 0.0,
            level_range: [0.0, f32::MAX],
            border: [0.0; 4],
        }
    }
}

/// What a handle stands for.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageBinding {
    /// An image to sample.
    Texture(TexelImage, Sampler),
    /// An image to read and write.
    Surface(TexelImage),
    /// A way to sample without an image.
    Sampler(Sampler),
    /// A reference that nothing was bound to: it reads as zero.
    Unbound,
}

impl ImageBinding {
    /// The image, if there is one.
    #[must_use]
    pub fn image(&self) -> Option<&TexelImage> {
        match self {
            ImageBinding::Texture(image, _) | ImageBinding::Surface(image) => Some(image),
            ImageBinding::Sampler(_) | ImageBinding::Unbound => None,
        }
    }

    /// The sampler, if there is one.
    #[must_use]
    pub fn sampler(&self) -> Option<&Sampler> {
        match self {
            ImageBinding::Texture(_, sampler) | ImageBinding::Sampler(sampler) => Some(sampler),
            ImageBinding::Surface(_) | ImageBinding::Unbound => None,
        }
    }
}

/// The texture and surface objects that exist, by handle.
#[derive(Debug, Default)]
pub struct BindingTable {
    by_handle: RwLock<FxHashMap<u64, Arc<ImageBinding>>>,
}

impl BindingTable {
    /// Makes `handle` stand for `binding`.
    pub fn insert(&self, handle: u64, binding: ImageBinding) {
        let mut table = self
            .by_handle
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        table.insert(handle, Arc::new(binding));
    }

    /// Makes `handle` stand for nothing.
    pub fn remove(&self, handle: u64) {
        let mut table = self
            .by_handle
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        table.remove(&handle);
    }

    fn find(&self, handle: u64) -> Option<Arc<ImageBinding>> {
        let table = self
            .by_handle
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        table.get(&handle).cloned()
    }
}

/// What the handles of a launch stand for.
#[derive(Debug, Clone, Default)]
pub struct LaunchBindings {
    /// Objects.
    pub objects: Arc<BindingTable>,
    /// The references of the kernel's module as they were when it was launched.
    pub references: Arc<FxHashMap<u64, Arc<ImageBinding>>>,
}

impl LaunchBindings {
    /// What `handle` stands for.
    #[must_use]
    pub fn find(&self, handle: u64) -> Option<Arc<ImageBinding>> {
        match self.references.get(&handle) {
            Some(found) => Some(found.clone()),
            None => self.objects.find(handle),
        }
    }
}
