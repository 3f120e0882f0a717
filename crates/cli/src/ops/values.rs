//! Elements of an array as lines of text, and as JSON.

use fercuda_jit::reference::{self, ExactValue};
use fercuda_tensor::{Dtype, Layout};
use serde_json::Value;

use crate::arrays::value::{element_size, show_element};

/// Rows that are shown of an array.
const SHOWN_ROWS: u64 = 8;
/// Columns that a row may fill.
const WIDTH: usize = 80;

/// The first rows along the last dimension, each with its index, cut to a terminal's width.
pub(super) fn rows(layout: &Layout, bits: &[u64]) -> Vec<String> {
    let (outer, len) = match layout.shape().split_last() {
        Some((len, outer)) => (outer, *len),
        None => (&[][..], 1),
    };
    if layout.is_empty() {
        return vec!["  no elements".to_owned()];
    }
    let count = layout.len() / len;
    let mut lines: Vec<String> = (0..count.min(SHOWN_ROWS))
        .map(|row| {
            let elements = &bits[(row * len) as usize..][..len as usize];
            row_line(&index_text(row, outer), layout.dtype(), elements)
        })
        .collect();
    if count > SHOWN_ROWS {
        lines.push(format!("  ... {} more rows", count - SHOWN_ROWS));
    }
    lines
}

/// `[2, 0]` for a row of an array of more dimensions than one.
fn index_text(row: u64, outer: &[u64]) -> String {
    let (mut rest, mut index) = (row, Vec::new());
    for extent in outer.iter().rev() {
        index.insert(0, (rest % extent).to_string());
        rest /= extent;
    }
    match index.is_empty() {
        true => String::new(),
        false => format!("[{}] ", index.join(", ")),
    }
}

fn row_line(index: &str, dtype: Dtype, elements: &[u64]) -> String {
    let mut line = format!("  {index}");
    for (at, bits) in elements.iter().enumerate() {
        let text = show_element(dtype, &bits.to_le_bytes()[..element_size(dtype)]);
        let left = elements.len() - at;
        let more = format!("... {left} more");
        let ends = if left == 1 { 0 } else { more.len() + 1 };
        if at > 0 && line.len() + text.len() + 1 + ends > WIDTH {
            line.push_str(&more);
            break;
        }
        line.push_str(&text);
        line.push(' ');
    }
    line.trim_end().to_owned()
}

/// An element as JSON: a number, or a bool; NaN and infinities are texts.
pub(super) fn json(dtype: Dtype, bits: u64) -> Value {
    match reference::decode(dtype, bits) {
        ExactValue::Int(value) if dtype == Dtype::Bool => (value != 0).into(),
        ExactValue::Int(value) if dtype.is_signed() => (value as i64).into(),
        ExactValue::Int(value) => (value as u64).into(),
        ExactValue::Float(value) if value.is_finite() => value.into(),
        ExactValue::Float(value) => value.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_indices_and_are_cut_to_the_width() {
        let layout = Layout::contiguous(Dtype::I16, &[2, 5, 100]).unwrap();
        let bits: Vec<u64> = (0..1000).collect();
        let lines = rows(&layout, &bits);
        assert_eq!(lines.len(), 9);
        assert!(
            lines[6].starts_with("  [1, 1] 600 601 602 "),
            "{}",
            lines[6]
        );
        assert_eq!(lines[8], "  ... 2 more rows");
        for line in &lines[..8] {
            assert!(line.len() <= 80, "{line}");
            let (shown, more) = line.split_once("...").expect("it is cut");
            let shown = shown.split(']').nth(1).unwrap().split_whitespace().count();
            assert_eq!(more, format!(" {} more", 100 - shown));
        }
        let one = Layout::contiguous(Dtype::Bool, &[]).unwrap();
        assert_eq!(rows(&one, &[1]), ["  1"]);
        let none = Layout::contiguous(Dtype::F32, &[3, 0]).unwrap();
        assert_eq!(rows(&none, &[]), ["  no elements"]);
    }

    #[test]
    fn elements_in_json_keep_their_value() {
        let nan = Dtype::F16.encode(f64::NAN);
        assert_eq!(json(Dtype::F16, nan), "NaN");
        assert_eq!(json(Dtype::I8, 0xff), -1);
        assert_eq!(json(Dtype::U64, u64::MAX), u64::MAX);
        assert_eq!(json(Dtype::Bool, 1), true);
        assert_eq!(json(Dtype::F32, Dtype::F32.encode(0.5)), 0.5);
    }
}
