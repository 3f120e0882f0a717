//! Safetensors files: what is read and what is refused.

use fercuda_modelfile::{NarrowType, Safetensors, TensorType};

use crate::support::safetensors;

const ONE: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

#[test]
fn blanks_null_metadata_and_any_alignment_are_read() {
    let padded = format!("{ONE}   \n ");
    let null = ONE.replacen('{', r#"{"__metadata__":null,"#, 1);
    let texts = ONE.replacen('{', r#"{"__metadata__":{"format":"pt","a\n":"\u00e9"},"#, 1);
    for header in [ONE, &padded, &null, &texts] {
        let bytes = safetensors(header, &[0; 8]);
        let file = Safetensors::parse(&bytes[..]).unwrap();
        let a = file.tensor("a").unwrap();
        assert_eq!((a.shape(), a.bytes().len()), (&[2][..], 8));
        assert_eq!(file.metadata().len(), if header == texts { 2 } else { 0 });
    }
    let bytes = safetensors(&texts, &[0; 8]);
    let file = Safetensors::parse(&bytes[..]).unwrap();
    assert_eq!(file.metadata()[1], ("a\n".into(), "\u{e9}".into()));
    // An odd length of the header; data in another order than the header; an escaped name; none.
    let header = r#"{"b\u0022":{"dtype":"U8","shape":[3],"data_offsets":[2,5]},
        "a":{"shape":[1,1],"dtype":"BF16","data_offsets":[0,2],"more":[{}]},
        "z":{"dtype":"F64","shape":[0,9],"data_offsets":[5,5]},
        "s":{"dtype":"U8","shape":[],"data_offsets":[5,6]}}"#;
    let bytes = safetensors(header, &[0, 0x40, 1, 2, 3, 4]);
    let file = Safetensors::parse(&bytes[..]).unwrap();
    let names: Vec<String> = file.tensors().map(|it| it.name().to_owned()).collect();
    assert_eq!(names, ["b\"", "a", "z", "s"]);
    assert_eq!(file.tensor("b\"").unwrap().bytes(), [1, 2, 3]);
    assert_eq!(file.tensor("s").unwrap().bytes(), [4]);
    assert!(file.tensor("b").is_none());
}

#[test]
fn small_types_count_elements() {
    let header = |kind: &str, shape: &str, bytes: u64| {
        format!(r#"{{"a":{{"dtype":"{kind}","shape":{shape},"data_offsets":[0,{bytes}]}}}}"#)
    };
    for (kind, shape, bytes, is_valid) in [
        ("F4", "[3,2]", 3, true),
        ("F4", "[3]", 1, false),
        ("F4", "[3]", 2, false),
        ("F6_E2M3", "[8]", 6, true),
        ("F6_E3M2", "[2]", 2, false),
        ("F8_E8M0", "[5]", 5, true),
        ("F8_E4M3FNUZ", "[5]", 5, true),
        ("C64", "[2]", 16, true),
        ("Q8_0", "[32]", 34, false),
    ] {
        let bytes = safetensors(&header(kind, shape, bytes), &vec![0; bytes as usize]);
        let parsed = Safetensors::parse(&bytes[..]);
        assert_eq!(parsed.is_ok(), is_valid, "{kind} {shape}: {parsed:?}");
    }
    let bytes = safetensors(&header("F4", "[4]", 2), &[0x21, 0x43]);
    let file = Safetensors::parse(&bytes[..]).unwrap();
    let tensor = file.tensor("a").unwrap();
    assert_eq!(tensor.kind(), TensorType::Narrow(NarrowType::F4));
    let mut values = [0.0; 4];
    tensor.kind().decode(tensor.bytes(), &mut values).unwrap();
    assert_eq!(values, [0.5, 1.0, 1.5, 2.0]);
}

#[test]
fn holes_overlaps_and_what_is_no_header_are_refused_with_their_place() {
    let two = |first: &str, second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{first}}},
            "b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#
        )
    };
    let refused = [
        (
            two("[0,4]", "[5,9]"),
            9,
            "\"b\" begins at 5, the data before it end at 4",
        ),
        (
            two("[0,4]", "[3,7]"),
            7,
            "\"b\" begins at 3, the data before it end at 4",
        ),
        (two("[0,4]", "[4,8]"), 7, "\"b\" ends at 8 of 7 bytes"),
        (two("[0,4]", "[4,8]"), 9, "1 bytes behind the last tensor"),
        (
            two("[1,5]", "[5,9]"),
            9,
            "\"a\" begins at 1, the data before it end at 0",
        ),
        (two("[4,0]", "[4,8]"), 8, "in bytes 4 to 0"),
        (
            two("[0,4]", "[4,8]").replace("\"b\"", "\"a\""),
            8,
            "\"a\" for the second time",
        ),
        (two("[0,4,8]", "[4,8]"), 8, "3 data_offsets"),
        (two("[0,4]", "[4,1e1]"), 8, "a number from 0 to 2^64 - 1"),
        (ONE.replace("F32", "F33"), 8, "type \"F33\""),
        (
            ONE.replace("[2]", "[4294967296,4294967296,2]"),
            8,
            "not as many",
        ),
        (ONE.replace("\"dtype\"", "\"type\""), 8, "without dtype"),
        (ONE.replace("[2]", "[-2]"), 8, "a number from 0 to 2^64 - 1"),
        (format!("{ONE}\0\0"), 8, "where the end should be"),
        (format!("{ONE},"), 8, "where the end should be"),
        (format!(" {ONE}"), 8, "does not begin with `{`"),
        (
            ONE.replacen('{', r#"{"__metadata__":{"a":1},"#, 1),
            8,
            "where `\"` should be",
        ),
    ];
    for (header, data, expected) in refused {
        let bytes = safetensors(&header, &vec![0; data]);
        let said = Safetensors::parse(&bytes[..]).unwrap_err().to_string();
        assert!(said.contains(expected), "{header}\n{said}");
    }
    let mut long = safetensors(ONE, &[0; 8]);
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let said = Safetensors::parse(&long[..]).unwrap_err().to_string();
    assert!(
        said.contains("a header of 18446744073709551615 bytes, at most 62"),
        "{said}"
    );
    let mut no_text = safetensors(ONE, &[0; 8]);
    no_text[8 + 2] = 0xff;
    let said = Safetensors::parse(&no_text[..]).unwrap_err().to_string();
    assert!(
        said.contains("byte 11: a string that is no UTF-8"),
        "{said}"
    );
    let deep = format!(r#"{{"a":{}"#, "[".repeat(1 << 16));
    let bytes = safetensors(&deep, &[]);
    assert!(Safetensors::parse(&bytes[..]).is_err());
}
