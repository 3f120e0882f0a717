//! Weights of quantised checkpoints, packed here as each format defines it.

use std::path::Path;

use fercuda_modelfile::{ModelFile, WeightFormat, WeightValues};

use crate::support::{Part, safetensors_of};

const OUTPUTS: usize = 16;
const INPUTS: usize = 32;
const GROUP: usize = 8;

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|it| it.to_le_bytes()).collect()
}

fn f16s(values: &[f32]) -> Vec<u8> {
    let halves = values
        .iter()
        .map(|it| half::f16::from_f32(*it).to_le_bytes());
    halves.flatten().collect()
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|it| it.to_le_bytes()).collect()
}

/// A matrix of random codes below `limit`, in rows.
fn codes(random: &mut fastrand::Rng, count: usize, limit: u32) -> Vec<u32> {
    (0..count).map(|_| random.u32(..limit)).collect()
}

/// Multiples of 1/1024 that are exact in f16.
fn scales(random: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count)
        .map(|_| random.u16(1..2048) as f32 / 1024.0)
        .collect()
}

fn half(value: f32) -> f32 {
    half::f16::from_f32(value).to_f32()
}

/// A file, the weight's name, what its elements are, its format.
struct Packed {
    file: Vec<u8>,
    name: &'static str,
    expected: Vec<f32>,
    format: WeightFormat,
}

fn shape(extents: &[usize]) -> Vec<u64> {
    extents.iter().map(|it| *it as u64).collect()
}

fn awq(random: &mut fastrand::Rng) -> Packed {
    let groups = INPUTS / GROUP;
    let (of_inputs, of_groups) = (
        codes(random, INPUTS * OUTPUTS, 16),
        codes(random, groups * OUTPUTS, 16),
    );
    let factors = scales(random, groups * OUTPUTS);
    // Position in a word, output in eight.
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    let pack = |codes: &[u32]| {
        let eights = codes
            .chunks(8)
            .map(|eight| (0..8).fold(0, |word, at| word | eight[order[at]] << (4 * at)));
        words(&eights.collect::<Vec<_>>())
    };
    let expected = (0..OUTPUTS * INPUTS).map(|at| {
        let (output, input) = (at / INPUTS, at % INPUTS);
        let group = input / GROUP * OUTPUTS + output;
        let level = of_inputs[input * OUTPUTS + output] as f32 - of_groups[group] as f32;
        half(level * factors[group])
    });
    let parts: [Part<'_>; 3] = [
        (
            "m.qweight",
            "I32",
            shape(&[INPUTS, OUTPUTS / 8]),
            pack(&of_inputs),
        ),
        (
            "m.qzeros",
            "I32",
            shape(&[groups, OUTPUTS / 8]),
            pack(&of_groups),
        ),
        ("m.scales", "F16", shape(&[groups, OUTPUTS]), f16s(&factors)),
    ];
    Packed {
        file: safetensors_of(&parts),
        name: "m.weight",
        expected: expected.collect(),
        format: WeightFormat::Awq,
    }
}

/// A sequence of bits, the first lowest, as words.
fn bits(codes: impl Iterator<Item = u32>, width: u32) -> Vec<u32> {
    let mut words = Vec::new();
    let (mut filled, mut bits) = (0, 0u64);
    for code in codes {
        bits |= u64::from(code) << filled;
        filled += width;
        if filled >= 32 {
            words.push(bits as u32);
            (bits, filled) = (bits >> 32, filled - 32);
        }
    }
    assert_eq!(filled, 0);
    words
}

