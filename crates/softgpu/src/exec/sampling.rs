//! Texels that a texture fetch reads, and their weights.
//!
//! The arithmetic is that of the appendix on texture fetching of NVIDIA's programming guide: a
//! weight is a number of eight fractional bits, to which the coordinate is rounded, halves upwards.

use super::binding::{AddressMode, ImageLevel, Sampler, TexelImage};

/// Fractional bits of a weight.
const WEIGHT_BITS: u32 = 8;
const WEIGHT_ONE: f64 = (1 << WEIGHT_BITS) as f64;

/// Coordinates of a fetch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FetchPoint {
    /// Sampled.
    Number([f32; 3]),
    /// Texels, counted.
    Texel([i32; 3]),
}

/// Which level of an image a fetch reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LevelChoice {
    /// The largest, whatever the sampler says.
    Base,
    /// This one, moved and bounded by the sampler.
    Level(f32),
    /// The one whose texels the coordinates move by from thread to thread: their change in x and
    /// in y.
    Gradient([[f32; 3]; 2]),
}

/// A texel and its weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tap {
    /// Its address; `None` is the border.
    pub(crate) at: Option<u64>,
    pub(crate) weight: f64,
}

/// Two levels of eight texels.
pub(crate) const MAX_TAPS: usize = 16;

/// The texels of a fetch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Footprint {
    taps: [Tap; MAX_TAPS],
    len: usize,
}

impl Footprint {
    fn new() -> Self {
        let nothing = Tap {
            at: None,
            weight: 0.0,
        };
        Footprint {
            taps: [nothing; MAX_TAPS],
            len: 0,
        }
    }

    fn push(&mut self, tap: Tap) {
        self.taps[self.len] = tap;
        self.len += 1;
    }

    pub(crate) fn taps(&self) -> &[Tap] {
        &self.taps[..self.len]
    }
}

/// The one or two places along a dimension that a fetch reads, with their weights.
type Places = [(Option<u32>, f64); 2];

fn wrap(place: i64, size: u32) -> u32 {
    place.rem_euclid(i64::from(size)) as u32
}

/// The texel at `place`, which may lie outside.
fn resolve(place: i64, size: u32, mode: AddressMode) -> Option<u32> {
    let last = i64::from(size) - 1;
    match mode {
        AddressMode::Wrap => Some(wrap(place, size)),
        AddressMode::Clamp => Some(place.clamp(0, last) as u32),
        // The coordinate was mirrored; what is just outside is the texel at the end.
        AddressMode::Mirror => {
            let twice = place.rem_euclid(2 * i64::from(size));
            Some(twice.min(2 * last + 1 - twice) as u32)
        }
        AddressMode::Border => (0..=last).contains(&place).then_some(place as u32),
    }
}

/// The mode that applies: repetitions are defined for normalised coordinates only.
fn effective(mode: AddressMode, is_normalised: bool) -> AddressMode {
    match mode {
        AddressMode::Wrap | AddressMode::Mirror if !is_normalised => AddressMode::Clamp,
        mode => mode,
    }
}

/// A coordinate in texels, repetitions undone.
fn in_texels(x: f32, size: u32, mode: AddressMode, is_normalised: bool) -> f64 {
    let x = if x.is_nan() { 0.0 } else { f64::from(x) };
    let x = match mode {
        AddressMode::Wrap | AddressMode::Mirror if x.is_infinite() => 0.0,
        AddressMode::Wrap => x - x.floor(),
        AddressMode::Mirror if x.floor().rem_euclid(2.0) == 1.0 => 1.0 - (x - x.floor()),
        AddressMode::Mirror => x - x.floor(),
        _ => x,
    };
    if is_normalised {
        x * f64::from(size)
    } else {
        x
    }
}

/// A number as an integer, as far as it is one of an image or just outside.
fn whole(x: f64) -> i64 {
    x.clamp(-1e12, 1e12) as i64
}

/// The places of a fetch by a number, moved by `offset` texels.
fn places(x: f32, offset: i32, size: u32, mode: AddressMode, sampler: &Sampler) -> Places {
    let mode = effective(mode, sampler.is_normalised);
    let x = in_texels(x, size, mode, sampler.is_normalised);
    let resolve = |place: i64| resolve(place + i64::from(offset), size, mode);
    if !sampler.is_linear {
        return [(resolve(whole(x.floor())), 1.0), (None, 0.0)];
    }
    let fixed = whole(((x - 0.5) * WEIGHT_ONE + 0.5).floor());
    let (place, part) = (fixed >> WEIGHT_BITS, fixed & ((1 << WEIGHT_BITS) - 1));
    let part = part as f64 / WEIGHT_ONE;
    [(resolve(place), 1.0 - part), (resolve(place + 1), part)]
}

/// The place of a fetch by the texel's number.
fn counted(x: i32, offset: i32, size: u32, mode: AddressMode) -> Places {
    let place = i64::from(x) + i64::from(offset);
    [
        (resolve(place, size, effective(mode, false)), 1.0),
        (None, 0.0),
    ]
}

