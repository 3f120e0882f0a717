//! README.md gives the position of every field; the code agrees.

use fercuda_ledger::{EventKind, FIELDS, FILE_BYTES, Governed, LedgerField, VERSION};

const README: &str = include_str!("../../README.md");

/// The rows of the tables under the heading `### RECORD`.
fn documented() -> Vec<(String, String, usize, usize)> {
    let mut record = "";
    let mut found = Vec::new();
    for line in README.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            record = heading.split(',').next().unwrap();
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [offset, len, name, _] = cells[..]
            && let (Ok(offset_bytes), Ok(len_bytes)) = (offset.parse(), len.parse())
        {
            let name = name.trim_matches('`').to_owned();
            found.push((record.to_owned(), name, offset_bytes, len_bytes));
        }
    }
    found
}

#[test]
fn the_readme_gives_the_position_of_every_field() {
    let expected: Vec<_> = FIELDS
        .iter()
        .map(|field: &LedgerField| {
            (
                field.record.to_owned(),
                field.name.to_owned(),
                field.offset_bytes,
                field.len_bytes,
            )
        })
        .collect();
    assert_eq!(documented(), expected);
    assert!(README.contains(&format!("{FILE_BYTES} bytes")));
    assert!(README.contains(&format!("version {VERSION}")));
}

#[test]
fn fields_follow_one_another_without_gaps() {
    for pair in FIELDS.windows(2) {
        if pair[0].record == pair[1].record {
            assert_eq!(
                pair[0].offset_bytes + pair[0].len_bytes,
                pair[1].offset_bytes,
                "{pair:?}"
            );
        } else {
            assert_eq!(pair[1].offset_bytes, 0, "{pair:?}");
        }
    }
}

#[test]
fn the_readme_names_every_kind_with_its_number() {
    for kind in Governed::ALL {
        let row = format!("| {} | `{}` |", kind as u8, kind.name());
        assert!(README.contains(&row), "{row}");
    }
    for kind in EventKind::ALL {
        let row = format!("| {} | `{}` |", kind as u8, kind.name());
        assert!(README.contains(&row), "{row}");
    }
}
