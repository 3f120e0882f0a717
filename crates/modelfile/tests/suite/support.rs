//! Model files made for tests.

use fercuda_modelfile::{GgufBuilder, GgufKind, GgufValue, TensorType};

/// A GGUF file with a value of every kind and tensors of several types.
pub(crate) fn gguf() -> Vec<u8> {
    let mut builder = GgufBuilder::new();
    let values = [
        GgufValue::U8(1),
        GgufValue::I8(-1),
        GgufValue::U16(2),
        GgufValue::I16(-2),
        GgufValue::U32(3),
        GgufValue::I32(-3),
        GgufValue::F32(0.5),
        GgufValue::Bool(true),
        GgufValue::String(b"llama"),
        GgufValue::U64(4),
        GgufValue::I64(-4),
        GgufValue::F64(0.25),
    ];
    for value in values {
        builder
            .set(format!("a.{:?}", value.kind()).as_bytes(), &value)
            .unwrap();
    }
    let texts = [&b"<s>"[..], b"", b"\xff\xfe"].map(GgufValue::String);
    builder
        .set_array(b"tokens", GgufKind::String, texts)
        .unwrap();
    let numbers = [1.0, 2.0].map(GgufValue::F32);
    builder
        .set_array(b"scores", GgufKind::F32, numbers)
        .unwrap();
    let tensors: [(&str, &str, &[u64]); 6] = [
        ("norm", "F32", &[4]),
        ("odd", "F16", &[3, 5]),
        ("q8", "Q8_0", &[2, 64]),
        ("k", "Q4_K", &[1, 256]),
        ("none", "F32", &[0, 4]),
        ("iq", "IQ2_S", &[256]),
    ];
    let mut sizes = Vec::new();
    for (name, kind, shape) in tensors {
        let kind: TensorType = kind.parse().unwrap();
        builder.add_tensor(name, kind, shape).unwrap();
        sizes.push(kind.bytes_of(shape.iter().product()).unwrap());
    }
    let bytes = builder.file_bytes();
    let mut writer = builder.start(Vec::new()).unwrap();
    for (at, size) in sizes.into_iter().enumerate() {
        let data: Vec<u8> = (0..size)
            .map(|it| (it * 7 + at as u64) as u8 & 0x3f)
            .collect();
        writer.write(&data).unwrap();
    }
    let file = writer.finish().unwrap();
    assert_eq!(file.len() as u64, bytes);
    file
}

/// A safetensors file with this header, in which `@` stands for its data's end.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// A tensor of a safetensors file: name, type, shape, bytes.
pub(crate) type Part<'a> = (&'a str, &'a str, Vec<u64>, Vec<u8>);

/// A safetensors file with these tensors.
pub(crate) fn safetensors_of(parts: &[Part<'_>]) -> Vec<u8> {
    let (mut members, mut data) = (Vec::new(), Vec::new());
    for (name, kind, shape, bytes) in parts {
        let from = data.len();
        data.extend(bytes);
        let to = data.len();
        members.push(format!(
            "{name:?}:{{\"dtype\":{kind:?},\"shape\":{shape:?},\"data_offsets\":[{from},{to}]}}"
        ));
    }
    safetensors(&format!("{{{}}}", members.join(",")), &data)
}
