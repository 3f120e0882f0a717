//! The property of any bytes that are read as a model; mutations and cargo-fuzz both call it.

use std::path::Path;

use fercuda_modelfile::{Error, ModelFile, PartContent};

/// Elements of a tensor that are decoded.
const ELEMENTS: u64 = 1 << 16;

/// Uses everything that a model offers, which must not panic.
pub(crate) fn holds_for(bytes: &[u8]) {
    let len = bytes.len() as u64;
    let model = match ModelFile::from_bytes(Path::new("file"), bytes.to_vec()) {
        Ok(model) => model,
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("\ntry: "), "{said}");
            if let Error::InFile { source, .. } = error
                && let Error::Malformed { at, .. } = *source
            {
                assert!(at <= len, "byte {at} of {len}");
            }
            return;
        }
    };
    let mut covered = 0;
    for tensor in model.tensors() {
        covered += tensor.bytes.len() as u64;
        assert!(tensor.at + tensor.bytes.len() as u64 <= len || tensor.bytes.is_empty());
        let bytes = tensor.kind.bytes_of(tensor.elements());
        assert_eq!(bytes, Some(tensor.bytes.len() as u64), "{}", tensor.name);
        if tensor.elements() <= ELEMENTS && !tensor.name.contains('\u{fffd}') {
            let found = model.tensor(&tensor.name).unwrap();
            assert_eq!(found.at, tensor.at);
            if let Ok(values) = model.read_tensor(&tensor.name) {
                assert_eq!(values.len() as u64, tensor.elements());
            }
        }
    }
    assert!(covered <= len, "tensors overlap");
    for name in model.weight_names() {
        let is_small = model
            .tensor(&name)
            .is_ok_and(|it| it.elements() <= ELEMENTS);
        if (is_small || len < ELEMENTS)
            && let Ok(weight) = model.read_weight(&name)
        {
            let elements: u64 = weight.shape.iter().product();
            assert_eq!(elements, weight.values.len() as u64);
        }
    }
    match model.parts()[0].content() {
        PartContent::Gguf(file) => {
            for (key, value) in file.metadata() {
                let text = str::from_utf8(key);
                assert!(text.is_err() || file.get(text.unwrap()).is_some());
                let array = value.as_array();
                assert!(array.is_none_or(|it| it.iter().count() as u64 == it.len()));
                assert!(value.to_string().len() as u64 <= 3 * len + 100);
            }
        }
        PartContent::Safetensors(file) => {
            file.metadata();
        }
    }
}