fn gptq(random: &mut fastrand::Rng, width: u32, is_ordered: bool) -> Packed {
    // Of three bits, 32 codes are three words.
    let (outputs, inputs, groups) = (32, INPUTS, INPUTS / GROUP);
    let levels = 1 << width;
    let of_inputs = codes(random, inputs * outputs, levels);
    let of_groups = codes(random, groups * outputs, levels);
    let factors = scales(random, groups * outputs);
    let group_of: Vec<u32> = (0..inputs)
        .map(|at| {
            if is_ordered {
                random.u32(..groups as u32)
            } else {
                (at / GROUP) as u32
            }
        })
        .collect();
    let rows = inputs * width as usize / 32;
    let mut packed = vec![0; rows * outputs];
    for output in 0..outputs {
        let column = (0..inputs).map(|input| of_inputs[input * outputs + output]);
        for (row, word) in bits(column, width).into_iter().enumerate() {
            packed[row * outputs + output] = word;
        }
    }
    let zeros: Vec<u32> = of_groups
        .chunks(outputs)
        .flat_map(|row| {
            bits(
                row.iter().map(|it| it.wrapping_sub(1) & (levels - 1)),
                width,
            )
        })
        .collect();
    let expected = (0..outputs * inputs).map(|at| {
        let (output, input) = (at / inputs, at % inputs);
        let group = group_of[input] as usize * outputs + output;
        let level = of_inputs[input * outputs + output] as f32 - of_groups[group] as f32;
        half(level * factors[group])
    });
    let expected = expected.collect();
    let zero_words = outputs * width as usize / 32;
    let mut parts: Vec<Part<'_>> = vec![
        ("m.qweight", "I32", shape(&[rows, outputs]), words(&packed)),
        (
            "m.qzeros",
            "I32",
            shape(&[groups, zero_words]),
            words(&zeros),
        ),
        ("m.scales", "F16", shape(&[groups, outputs]), f16s(&factors)),
    ];
    if is_ordered {
        parts.push(("m.g_idx", "I32", shape(&[inputs]), words(&group_of)));
    }
    Packed {
        file: safetensors_of(&parts),
        name: "m.weight",
        expected,
        format: WeightFormat::Gptq,
    }
}

fn compressed(random: &mut fastrand::Rng, has_zeros: bool) -> Packed {
    let groups = INPUTS / GROUP;
    let of_inputs = codes(random, OUTPUTS * INPUTS, 16);
    let of_groups = codes(random, OUTPUTS * groups, 16);
    let factors = scales(random, OUTPUTS * groups);
    let packed = bits(of_inputs.iter().copied(), 4);
    // Along outputs.
    let mut zeros = vec![0; OUTPUTS / 8 * groups];
    for (at, code) in of_groups.iter().enumerate() {
        let (output, group) = (at / groups, at % groups);
        zeros[output / 8 * groups + group] |= code << (4 * (output % 8));
    }
    let expected = (0..OUTPUTS * INPUTS).map(|at| {
        let group = at / INPUTS * groups + at % INPUTS / GROUP;
        let zero = if has_zeros {
            of_groups[group] as f32
        } else {
            8.0
        };
        half((of_inputs[at] as f32 - zero) * factors[group])
    });
    let expected = expected.collect();
    let extents = [OUTPUTS as u32, 0, INPUTS as u32, 0];
    let mut parts: Vec<Part<'_>> = vec![
        (
            "m.weight_packed",
            "I32",
            shape(&[OUTPUTS, INPUTS / 8]),
            words(&packed),
        ),
        (
            "m.weight_scale",
            "F16",
            shape(&[OUTPUTS, groups]),
            f16s(&factors),
        ),
        ("m.weight_shape", "I64", vec![2], words(&extents)),
    ];
    if has_zeros {
        parts.push((
            "m.weight_zero_point",
            "I32",
            shape(&[OUTPUTS / 8, groups]),
            words(&zeros),
        ));
    }
    Packed {
        file: safetensors_of(&parts),
        name: "m.weight",
        expected,
        format: WeightFormat::Packed,
    }
}

const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

fn pairs(codes: &[u32], is_first_low: bool) -> Vec<u8> {
    let pairs = codes.chunks(2).map(|pair| match is_first_low {
        true => (pair[0] | pair[1] << 4) as u8,
        false => (pair[1] | pair[0] << 4) as u8,
    });
    pairs.collect()
}