fn address(image: &TexelImage, level: &ImageLevel, texel: [u32; 3], layer: u32) -> u64 {
    let [x, y, z] = texel.map(u64::from);
    level.at
        + x * u64::from(image.format.bytes())
        + y * level.pitch
        + (z + u64::from(layer)) * level.slice
}

/// The levels that a fetch reads, with their weights.
fn levels(
    image: &TexelImage,
    sampler: &Sampler,
    choice: LevelChoice,
    dims: usize,
) -> [(usize, f64); 2] {
    let last = image.levels.len() - 1;
    let wanted = match choice {
        LevelChoice::Base => return [(0, 1.0), (0, 0.0)],
        LevelChoice::Level(level) => f64::from(level),
        LevelChoice::Gradient(changes) => gradient_level(image, sampler, changes, dims),
    };
    let [least, most] = sampler.level_range.map(f64::from);
    let wanted = if wanted.is_nan() { 0.0 } else { wanted };
    let level = (wanted + f64::from(sampler.level_bias))
        .min(most)
        .max(least)
        .clamp(0.0, last as f64);
    if !sampler.is_linear_in_levels {
        return [((level + 0.5).floor() as usize, 1.0), (0, 0.0)].map(|(n, w)| (n.min(last), w));
    }
    let fixed = (level * WEIGHT_ONE + 0.5).floor() as usize;
    let part = (fixed % (1 << WEIGHT_BITS)) as f64 / WEIGHT_ONE;
    let first = fixed >> WEIGHT_BITS;
    [(first, 1.0 - part), ((first + 1).min(last), part)]
}

/// The level at which the larger of two changes is one texel long.
fn gradient_level(
    image: &TexelImage,
    sampler: &Sampler,
    changes: [[f32; 3]; 2],
    dims: usize,
) -> f64 {
    let extent = image.levels[0].extent;
    let length = |change: [f32; 3]| {
        let squares = (0..dims).map(|n| {
            let scale = if sampler.is_normalised { extent[n] } else { 1 };
            (f64::from(change[n]) * f64::from(scale)).powi(2)
        });
        squares.sum::<f64>().sqrt()
    };
    length(changes[0]).max(length(changes[1])).log2()
}

/// Where a fetch reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FetchPlace {
    pub(crate) point: FetchPoint,
    /// In texels, added to the coordinates.
    pub(crate) offset: [i32; 3],
    /// One that exists.
    pub(crate) layer: u32,
    pub(crate) level: LevelChoice,
}

/// The texels of a fetch from an image of `dims` dimensions.
pub(crate) fn footprint(
    image: &TexelImage,
    sampler: &Sampler,
    dims: usize,
    place: &FetchPlace,
) -> Footprint {
    let mut out = Footprint::new();
    let (offset, layer) = (place.offset, place.layer);
    for (n, level_weight) in levels(image, sampler, place.level, dims) {
        if level_weight == 0.0 {
            continue;
        }
        let level = &image.levels[n];
        let along = |n: usize| -> Places {
            if n >= dims {
                return [(Some(0), 1.0), (None, 0.0)];
            }
            let (size, mode) = (level.extent[n], sampler.address[n]);
            let mode = if image.is_buffer {
                AddressMode::Border
            } else {
                mode
            };
            match place.point {
                FetchPoint::Number(at) => places(at[n], offset[n], size, mode, sampler),
                FetchPoint::Texel(at) => counted(at[n], offset[n], size, mode),
            }
        };
        let (xs, ys, zs) = (along(0), along(1), along(2));
        for (z, z_weight) in zs {
            for (y, y_weight) in ys {
                for (x, x_weight) in xs {
                    let weight = x_weight * y_weight * z_weight * level_weight;
                    if weight == 0.0 {
                        continue;
                    }
                    let texel = x.zip(y).zip(z);
                    let at = texel.map(|((x, y), z)| address(image, level, [x, y, z], layer));
                    out.push(Tap { at, weight });
                }
            }
        }
    }
    out
}

/// The four texels that linear filtering would read, counter-clockwise from the lower left.
pub(crate) fn gathered(image: &TexelImage, sampler: &Sampler, place: &FetchPlace) -> Footprint {
    let level = &image.levels[0];
    let pair = |n: usize| {
        let (size, is_normalised) = (level.extent[n], sampler.is_normalised);
        let mode = effective(sampler.address[n], is_normalised);
        let first = match place.point {
            FetchPoint::Number(at) => {
                whole((in_texels(at[n], size, mode, is_normalised) - 0.5).floor())
            }
            FetchPoint::Texel(at) => i64::from(at[n]),
        };
        [first, first + 1].map(|at| resolve(at + i64::from(place.offset[n]), size, mode))
    };
    let (xs, ys) = (pair(0), pair(1));
    let mut out = Footprint::new();
    for (i, j) in [(0, 1), (1, 1), (1, 0), (0, 0)] {
        let texel = xs[i].zip(ys[j]);
        let at = texel.map(|(x, y)| address(image, level, [x, y, 0], place.layer));
        out.push(Tap { at, weight: 1.0 });
    }
    out
}

