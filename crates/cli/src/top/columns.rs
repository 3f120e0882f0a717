//! Tables of fixed columns, and numbers of at most five characters.

use std::time::Duration;

/// A column of a table: its header, and its width including the leading blank.
pub(super) type Column = (&'static str, usize);

/// The first column takes the remaining width, but at least this.
const NAME: usize = 12;

/// A row with the columns that fit; the name gets the remaining width.
pub(super) fn table_row(
    name: impl Fn(usize) -> String,
    cells: &[String],
    columns: &[Column],
    width: usize,
) -> String {
    let mut room = width;
    let fit = columns.iter().take_while(|(_, len)| {
        let fits = room >= NAME + len;
        room -= if fits { *len } else { 0 };
        fits
    });
    let fit = fit.count();
    let mut text = format!("{:<room$}", name(room.saturating_sub(1)));
    for (cell, (_, len)) in cells.iter().zip(columns).take(fit) {
        text.push_str(&format!("{cell:>len$}"));
    }
    text
}

pub(super) fn per_second(before: u64, now: u64, passed: Duration) -> f64 {
    now.saturating_sub(before) as f64 / passed.as_secs_f64().max(1e-3)
}

/// A number in at most five characters: `12.3k`.
pub(super) fn quantity(number: f64) -> String {
    let (value, unit) = match number {
        n if n >= 1e9 => (n / 1e9, "G"),
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e3 => (n / 1e3, "k"),
        n => return format!("{n:.0}"),
    };
    match value {
        v if v >= 100.0 => format!("{v:.0}{unit}"),
        v => format!("{v:.1}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_fit_units() {
        for (number, text) in [
            (0.4, "0"),
            (999.0, "999"),
            (1234.0, "1.2k"),
            (123_456.0, "123k"),
        ] {
            assert_eq!(quantity(number), text);
        }
    }
}