fn fp4(random: &mut fastrand::Rng, format: WeightFormat, is_blocks: bool) -> Packed {
    let in_group = if format == WeightFormat::Nvfp4 {
        16
    } else {
        32
    };
    let groups = INPUTS / in_group;
    let of_inputs = codes(random, OUTPUTS * INPUTS, 16);
    // E4M3 from 1 to 1.875 times 2^-2 to 2^3, or powers of two.
    let (of_groups, factors): (Vec<u8>, Vec<f32>) = (0..OUTPUTS * groups)
        .map(|_| {
            let (exponent, fraction) = (random.u8(5..11), random.u8(..8));
            let power = 2f32.powi(i32::from(exponent) - 7);
            match format {
                WeightFormat::Nvfp4 => {
                    let value = (1.0 + f32::from(fraction) / 8.0) * power;
                    (exponent << 3 | fraction, value / 64.0)
                }
                _ => (exponent + 120, power),
            }
        })
        .unzip();
    let expected = (0..OUTPUTS * INPUTS)
        .map(|at| E2M1[of_inputs[at] as usize] * factors[at / in_group])
        .collect();
    let codes = pairs(&of_inputs, true);
    let parts: Vec<Part<'_>> = match (format, is_blocks) {
        (WeightFormat::Nvfp4, false) => vec![
            (
                "m.weight_packed",
                "U8",
                shape(&[OUTPUTS, INPUTS / 2]),
                codes,
            ),
            (
                "m.weight_scale",
                "F8_E4M3",
                shape(&[OUTPUTS, groups]),
                of_groups,
            ),
            ("m.weight_global_scale", "F32", vec![1], f32s(&[64.0])),
        ],
        (WeightFormat::Nvfp4, true) => vec![
            ("m.weight", "U8", shape(&[OUTPUTS, INPUTS / 2]), codes),
            (
                "m.weight_scale",
                "F8_E4M3",
                shape(&[OUTPUTS, groups]),
                of_groups,
            ),
            ("m.weight_scale_2", "F32", vec![], f32s(&[1.0 / 64.0])),
        ],
        (_, false) => vec![
            (
                "m.weight_packed",
                "U8",
                shape(&[OUTPUTS, INPUTS / 2]),
                codes,
            ),
            ("m.weight_scale", "U8", shape(&[OUTPUTS, groups]), of_groups),
        ],
        (_, true) => vec![
            (
                "m.weight_blocks",
                "U8",
                shape(&[2, OUTPUTS / 2, groups, 16]),
                codes,
            ),
            (
                "m.weight_scales",
                "U8",
                shape(&[2, OUTPUTS / 2, groups]),
                of_groups,
            ),
        ],
    };
    Packed {
        file: safetensors_of(&parts),
        name: "m.weight",
        expected,
        format,
    }
}

/// Floats of 8 bits, by blocks of 128 with a rest, by rows, or all by one scale.
fn fp8(random: &mut fastrand::Rng, scale_shape: &[usize], end: &'static str) -> Packed {
    let (rows, columns) = (130, 260);
    // From 1 to 1.875, with either sign.
    let of_elements: Vec<u8> = (0..rows * columns)
        .map(|_| 7 << 3 | random.u8(..8) | u8::from(random.bool()) << 7)
        .collect();
    let factors = scales(random, scale_shape.iter().product());
    let expected = (0..rows * columns).map(|at| {
        let (row, column) = (at / columns, at % columns);
        let place = match scale_shape {
            [] | [1] => 0,
            [_, 1] | [_] => row,
            [_, across] => row / 128 * across + column / 128,
            _ => unreachable!(),
        };
        let code = of_elements[at];
        let value = 1.0 + f32::from(code & 7) / 8.0;
        let sign = if code >> 7 == 1 { -1.0 } else { 1.0 };
        sign * value * factors[place]
    });
    let expected = expected.collect();
    let parts: [Part<'_>; 2] = [
        ("m.weight", "F8_E4M3", shape(&[rows, columns]), of_elements),
        (end, "F32", shape(scale_shape), f32s(&factors)),
    ];
    Packed {
        file: safetensors_of(&parts),
        name: "m.weight",
        expected,
        format: WeightFormat::Scaled,
    }
}

