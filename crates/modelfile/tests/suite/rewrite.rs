//! Models written again.

use std::path::Path;

use fercuda_modelfile::{GgufBuilder, GgufValue, ModelFile, RewritePlan, TensorType};

use crate::support::{self, Part, safetensors_of};

fn kind(name: &str) -> TensorType {
    name.parse().unwrap()
}

fn gguf_of(plan: &RewritePlan, model: &ModelFile) -> ModelFile {
    let (mut file, mut counted) = (Vec::new(), 0);
    let count = |bytes| counted += bytes;
    plan.write_gguf(model, &mut file, Path::new("out"), count)
        .unwrap();
    assert_eq!(counted, plan.bytes());
    ModelFile::from_bytes(Path::new("out"), file).unwrap()
}

fn f32s(random: &mut fastrand::Rng, count: usize) -> Vec<u8> {
    let values = (0..count).map(|_| random.f32() - 0.5);
    values.flat_map(f32::to_le_bytes).collect()
}

/// A GGUF file with matrices of several widths.
fn model(random: &mut fastrand::Rng) -> ModelFile {
    let tensors: [(&str, &[u64]); 6] = [
        ("token_embd.weight", &[300, 512]),
        ("blk.0.ffn_up.weight", &[3, 64]),
        ("blk.0.odd.weight", &[3, 33]),
        ("blk.0.attn_norm.weight", &[512]),
        ("blk.0.ffn_gate_inp.weight", &[4, 512]),
        ("blk.0.experts.weight", &[2, 3, 256]),
    ];
    let mut builder = GgufBuilder::new();
    builder
        .set(b"general.architecture", &GgufValue::String(b"llama"))
        .unwrap();
    builder
        .set(b"general.file_type", &GgufValue::U32(0))
        .unwrap();
    for (name, shape) in tensors {
        builder.add_tensor(name, kind("F32"), shape).unwrap();
    }
    let mut writer = builder.start(Vec::new()).unwrap();
    for (_, shape) in tensors {
        let count = shape.iter().product::<u64>() as usize;
        writer.write(&f32s(random, count)).unwrap();
    }
    ModelFile::from_bytes(Path::new("in"), writer.finish().unwrap()).unwrap()
}

#[test]
fn matrices_are_quantised_as_a_whole_tensor_would_be_and_the_rest_is_f32() {
    let model = model(&mut fercuda_trials::rng());
    for (requested, expected, number) in [
        ("Q8_0", ["Q8_0", "Q8_0", "F16", "F32", "F32", "Q8_0"], 7),
        ("Q4_K", ["Q4_K", "Q5_0", "F16", "F32", "F32", "Q4_K"], 14),
        ("Q6_K", ["Q6_K", "Q8_0", "F16", "F32", "F32", "Q6_K"], 18),
        ("BF16", ["BF16", "BF16", "BF16", "F32", "F32", "BF16"], 32),
    ] {
        let plan = RewritePlan::quantised(&model, kind(requested)).unwrap();
        let new = gguf_of(&plan, &model);
        let kinds: Vec<_> = new.tensors().map(|it| it.kind.name()).collect();
        assert_eq!(kinds, expected);
        for tensor in new.tensors() {
            let values = model.read_tensor(&tensor.name).unwrap();
            let mut whole = vec![0; tensor.bytes.len()];
            tensor.kind.encode(&values, &mut whole).unwrap();
            assert!(tensor.bytes == whole, "{requested} {}", tensor.name);
        }
        let file = new.gguf().unwrap();
        assert_eq!(
            file.get("general.architecture").unwrap().as_str(),
            Some("llama")
        );
        assert_eq!(
            file.get("general.file_type").unwrap().as_u64(),
            Some(number)
        );
        assert_eq!(
            file.get("general.quantization_version").unwrap().as_u64(),
            Some(2)
        );
    }
    let refused = RewritePlan::quantised(&model, kind("IQ2_S"))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("IQ2_S is not encoded"), "{refused}");
}

#[test]
fn a_conversion_without_a_type_keeps_bytes() {
    let model = ModelFile::from_bytes(Path::new("in"), support::gguf()).unwrap();
    let plan = RewritePlan::converted(&model, None).unwrap();
    let new = gguf_of(&plan, &model);
    assert_eq!(new.gguf().unwrap().file(), support::gguf());
}

#[test]
fn quantised_checkpoints_become_plain_safetensors_files() {
    for file in crate::packed::files() {
        let model = ModelFile::from_bytes(Path::new("in"), file).unwrap();
        let plan = RewritePlan::converted(&model, Some(kind("F32"))).unwrap();
        let mut new = Vec::new();
        let written = plan.write_safetensors(&model, &mut new, Path::new("out"), |_| {});
        written.unwrap();
        let new = ModelFile::from_bytes(Path::new("out"), new).unwrap();
        let weight = model.read_weight("m.weight").unwrap();
        let tensor = new.tensor("m.weight").unwrap();
        assert_eq!(tensor.shape, weight.shape);
        assert_eq!(tensor.decode().unwrap(), weight.values);
        assert_eq!((new.tensor_count(), tensor.at % 8), (1, 0));
        let blocks = RewritePlan::quantised(&model, kind("Q8_0")).unwrap();
        let refused = blocks.write_safetensors(&model, &mut Vec::new(), Path::new("out"), |_| {});
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("is of Q8_0, of blocks")
        );
    }
}

#[test]
fn elements_that_are_no_numbers_are_named_by_their_place() {
    let mut values = vec![0.5f32; 64];
    values[37] = f32::NAN;
    let bytes = values.iter().flat_map(|it| it.to_le_bytes()).collect();
    let parts: [Part<'_>; 1] = [("a.weight", "F32", vec![2, 32], bytes)];
    let model = ModelFile::from_bytes(Path::new("in"), safetensors_of(&parts)).unwrap();
    let plan = RewritePlan::quantised(&model, kind("Q8_0")).unwrap();
    let said = plan.write_gguf(&model, &mut Vec::new(), Path::new("out"), |_| {});
    let said = said.unwrap_err().to_string();
    assert!(
        said.contains("element 37 of \"a.weight\" is NaN, which Q8_0 cannot have"),
        "{said}"
    );
}
