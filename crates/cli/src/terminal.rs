//! Terminal output: colours, units, wrapping.
//!
//! Invariant: a stream that is no terminal gets no escape sequence, nor any with NO_COLOR set
//! (CLICOLOR_FORCE asks for them); no information is in colour alone.

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use fercuda_governor::edit_distance;

/// Whether a stream shows colours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    colour: bool,
}

impl Paint {
    /// For stdout.
    pub(crate) fn stdout() -> Paint {
        Paint::of(&std::io::stdout())
    }

    /// For stderr.
    pub(crate) fn stderr() -> Paint {
        Paint::of(&std::io::stderr())
    }

    fn of(stream: &impl RawStream) -> Paint {
        Paint {
            colour: AutoStream::choice(stream) != ColorChoice::Never,
        }
    }

    /// Whether colours are shown.
    pub(crate) fn has_colour(self) -> bool {
        self.colour
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.styled(AnsiColor::Green.on_default(), text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.styled(AnsiColor::Red.on_default().bold(), text)
    }

    pub(crate) fn strong(self, text: &str) -> String {
        self.styled(Style::new().bold(), text)
    }

    pub(crate) fn faint(self, text: &str) -> String {
        self.styled(Style::new().dimmed(), text)
    }

    fn styled(self, style: Style, text: &str) -> String {
        match self.colour {
            true => format!("{style}{text}{style:#}"),
            false => text.to_owned(),
        }
    }
}

/// A duration with three significant digits and a unit that fits.
pub(crate) fn duration(seconds: f64) -> String {
    let (value, unit) = if seconds < 1e-3 {
        (seconds * 1e6, "us")
    } else if seconds < 1.0 {
        (seconds * 1e3, "ms")
    } else {
        (seconds, "s")
    };
    if value >= 100.0 {
        format!("{value:.0} {unit}")
    } else if value >= 10.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.2} {unit}")
    }
}

/// A size in bytes, in the largest binary unit that keeps it above one; at most 9 characters.
pub(crate) fn bytes(size: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = size as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{size} B")
    } else if value >= 999.95 {
        // With a decimal it would fill a column of a table.
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// `1 argument`, `2 arguments`, `2 launches`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let end = match number {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {noun}{end}")
}

/// `text` in at most `width` characters; `~` marks a cut.
pub(crate) fn clipped(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut clipped: String = text.chars().take(width.saturating_sub(1)).collect();
    clipped.push('~');
    clipped
}

/// Lines of at most `width` characters, broken between words.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// A path on one line, with control characters escaped.
pub(crate) fn plain(path: &std::path::Path) -> String {
    plain_text(&path.to_string_lossy())
}

/// Like [`plain`], for any text.
pub(crate) fn plain_text(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars() {
        match c.is_control() {
            true => plain.extend(c.escape_default()),
            false => plain.push(c),
        }
    }
    plain
}

/// A path in its shortest form: relative to the current folder or to the home folder.
pub(crate) fn path(path: &str) -> String {
    if let Ok(here) = std::env::current_dir()
        && let Ok(rest) = std::path::Path::new(path).strip_prefix(&here)
    {
        return rest.display().to_string();
    }
    match std::env::var("HOME") {
        Ok(home) if home.len() > 1 => match path.strip_prefix(&home) {
            Some(rest) if rest.starts_with('/') => format!("~{rest}"),
            _ => path.to_owned(),
        },
        _ => path.to_owned(),
    }
}

/// The known name closest to `typed`, if it is close enough to suggest.
pub(crate) fn closest<'n>(
    typed: &str,
    known: impl IntoIterator<Item = &'n str>,
) -> Option<&'n str> {
    known
        .into_iter()
        .map(|name| (edit_distance(typed, name), name))
        .min()
        .filter(|(edits, name)| {
            *edits <= typed.len().max(name.len()).div_ceil(3) || name.contains(typed)
        })
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_finds_the_closest_one_and_an_unrelated_name_none() {
        let known = ["saxpy", "vector_add", "softmax"];
        assert_eq!(closest("saxby", known), Some("saxpy"));
        assert_eq!(closest("vectoradd", known), Some("vector_add"));
        assert_eq!(closest("quicksort", known), None);
    }

    #[test]
    fn a_text_that_is_clipped_shows_it() {
        assert_eq!(clipped("torch", 5), "torch");
        assert_eq!(clipped("größer", 4), "grö~");
    }

    #[test]
    fn lines_break_between_words_and_keep_long_ones() {
        assert_eq!(wrapped("a bb ccc dddd", 6), ["a bb", "ccc", "dddd"]);
        assert_eq!(wrapped("toolong x", 3), ["toolong", "x"]);
    }

    #[test]
    fn sizes_and_durations_have_fit_units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(8 << 30), "8.0 GiB");
        assert_eq!(bytes(1000 << 20), "1000 MiB");
        assert_eq!(bytes((1 << 30) - 1), "1024 MiB");
        for power in 0..64 {
            for size in [(1_u64 << power) - 1, 1000 << power >> 10, u64::MAX >> power] {
                assert!(bytes(size).len() <= 9, "{}", bytes(size));
            }
        }
        assert_eq!(duration(0.000_012_34), "12.3 us");
        assert_eq!(duration(2.5), "2.50 s");
    }
}