/// bitsandbytes, with scales that are codes themselves, or not.
fn nf4(random: &mut fastrand::Rng, is_nested: bool) -> Packed {
    let (count, block, nested_block) = (OUTPUTS * INPUTS, 64, 4);
    let of_elements = codes(random, count, 16);
    let levels: Vec<f32> = (0..16).map(|at| at as f32 / 8.0 - 1.0).collect();
    let nested_levels: Vec<f32> = (0..256).map(|at| at as f32 / 128.0 - 1.0).collect();
    let of_blocks = codes(random, count / block, 256);
    let nested = scales(random, (count / block).div_ceil(nested_block));
    let offset = 0.25f32;
    let factors: Vec<f32> = match is_nested {
        true => (of_blocks.iter().enumerate())
            .map(|(at, code)| nested_levels[*code as usize] * nested[at / nested_block] + offset)
            .collect(),
        false => scales(random, count / block),
    };
    let expected = (0..count)
        .map(|at| half(levels[of_elements[at] as usize] * factors[at / block]))
        .collect();
    let mut state = format!(
        r#"{{"quant_type":"nf4","blocksize":{block},"dtype":"float16","shape":[{OUTPUTS},{INPUTS}]"#
    );
    if is_nested {
        state += &format!(
            r#","nested_blocksize":{nested_block},"nested_dtype":"float32","nested_offset":{offset}"#
        );
    }
    state.push('}');
    let state = state.into_bytes();
    let mut parts: Vec<Part<'_>> = vec![
        (
            "m.weight",
            "U8",
            shape(&[count / 2, 1]),
            pairs(&of_elements, false),
        ),
        ("m.weight.quant_map", "F32", vec![16], f32s(&levels)),
        (
            "m.weight.quant_state.bitsandbytes__nf4",
            "U8",
            shape(&[state.len()]),
            state,
        ),
    ];
    match is_nested {
        true => {
            let codes: Vec<u8> = of_blocks.iter().map(|it| *it as u8).collect();
            parts.push(("m.weight.absmax", "U8", shape(&[codes.len()]), codes));
            parts.push((
                "m.weight.nested_absmax",
                "F32",
                shape(&[nested.len()]),
                f32s(&nested),
            ));
            parts.push((
                "m.weight.nested_quant_map",
                "F32",
                vec![256],
                f32s(&nested_levels),
            ));
        }
        false => parts.push((
            "m.weight.absmax",
            "F32",
            shape(&[factors.len()]),
            f32s(&factors),
        )),
    }
    Packed {
        file: safetensors_of(&parts),
        name: "m.weight",
        expected,
        format: WeightFormat::Table,
    }
}

fn all(random: &mut fastrand::Rng) -> Vec<Packed> {
    vec![
        awq(random),
        gptq(random, 2, false),
        gptq(random, 3, false),
        gptq(random, 4, true),
        gptq(random, 8, false),
        compressed(random, false),
        compressed(random, true),
        fp4(random, WeightFormat::Nvfp4, false),
        fp4(random, WeightFormat::Nvfp4, true),
        fp4(random, WeightFormat::Mxfp4, false),
        fp4(random, WeightFormat::Mxfp4, true),
        fp8(random, &[2, 3], "m.weight_scale_inv"),
        fp8(random, &[130, 1], "m.weight_scale"),
        fp8(random, &[130], "m.weight_scale"),
        fp8(random, &[1], "m.weight_scale"),
        fp8(random, &[], "m.weight_scale"),
        nf4(random, true),
        nf4(random, false),
    ]
}

