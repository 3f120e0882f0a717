//! GGUF files: what is read, what is refused, and what is written.

use std::io::ErrorKind;

use fercuda_modelfile::{Error, Gguf, GgufBuilder, GgufKind, GgufValue, TensorType};

use crate::support;

/// Writes a file again from what was read of it.
fn rewritten(file: &Gguf<&[u8]>) -> Vec<u8> {
    let mut builder = GgufBuilder::new();
    for (key, value) in file.metadata() {
        builder.set(key, &value).unwrap();
    }
    for tensor in file.tensors() {
        builder
            .add_tensor(&tensor.name(), tensor.kind(), &tensor.shape())
            .unwrap();
    }
    let mut writer = builder.start(Vec::new()).unwrap();
    for tensor in file.tensors() {
        writer.write(tensor.bytes()).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn a_written_file_is_read_with_all_values_and_written_again_to_the_byte() {
    let bytes = support::gguf();
    let file = Gguf::parse(&bytes[..]).unwrap();
    assert_eq!((file.version(), file.alignment()), (3, 32));
    assert_eq!(file.get("a.I16"), Some(GgufValue::I16(-2)));
    assert_eq!(file.get("a.Bool"), Some(GgufValue::Bool(true)));
    assert_eq!(file.get("a.String").unwrap().as_str(), Some("llama"));
    assert_eq!(file.get("a.F64").unwrap().as_f64(), Some(0.25));
    assert_eq!(file.get("a.I8").unwrap().as_u64(), None);
    assert_eq!(file.get("b"), None);
    let tokens = file.get("tokens").unwrap().as_array().unwrap();
    assert_eq!((tokens.kind(), tokens.len()), (GgufKind::String, 3));
    let last = tokens.iter().last();
    assert_eq!(last, Some(GgufValue::String(b"\xff\xfe")));
    let odd = file.tensor(b"odd").unwrap();
    assert_eq!((odd.shape(), odd.elements()), (vec![3, 5], 15));
    assert_eq!(odd.bytes().len(), 30);
    assert_eq!(odd.at() % 32, 0);
    assert!(file.tensor(b"od").is_none());
    assert_eq!(rewritten(&file), bytes);
}

#[test]
fn other_versions_and_byte_orders_are_named() {
    let said = |at: usize, new: &[u8]| {
        let mut bytes = support::gguf();
        bytes[at..at + new.len()].copy_from_slice(new);
        Gguf::parse(&bytes[..]).unwrap_err().to_string()
    };
    assert!(said(4, &[0, 0, 0, 3]).contains("big-endian"));
    assert!(said(4, &[1, 0, 0, 0]).contains("version 1; versions 2 to 3"));
    assert!(said(0, b"tjgg").contains("before GGUF"));
    assert!(said(0, b"GGUX").contains("not with \"GGUF\""));
    let mut second = support::gguf();
    second[4] = 2;
    assert_eq!(Gguf::parse(&second[..]).unwrap().version(), 2);
}

/// A tensor's record: name, extents, type, offset.
type Row<'a> = (&'a [u8], &'a [u64], u32, u64);

/// A file with these keys and records of tensors, and zeros as data.
struct Raw {
    keys: Vec<(Vec<u8>, u32, Vec<u8>)>,
    tensors: Vec<(Vec<u8>, Vec<u64>, u32, u64)>,
    data: usize,
    alignment: usize,
}

impl Raw {
    fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.keys.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.keys {
            file.extend((key.len() as u64).to_le_bytes());
            file.extend(key);
            file.extend(kind.to_le_bytes());
            file.extend(value);
        }
        for (name, extents, kind, offset) in &self.tensors {
            file.extend((name.len() as u64).to_le_bytes());
            file.extend(name);
            file.extend((extents.len() as u32).to_le_bytes());
            for extent in extents {
                file.extend(extent.to_le_bytes());
            }
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
        }
        file.resize(file.len().next_multiple_of(self.alignment) + self.data, 0);
        file
    }

    fn of(tensors: &[Row<'_>], data: usize) -> Raw {
        let tensors = tensors.iter();
        let tensors =
            tensors.map(|(name, extents, kind, at)| (name.to_vec(), extents.to_vec(), *kind, *at));
        Raw {
            keys: Vec::new(),
            tensors: tensors.collect(),
            data,
            alignment: 32,
        }
    }

    fn said(&self) -> String {
        Gguf::parse(&self.bytes()[..]).unwrap_err().to_string()
    }
}

#[test]
fn leniently_read_are_alignments_padding_texts_gaps_and_empty_tensors() {
    // An alignment of 1 and of 4, of other integer types too.
    for (alignment, kind, value) in [
        (1, 4, vec![1, 0, 0, 0]),
        (4, 10, vec![4, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let mut raw = Raw::of(&[(b"a", &[3], 0, 0), (b"b", &[2], 0, 12)], 20);
        raw.keys = vec![(b"general.alignment".to_vec(), kind, value)];
        raw.alignment = alignment;
        let bytes = raw.bytes();
        let file = Gguf::parse(&bytes[..]).unwrap();
        assert_eq!(file.tensor(b"b").unwrap().bytes().len(), 8);
    }
    // The last tensor is not padded; a gap; one without elements at the end, and beyond it.
    let tensors: [Row<'_>; 5] = [
        (b"\xff\xfe", &[1], 0, 64),
        (b"a", &[2], 24, 0),
        (b"empty", &[0, 7], 0, 68),
        (b"far", &[0], 0, 1 << 40),
        (b"one", &[], 24, 32),
    ];
    let bytes = Raw::of(&tensors, 68).bytes();
    let file = Gguf::parse(&bytes[..]).unwrap();
    assert_eq!(file.tensor(b"\xff\xfe").unwrap().name(), "\u{fffd}\u{fffd}");
    assert_eq!(file.tensor(b"one").unwrap().elements(), 1);
    assert_eq!(file.tensor(b"empty").unwrap().bytes(), b"");
    assert_eq!(file.tensor(b"far").unwrap().bytes(), b"");
}

#[test]
fn lying_tables_are_refused_with_names_and_numbers() {
    let f32s = 0;
    let refused: [(&[Row<'_>], usize, &str); 10] = [
        (
            &[(b"a", &[8], f32s, 0)],
            31,
            "\"a\" has 32 bytes at 0 of 31 bytes",
        ),
        (
            &[(b"a", &[8], f32s, u64::MAX - 3)],
            64,
            "of 64 bytes of data",
        ),
        (
            &[(b"a", &[8], f32s, 0), (b"b", &[8], f32s, 28)],
            64,
            "\"b\" overlaps \"a\"",
        ),
        (
            &[(b"a", &[8], f32s, 0), (b"a", &[8], f32s, 32)],
            64,
            "\"a\" for the second time",
        ),
        (
            &[(b"a", &[1 << 32, 1 << 32], f32s, 0)],
            64,
            "more bytes than any file",
        ),
        (
            &[(b"a", &[u64::MAX], f32s, 0)],
            64,
            "more bytes than any file",
        ),
        (
            // None of them, and more than fit in any order but this one.
            &[(b"a", &[0, 1 << 40, 1 << 40], f32s, 0)],
            64,
            "more bytes than any file",
        ),
        (
            &[(b"a", &[1, 1, 1, 1, 1], f32s, 0)],
            64,
            "5 dimensions, at most 4",
        ),
        (
            &[(b"a", &[33, 32], 8, 0)],
            4096,
            "whose rows are multiples of 32",
        ),
        (&[(b"a", &[8], 31, 0)], 64, "has type 31"),
    ];
    for (tensors, data, expected) in refused {
        let said = Raw::of(tensors, data).said();
        assert!(said.contains(expected), "{said}");
    }
    let mut raw = Raw::of(&[], 0);
    raw.keys = vec![(b"k".to_vec(), 0, vec![1]), (b"k".to_vec(), 0, vec![1])];
    assert!(raw.said().contains("key \"k\" for the second time"));
    raw.keys = vec![(b"general.alignment".to_vec(), 4, vec![24, 0, 0, 0])];
    assert!(raw.said().contains("is 24, not a power of two"));
}

#[test]
fn strictly_written_are_names_ranks_keys_and_rows() {
    let f32s: TensorType = "F32".parse().unwrap();
    let mut builder = GgufBuilder::new();
    let long = "n".repeat(64);
    let refused = [
        builder.add_tensor(&long, f32s, &[1]),
        builder.add_tensor("a", f32s, &[1, 1, 1, 1, 1]),
        builder.add_tensor("a", "Q8_0".parse().unwrap(), &[2, 33]),
        builder.add_tensor("a", "F8_E4M3".parse().unwrap(), &[32]),
        builder.add_tensor("a", f32s, &[1 << 40, 1 << 40]),
        builder.set(b"", &GgufValue::U8(0)),
        builder.set(b"general.alignment", &GgufValue::U32(24)),
        builder.set_array(b"k", GgufKind::Array, []),
        builder.set_array(b"k", GgufKind::U8, [GgufValue::I8(0)]),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::Mismatch { .. })), "{result:?}");
    }
    builder.set(b"k", &GgufValue::U8(0)).unwrap();
    builder.add_tensor("a", f32s, &[3]).unwrap();
    assert!(builder.set(b"k", &GgufValue::U8(0)).is_err());
    assert!(builder.add_tensor("a", f32s, &[3]).is_err());
    let mut writer = builder.start(Vec::new()).unwrap();
    writer.write(&[0; 8]).unwrap();
    let more = writer.write(&[0; 8]).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::InvalidInput);

    let mut builder = GgufBuilder::new();
    builder.add_tensor("a", f32s, &[3]).unwrap();
    let missing = builder.start(Vec::new()).unwrap().finish().unwrap_err();
    assert!(missing.to_string().contains("12 bytes of tensors"));
}
