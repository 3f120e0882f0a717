//! Fetches by texture objects: formats, address modes, filters, dimensions, layers, levels.

use fercuda_cuda_sys::types::*;

use crate::bench::{
    Bench, array, component_bytes, fetched, fill, kernel, load, of_array, shape, texture,
};
use crate::reference::Picture;

const FORMATS: [CUarray_format; 8] = [
    CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8,
    CUarray_format::CU_AD_FORMAT_UNSIGNED_INT16,
    CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32,
    CUarray_format::CU_AD_FORMAT_SIGNED_INT8,
    CUarray_format::CU_AD_FORMAT_SIGNED_INT16,
    CUarray_format::CU_AD_FORMAT_SIGNED_INT32,
    CUarray_format::CU_AD_FORMAT_HALF,
    CUarray_format::CU_AD_FORMAT_FLOAT,
];

/// Random texels; floats are finite.
fn texels(random: &mut fastrand::Rng, format: CUarray_format, count: usize) -> Vec<u8> {
    let one = |random: &mut fastrand::Rng| -> Vec<u8> {
        let number = random.f32() * 200.0 - 100.0;
        match format {
            CUarray_format::CU_AD_FORMAT_FLOAT => number.to_le_bytes().to_vec(),
            CUarray_format::CU_AD_FORMAT_HALF => half::f16::from_f32(number).to_le_bytes().to_vec(),
            _ => (0..component_bytes(format))
                .map(|_| random.u8(..))
                .collect(),
        }
    };
    (0..count).flat_map(|_| one(random)).collect()
}

fn fetch_of(dims: usize) -> String {
    let (geometry, at) = [
        ("1d", "%f0"),
        ("2d", "%f0, %f1"),
        ("3d", "%f0, %f1, %f2, %f2"),
    ][dims - 1];
    format!("tex.{geometry}.v4.f32.f32 {{%o0, %o1, %o2, %o3}}, [%rd0, {{{at}}}];")
}

/// Coordinates inside and outside, texel centres and edges among them.
fn coordinates(random: &mut fastrand::Rng, extent: [usize; 3], normalised: bool) -> [f32; 4] {
    let mut one = |n: usize| {
        let size = extent[n] as f32;
        let texel = match random.u32(..4) {
            0 => random.i32(-3..3 * extent[n] as i32) as f32 + 0.5,
            1 => random.i32(-9..9) as f32 / 4.0 * size,
            _ => (random.f32() * 3.0 - 1.0) * size,
        };
        if normalised { texel / size } else { texel }
    };
    [one(0), one(1), one(2), 0.0]
}

#[test]
fn fetches_give_what_the_guide_says() {
    let _bench = Bench::new();
    let seed = fercuda_trials::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let modules = [1, 2, 3].map(|dims| load(&kernel("", &fetch_of(dims))));
    for round in 0..240 {
        let dims = random.usize(1..4);
        let mut extent = [1; 3];
        for size in &mut extent[..dims] {
            *size = random.usize(2..10);
        }
        let format = FORMATS[random.usize(..8)];
        let channels = [1, 2, 4][random.usize(..3)];
        let flags = random.u32(..4);
        let filter = random.u32(..2);
        let bytes = texels(
            &mut random,
            format,
            extent.iter().product::<usize>() * channels,
        );
        let mut described = extent;
        described[dims..].fill(0);
        let d = shape(described, format, channels as u32, 0);
        let image = array(&d);
        fill(image, &d, &bytes);
        let mode = CUaddress_mode(random.u32(..4));
        let mut picture = Picture {
            bytes: &bytes,
            extent,
            format,
            channels,
            mode,
            linear: filter == 1,
            normalised: flags & CU_TRSF_NORMALIZED_COORDINATES != 0,
            integers: flags & CU_TRSF_READ_AS_INTEGER != 0,
        };
        picture.linear &= !picture.gives_integers();
        let t = CUDA_TEXTURE_DESC {
            addressMode: [mode; 3],
            filterMode: CUfilter_mode(filter),
            flags,
            ..CUDA_TEXTURE_DESC::default()
        };
        let object = texture(&of_array(image), &t);
        let at: Vec<[f32; 4]> = (0..100)
            .map(|_| coordinates(&mut random, extent, picture.normalised))
            .collect();
        let got = fetched(modules[dims - 1], object, &at);
        for (at, got) in at.iter().zip(got) {
            let place = [at[0], at[1], at[2]];
            for (c, &got) in got.iter().enumerate().take(channels) {
                let what = format!(
                    "seed {seed} round {round}: {place:?} of {extent:?} {format:?} {mode:?} \
                     filter {filter} flags {flags} component {c}"
                );
                if picture.gives_integers() {
                    assert_eq!(got, picture.fetch_bits(place, c), "{what}");
                    continue;
                }
                let (want, most) = picture.fetch(place, c);
                let got = f32::from_bits(got);
                if !picture.linear {
                    assert_eq!(got.to_bits(), (want as f32).to_bits(), "{what}");
                }
                // One rounding of a sum whose terms are no larger than `most`.
                let bound = most * f64::from(f32::EPSILON);
                assert!(
                    (f64::from(got) - want).abs() <= bound,
                    "{what}: {got} {want}"
                );
            }
        }
        ok!(cuTexObjectDestroy(object));
        ok!(cuArrayDestroy(image));
    }
}
