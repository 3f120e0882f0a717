//! Texture fetching as NVIDIA's programming guide states it, in double precision.

use fercuda_cuda_sys::types::*;

use crate::bench::component_bytes;

/// An image and how it is sampled.
pub(crate) struct Picture<'a> {
    pub(crate) bytes: &'a [u8],
    /// Texels in each dimension, at least 1.
    pub(crate) extent: [usize; 3],
    pub(crate) format: CUarray_format,
    pub(crate) channels: usize,
    pub(crate) mode: CUaddress_mode,
    pub(crate) linear: bool,
    pub(crate) normalised: bool,
    /// Integers stay integers.
    pub(crate) integers: bool,
}

/// An index along a dimension, if it is inside, and its weight.
type Part = (Option<usize>, f64);

impl Picture<'_> {
    /// The bits of component `c` of a texel, extended by its sign.
    fn bits(&self, [x, y, z]: [usize; 3], c: usize) -> u32 {
        let size = component_bytes(self.format);
        let texel = (z * self.extent[1] + y) * self.extent[0] + x;
        let at = (texel * self.channels + c) * size;
        let raw = &self.bytes[at..at + size];
        match self.format {
            CUarray_format::CU_AD_FORMAT_SIGNED_INT8 => i32::from(raw[0] as i8) as u32,
            CUarray_format::CU_AD_FORMAT_SIGNED_INT16 => {
                i32::from(i16::from_le_bytes([raw[0], raw[1]])) as u32
            }
            _ => raw.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b)),
        }
    }

    /// A texel's component as a number.
    fn number(&self, texel: [usize; 3], c: usize) -> f64 {
        let bits = self.bits(texel, c);
        match self.format {
            CUarray_format::CU_AD_FORMAT_FLOAT => f64::from(f32::from_bits(bits)),
            CUarray_format::CU_AD_FORMAT_HALF => half::f16::from_bits(bits as u16).to_f64(),
            CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8 => f64::from(bits) / 255.0,
            CUarray_format::CU_AD_FORMAT_UNSIGNED_INT16 => f64::from(bits) / 65535.0,
            CUarray_format::CU_AD_FORMAT_SIGNED_INT8 => (f64::from(bits as i32) / 127.0).max(-1.0),
            _ => (f64::from(bits as i32) / 32767.0).max(-1.0),
        }
    }

    fn is_float(&self) -> bool {
        matches!(
            self.format,
            CUarray_format::CU_AD_FORMAT_FLOAT | CUarray_format::CU_AD_FORMAT_HALF
        )
    }

    /// Whether a fetch gives the bits of integers.
    pub(crate) fn gives_integers(&self) -> bool {
        !self.is_float() && (self.integers || component_bytes(self.format) == 4)
    }

    fn parts(&self, x: f32, n: usize) -> [Part; 2] {
        let size = self.extent[n] as f64;
        let mut x = f64::from(x);
        let mut mode = self.mode;
        if self.normalised {
            if mode == CUaddress_mode::CU_TR_ADDRESS_MODE_WRAP {
                x -= x.floor();
            } else if mode == CUaddress_mode::CU_TR_ADDRESS_MODE_MIRROR {
                let (whole, part) = (x.floor(), x - x.floor());
                x = if whole % 2.0 == 0.0 { part } else { 1.0 - part };
            }
            x *= size;
        } else if mode.0.is_multiple_of(2) {
            mode = CUaddress_mode::CU_TR_ADDRESS_MODE_CLAMP;
        }
        let index = |i: f64| -> Option<usize> {
            match mode {
                CUaddress_mode::CU_TR_ADDRESS_MODE_WRAP => Some(i.rem_euclid(size) as usize),
                CUaddress_mode::CU_TR_ADDRESS_MODE_BORDER => {
                    (i >= 0.0 && i < size).then_some(i as usize)
                }
                _ => Some(i.clamp(0.0, size - 1.0) as usize),
            }
        };
        if !self.linear {
            return [(index(x.floor()), 1.0), (None, 0.0)];
        }
        let from = x - 0.5;
        let weight = ((from - from.floor()) * 256.0).round() / 256.0;
        [
            (index(from.floor()), 1.0 - weight),
            (index(from.floor() + 1.0), weight),
        ]
    }

    /// Calls `f` with each texel of a fetch and its weight; the border is no texel.
    fn each(&self, at: [f32; 3], mut f: impl FnMut(Option<[usize; 3]>, f64)) {
        let dims = self.extent.iter().filter(|&&n| n > 1).count();
        let part = |n: usize| match n < dims {
            true => self.parts(at[n], n),
            false => [(Some(0), 1.0), (None, 0.0)],
        };
        for (z, c) in part(2) {
            for (y, b) in part(1) {
                for (x, a) in part(0) {
                    if a * b * c > 0.0 {
                        let texel = x.zip(y).zip(z).map(|((x, y), z)| [x, y, z]);
                        f(texel, a * b * c);
                    }
                }
            }
        }
    }

    /// Component `c` of a fetch, and the largest magnitude that went into it.
    pub(crate) fn fetch(&self, at: [f32; 3], c: usize) -> (f64, f64) {
        let (mut sum, mut most) = (0.0, 0.0f64);
        self.each(at, |texel, weight| {
            let number = texel.map_or(0.0, |texel| self.number(texel, c));
            sum += weight * number;
            most = most.max(number.abs());
        });
        (sum, most)
    }

    /// The bits of component `c` of the one texel of a fetch.
    pub(crate) fn fetch_bits(&self, at: [f32; 3], c: usize) -> u32 {
        let mut out = 0;
        self.each(at, |texel, _| {
            out = texel.map_or(0, |texel| self.bits(texel, c))
        });
        out
    }
}
