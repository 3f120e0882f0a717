//! Models of several files.

use std::fs;
use std::path::Path;

use fercuda_modelfile::{GgufBuilder, GgufValue, ModelFile};

use crate::support::{Part, gguf, safetensors_of};

fn one(name: &str, value: f32) -> Vec<u8> {
    let parts: [Part<'_>; 1] = [(name, "F32", vec![1], value.to_le_bytes().to_vec())];
    safetensors_of(&parts)
}

fn said(path: &Path) -> String {
    ModelFile::open(path).unwrap_err().to_string()
}

#[test]
fn shards_are_opened_by_their_index_and_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    fs::write(place.join("a-1.safetensors"), one("x", 1.0)).unwrap();
    fs::write(place.join("a-2.safetensors"), one("y", 2.0)).unwrap();
    fs::write(place.join("config.json"), r#"{"model_type":"llama"}"#).unwrap();
    let index = place.join("model.safetensors.index.json");
    let text = r#"{"metadata":{"total_size":8},"weight_map":{"y":"a-2.safetensors","x":"a-1.safetensors"}}"#;
    for is_indexed in [false, true] {
        if is_indexed {
            fs::write(&index, text).unwrap();
        }
        let model = ModelFile::open(place).unwrap();
        let names: Vec<_> = model.tensors().map(|it| it.name.into_owned()).collect();
        assert_eq!(names, ["x", "y"]);
        assert_eq!(model.read_tensor("y").unwrap(), [2.0]);
        assert_eq!(
            model.tensor("x").unwrap().file,
            place.join("a-1.safetensors")
        );
        assert_eq!(model.config().unwrap()["model_type"], "llama");
        let near = model.tensor("xy").unwrap_err().to_string();
        assert!(
            near.contains("no tensor \"xy\" among 2; one is \"y\""),
            "{near}"
        );
    }
    assert_eq!(ModelFile::open(&index).unwrap().tensor_count(), 2);
    assert_eq!(
        ModelFile::open(&place.join("a-1.safetensors"))
            .unwrap()
            .tensor_count(),
        1
    );
    let wrong = [
        (
            text.replace("\"y\"", "\"z\""),
            "tensor \"z\" is not in \"a-2.safetensors\"",
        ),
        (
            text.replace("a-2.s", "../a-2.s"),
            "is no name of a file beside it",
        ),
        (text.replace("a-2.s", "a-3.s"), "a-3.safetensors"),
        (text.replace("weight_map", "map"), "an index without files"),
        (text.replace('}', ""), "where `,` should be"),
    ];
    for (text, expected) in wrong {
        fs::write(&index, text).unwrap();
        let said = said(place);
        assert!(said.contains(expected), "{said}");
    }
    fs::remove_file(&index).unwrap();
    fs::write(place.join("a-3.safetensors"), one("x", 3.0)).unwrap();
    let said = said(place);
    assert!(
        said.contains("tensor \"x\" is in") && said.contains("a-3.safetensors"),
        "{said}"
    );
}

/// A file of a split model.
fn split(number: u16, count: u16, name: &str) -> Vec<u8> {
    let mut builder = GgufBuilder::new();
    builder.set(b"split.no", &GgufValue::U16(number)).unwrap();
    builder.set(b"split.count", &GgufValue::U16(count)).unwrap();
    builder
        .add_tensor(name, "F32".parse().unwrap(), &[1])
        .unwrap();
    let mut writer = builder.start(Vec::new()).unwrap();
    writer.write(&f32::from(number).to_le_bytes()).unwrap();
    writer.finish().unwrap()
}

#[test]
fn the_first_file_of_a_split_model_opens_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    for (number, name) in ["x", "y", "z"].into_iter().enumerate() {
        let file = format!("m-{:05}-of-00003.gguf", number + 1);
        fs::write(place.join(file), split(number as u16, 3, name)).unwrap();
    }
    for path in [place.to_owned(), place.join("m-00001-of-00003.gguf")] {
        let model = ModelFile::open(&path).unwrap();
        assert_eq!(model.read_tensor("z").unwrap(), [2.0]);
        assert_eq!(model.parts().len(), 3);
    }
    let said_of_second = said(&place.join("m-00002-of-00003.gguf"));
    assert!(
        said_of_second.contains("not the first by its name"),
        "{said_of_second}"
    );
    fs::remove_file(place.join("m-00003-of-00003.gguf")).unwrap();
    let said_of_first = said(place);
    assert!(said_of_first.contains("cannot open"), "{said_of_first}");
    assert!(
        said_of_first.contains("m-00003-of-00003.gguf"),
        "{said_of_first}"
    );
}

#[test]
fn what_is_no_model_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    assert!(said(place).contains("has no safetensors or GGUF file"));
    assert!(said(&place.join("absent")).contains("cannot open"));
    for (bytes, expected) in [
        (
            &b"PK\x03\x04 and more bytes of it"[..],
            "a pickle of PyTorch",
        ),
        (b"", "0 bytes that are no model"),
        (
            b"{\"architectures\": [\"Llama\"]}",
            "a file that begins with [7b, 22,",
        ),
        (b"tjgg and what follows it..", "before GGUF"),
    ] {
        let file = place.join("file.bin");
        fs::write(&file, bytes).unwrap();
        let said = said(&file);
        assert!(
            said.contains(expected) && said.contains("\ntry: "),
            "{said}"
        );
        assert!(said.contains("file.bin"), "{said}");
    }
    fs::write(place.join("a.gguf"), gguf()).unwrap();
    assert_eq!(
        ModelFile::open(place)
            .unwrap()
            .read_tensor("odd")
            .unwrap()
            .len(),
        15
    );
    fs::write(place.join("b.gguf"), gguf()).unwrap();
    assert!(said(place).contains("has 2 GGUF models"));
    assert!(said(Path::new("/dev/null")).contains("no regular file"));
}