/// The face of a cube that a direction points to, and the place on it from 0 to 1.
pub(crate) fn cube_face(direction: [f32; 3]) -> (u32, [f32; 2]) {
    let [x, y, z] = direction.map(f64::from);
    let (ax, ay, az) = (x.abs(), y.abs(), z.abs());
    let (face, major, s, t) = if ax >= ay && ax >= az {
        if x >= 0.0 {
            (0, ax, -z, -y)
        } else {
            (1, ax, z, -y)
        }
    } else if ay >= az {
        if y >= 0.0 {
            (2, ay, x, z)
        } else {
            (3, ay, x, -z)
        }
    } else if z >= 0.0 {
        (4, az, x, -y)
    } else {
        (5, az, -x, -y)
    };
    (face, [s, t].map(|c| ((c / major + 1.0) / 2.0) as f32))
}

#[cfg(test)]
mod tests {
    use super::super::texel::{ComponentType, TexelFormat};
    use super::*;

    fn image(extent: [u32; 3]) -> TexelImage {
        TexelImage {
            format: TexelFormat {
                component: ComponentType::U8,
                channels: 1,
                fraction: false,
            },
            levels: vec![ImageLevel {
                at: 0,
                pitch: 16,
                slice: 256,
                extent,
            }],
            layers: 0,
            is_buffer: false,
        }
    }

    fn line(sampler: &Sampler, x: f32) -> Vec<(Option<u64>, f64)> {
        let place = FetchPlace {
            point: FetchPoint::Number([x, 0.0, 0.0]),
            offset: [0; 3],
            layer: 0,
            level: LevelChoice::Base,
        };
        let found = footprint(&image([4, 1, 1]), sampler, 1, &place);
        found.taps().iter().map(|t| (t.at, t.weight)).collect()
    }

    #[test]
    fn coordinates_outside_lead_where_the_mode_says() {
        let modes = [
            (AddressMode::Wrap, [3, 0, 1]),
            (AddressMode::Mirror, [0, 3, 2]),
            (AddressMode::Clamp, [0, 3, 3]),
        ];
        for (mode, want) in modes {
            let sampler = Sampler {
                address: [mode; 3],
                is_normalised: true,
                ..Sampler::default()
            };
            for (x, want) in [-0.1, 1.1, 1.4].into_iter().zip(want) {
                assert_eq!(line(&sampler, x), [(Some(want), 1.0)], "{mode:?} {x}");
            }
        }
        let border = Sampler {
            address: [AddressMode::Border; 3],
            ..Sampler::default()
        };
        assert_eq!(line(&border, 4.0), [(None, 1.0)]);
        assert_eq!(line(&border, -0.01), [(None, 1.0)]);
        assert_eq!(line(&border, 3.99), [(Some(3), 1.0)]);
        // Repetition without normalised coordinates is no mode of its own.
        let plain = Sampler {
            address: [AddressMode::Wrap; 3],
            ..Sampler::default()
        };
        assert_eq!(line(&plain, 5.0), [(Some(3), 1.0)]);
    }

    #[test]
    fn weights_have_eight_fractional_bits() {
        let sampler = Sampler {
            is_linear: true,
            ..Sampler::default()
        };
        assert_eq!(line(&sampler, 1.5), [(Some(1), 1.0)]);
        assert_eq!(line(&sampler, 2.0), [(Some(1), 0.5), (Some(2), 0.5)]);
        let third = line(&sampler, 1.5 + 1.0 / 3.0);
        assert_eq!(third[1], (Some(2), 85.0 / 256.0));
        // Both ends of the line are the same texel there.
        let ends = line(&sampler, 0.25);
        assert!(ends.iter().all(|t| t.0 == Some(0)));
        assert_eq!(ends.iter().map(|t| t.1).sum::<f64>(), 1.0);
    }

    #[test]
    fn coordinates_that_are_no_numbers_lead_to_texels() {
        for mode in [
            AddressMode::Wrap,
            AddressMode::Mirror,
            AddressMode::Clamp,
            AddressMode::Border,
        ] {
            for is_linear in [false, true] {
                let sampler = Sampler {
                    address: [mode; 3],
                    is_linear,
                    is_normalised: true,
                    ..Sampler::default()
                };
                for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -1e-40] {
                    for (at, weight) in line(&sampler, x) {
                        assert!(at.is_none_or(|at| at < 4) && weight > 0.0);
                    }
                }
            }
        }
    }

    #[test]
    fn every_axis_has_its_face() {
        let faces = [
            [1.0, 0.0, 0.0],
            [-1.0, 0.0, 0.0],
            [0.0, 1.0, 0.0],
            [0.0, -1.0, 0.0],
            [0.0, 0.0, 1.0],
            [0.0, 0.0, -1.0],
        ];
        for (n, direction) in faces.into_iter().enumerate() {
            assert_eq!(cube_face(direction), (n as u32, [0.5, 0.5]));
        }
        // The corner where x is positive and y is up is at the top left of its face.
        let (face, [s, t]) = cube_face([1.0, 0.9, 0.8]);
        assert!(face == 0 && s < 0.5 && t < 0.5);
    }
}