/// A small file of each format, for mutations.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let packed = all(&mut fastrand::Rng::with_seed(1)).into_iter();
    packed
        .map(|it| it.file)
        .filter(|it| it.len() < 8192)
        .collect()
}

#[test]
fn weights_are_what_was_packed_to_the_bit() {
    for (index, packed) in all(&mut fercuda_trials::rng()).into_iter().enumerate() {
        let of = format!("{index}: {:?}", packed.format);
        let model = ModelFile::from_bytes(Path::new("m"), packed.file).unwrap();
        assert_eq!(model.weight_names(), [packed.name], "{of}");
        let weight = model.read_weight(packed.name).unwrap();
        let WeightValues {
            shape,
            values,
            format,
        } = weight;
        assert_eq!(format, packed.format, "{of}");
        assert_eq!(shape.iter().product::<u64>(), values.len() as u64, "{of}");
        let bits = |values: &[f32]| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&values), bits(&packed.expected), "{of}");
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused_by_name() {
    let word = |count: usize| words(&vec![0; count]);
    let parts: [Part<'_>; 3] = [
        ("m.qweight", "I32", vec![32, 2], word(64)),
        ("m.qzeros", "I32", vec![4, 3], word(12)),
        ("m.scales", "F16", vec![4, 16], vec![0; 128]),
    ];
    let model = ModelFile::from_bytes(Path::new("m"), safetensors_of(&parts)).unwrap();
    let said = model.read_weight("m.weight").unwrap_err().to_string();
    assert!(
        said.contains("weight \"m.weight\": \"m.qzeros\" has shape [4, 3], not [4, 2]"),
        "{said}"
    );
    let said = model.read_weight("n.weight").unwrap_err().to_string();
    assert!(said.contains("no tensor \"n.weight\" among 3"), "{said}");
}

#[test]
fn matrices_without_elements_take_no_time() {
    let many = 1u64 << 40;
    let parts: [Part<'_>; 4] = [
        ("m.qweight", "I32", vec![0, many], vec![]),
        ("m.qzeros", "I32", vec![0, many / 8], vec![]),
        ("m.scales", "F16", vec![0, many], vec![]),
        ("m.g_idx", "I32", vec![0], vec![]),
    ];
    let model = ModelFile::from_bytes(Path::new("m"), safetensors_of(&parts)).unwrap();
    let said = model.read_weight("m.weight").unwrap_err().to_string();
    assert!(
        said.contains("not that of a matrix with elements"),
        "{said}"
    );
}

/// The weights of `tests/references`, beside what reference libraries made of them.
#[test]
fn weights_are_those_of_the_reference_libraries_to_the_bit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references");
    let copies = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "safetensors") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let copy = copies.path().join(name);
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(&path, copy.join("model.safetensors")).unwrap();
        // Codes of three bits are not known by their shapes.
        if let Some(bits) = name.strip_prefix("packed") {
            let bits = bits.trim_end_matches('z');
            let text = format!(
                r#"{{"quantization_config":{{"config_groups":{{"g":{{"weights":{{"num_bits":{bits}}}}}}}}}}}"#
            );
            std::fs::write(copy.join("config.json"), text).unwrap();
        }
        let model = ModelFile::open(&copy).unwrap();
        let expected = model.tensor("expected").unwrap();
        let weight = model.read_weight("m.weight").unwrap();
        assert_eq!(weight.shape, expected.shape, "{name}");
        // A zero has no sign of its own: some libraries negate integers, others floats.
        let bits = |values: &[f32]| {
            values
                .iter()
                .map(|it| (it + 0.0).to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            bits(&weight.values),
            bits(&expected.decode().unwrap()),
            "{name}"
        );
        compared += 1;
    }
    assert_eq!(compared, 10);
}
