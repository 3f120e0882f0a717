//! Device `printf`: a C format string and the argument buffer that `vprintf` is given.
//!
//! Arguments lie in order, each aligned to its size: 4 bytes for `int` and narrower, 8 for `long`,
//! pointers and `double`. Whatever cannot be formatted is copied as it stands, like the device
//! library does.

/// Longest text of one call; more is cut.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Widest field and largest precision taken at their word.
const MAX_FIELD: usize = 4096;

/// How a conversion is laid out.
#[derive(Debug, Clone, Copy, Default)]
struct ConversionSpec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

/// The text of one `printf`, and the number of arguments used.
///
/// `read(offset, len)` gives `len` (4 or 8) little-endian bytes of the argument buffer;
/// `text(address)` the NUL-terminated string at a generic address. `None` from either prints
/// `(null)` or 0.
pub(crate) fn render(
    format: &[u8],
    mut read: impl FnMut(usize, usize) -> Option<u64>,
    mut text: impl FnMut(u64) -> Option<Vec<u8>>,
) -> (Vec<u8>, u32) {
    let mut out = Vec::with_capacity(format.len() + 16);
    let (mut at, mut offset, mut used) = (0, 0, 0);
    let mut argument = |len: usize| {
        offset = (offset + len - 1) & !(len - 1);
        let value = read(offset, len).unwrap_or(0);
        offset += len;
        used += 1;
        value
    };
    while at < format.len() && out.len() < MAX_TEXT_BYTES {
        if format[at] != b'%' {
            out.push(format[at]);
            at += 1;
            continue;
        }
        let start = at;
        at += 1;
        let mut spec = ConversionSpec::default();
        while let Some(&flag) = format.get(at) {
            match flag {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            at += 1;
        }
        if format.get(at) == Some(&b'*') {
            at += 1;
            let width = argument(4) as i32;
            spec.left |= width < 0;
            spec.width = (width.unsigned_abs() as usize).min(MAX_FIELD);
        } else {
            spec.width = number(format, &mut at);
        }
        if format.get(at) == Some(&b'.') {
            at += 1;
            spec.precision = if format.get(at) == Some(&b'*') {
                at += 1;
                usize::try_from(argument(4) as i32)
                    .ok()
                    .map(|p| p.min(MAX_FIELD))
            } else {
                Some(number(format, &mut at))
            };
        }
        let modifiers = at;
        while matches!(
            format.get(at),
            Some(b'h' | b'l' | b'L' | b'z' | b'j' | b't')
        ) {
            at += 1;
        }
        let modifier = &format[modifiers..at];
        let long = matches!(modifier, b"l" | b"ll" | b"z" | b"j" | b"t");
        let Some(&conversion) = format.get(at) else {
            out.extend_from_slice(&format[start..]);
            break;
        };
        at += 1;
        match conversion {
            b'%' => out.push(b'%'),
            b'd' | b'i' => {
                let raw = argument(if long { 8 } else { 4 });
                let value = match modifier {
                    _ if long => raw as i64,
                    b"h" => i64::from(raw as i16),
                    b"hh" => i64::from(raw as i8),
                    _ => i64::from(raw as i32),
                };
                integer(
                    &mut out,
                    spec,
                    sign(spec, value < 0),
                    "",
                    value.unsigned_abs().to_string(),
                );
            }
            b'u' | b'o' | b'x' | b'X' => {
                let raw = argument(if long { 8 } else { 4 });
                let value = match modifier {
                    _ if long => raw,
                    b"h" => raw & 0xffff,
                    b"hh" => raw & 0xff,
                    _ => raw & 0xffff_ffff,
                };
                let prefixed = spec.alternate && value != 0;
                let (prefix, digits) = match conversion {
                    b'u' => ("", value.to_string()),
                    b'o' => (if prefixed { "0" } else { "" }, format!("{value:o}")),
                    b'x' => (if prefixed { "0x" } else { "" }, format!("{value:x}")),
                    _ => (if prefixed { "0X" } else { "" }, format!("{value:X}")),
                };
                integer(&mut out, spec, "", prefix, digits);
            }
            b'p' => {
                let digits = format!("{:x}", argument(8));
                integer(
                    &mut out,
                    ConversionSpec {
                        precision: None,
                        ..spec
                    },
                    "",
                    "0x",
                    digits,
                );
            }
            b'c' => pad(
                &mut out,
                ConversionSpec {
                    zero: false,
                    ..spec
                },
                "",
                &[argument(4) as u8],
            ),
            b's' => {
                let address = argument(8);
                let mut bytes = text(address).unwrap_or_else(|| b"(null)".to_vec());
                bytes.truncate(spec.precision.unwrap_or(MAX_TEXT_BYTES));
                pad(
                    &mut out,
                    ConversionSpec {
                        zero: false,
                        ..spec
                    },
                    "",
                    &bytes,
                );
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                float(&mut out, spec, conversion, f64::from_bits(argument(8)));
            }
            _ => out.extend_from_slice(&format[start..at]),
        }
    }
    out.truncate(MAX_TEXT_BYTES);
    (out, used)
}

/// Decimal digits at `at`, bounded.
fn number(format: &[u8], at: &mut usize) -> usize {
    let mut value = 0usize;
    while let Some(digit) = format.get(*at).filter(|c| c.is_ascii_digit()) {
        value = (value * 10 + usize::from(digit - b'0')).min(MAX_FIELD);
        *at += 1;
    }
    value
}

fn sign(spec: ConversionSpec, negative: bool) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        _ => "",
    }
}

fn integer(out: &mut Vec<u8>, spec: ConversionSpec, sign: &str, prefix: &str, digits: String) {
    let digits = match spec.precision {
        Some(0) if digits == "0" => String::new(),
        Some(p) => format!("{digits:0>p$}"),
        None => digits,
    };
    let spec = ConversionSpec {
        zero: spec.zero && spec.precision.is_none(),
        ..spec
    };
    pad(out, spec, &format!("{sign}{prefix}"), digits.as_bytes());
}

/// `prefix` and `body` in a field: zeros go between them.
fn pad(out: &mut Vec<u8>, spec: ConversionSpec, prefix: &str, body: &[u8]) {
    let fill = spec.width.saturating_sub(prefix.len() + body.len());
    if !spec.left && !spec.zero {
        out.extend(std::iter::repeat_n(b' ', fill));
    }
    out.extend_from_slice(prefix.as_bytes());
    if !spec.left && spec.zero {
        out.extend(std::iter::repeat_n(b'0', fill));
    }
    out.extend_from_slice(body);
    if spec.left {
        out.extend(std::iter::repeat_n(b' ', fill));
    }
}

fn float(out: &mut Vec<u8>, spec: ConversionSpec, conversion: u8, x: f64) {
    let prefix = sign(spec, x.is_sign_negative());
    let upper = conversion.is_ascii_uppercase();
    let x = x.abs();
    if !x.is_finite() {
        let word = match (x.is_nan(), upper) {
            (true, false) => "nan",
            (true, true) => "NAN",
            (false, false) => "inf",
            (false, true) => "INF",
        };
        return pad(
            out,
            ConversionSpec {
                zero: false,
                ..spec
            },
            prefix,
            word.as_bytes(),
        );
    }
    let mut body = match conversion.to_ascii_lowercase() {
        b'f' => fixed(x, spec.precision.unwrap_or(6), spec.alternate),
        b'e' => scientific(x, spec.precision.unwrap_or(6), spec.alternate),
        b'g' => general(x, spec.precision.unwrap_or(6).max(1), spec.alternate),
        _ => {
            let body = hexadecimal(x, spec.precision, spec.alternate);
            let body = if upper { body.to_uppercase() } else { body };
            return pad(
                out,
                spec,
                &format!("{prefix}{}", if upper { "0X" } else { "0x" }),
                body.as_bytes(),
            );
        }
    };
    if upper {
        body.make_ascii_uppercase();
    }
    pad(out, spec, prefix, body.as_bytes());
}

fn fixed(x: f64, precision: usize, point: bool) -> String {
    let mut s = format!("{x:.precision$}");
    if point && precision == 0 {
        s.push('.');
    }
    s
}

fn scientific(x: f64, precision: usize, point: bool) -> String {
    // Rust writes 1.5e-7 where C writes 1.5e-07.
    let s = format!("{x:.precision$e}");
    let (digits, exponent) = s.split_once('e').unwrap_or((&s, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(e) => ('-', e),
        None => ('+', exponent),
    };
    let point = if point && precision == 0 { "." } else { "" };
    format!("{digits}{point}e{sign}{exponent:0>2}")
}

fn general(x: f64, precision: usize, keep_zeros: bool) -> String {
    let rounded = format!("{x:.*e}", precision - 1);
    let exponent: i32 = rounded
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    let small = exponent < -4 || exponent >= precision as i32;
    let mut s = if small {
        scientific(x, precision - 1, keep_zeros)
    } else {
        fixed(
            x,
            (precision as i32 - 1 - exponent).max(0) as usize,
            keep_zeros,
        )
    };
    if !keep_zeros && s.contains('.') {
        let (digits, tail) = match s.find('e') {
            Some(e) => (s[..e].to_owned(), s[e..].to_owned()),
            None => (s.clone(), String::new()),
        };
        s = digits
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned()
            + &tail;
    }
    s
}

fn hexadecimal(x: f64, precision: Option<usize>, point: bool) -> String {
    let bits = x.to_bits();
    let (field, mut fraction) = ((bits >> 52) as i32 & 0x7ff, bits & ((1 << 52) - 1));
    let (mut lead, exponent) = match (field, fraction) {
        (0, 0) => (0u64, 0),
        (0, _) => (0, -1022),
        _ => (1, field - 1023),
    };
    let mut digits = 13;
    if let Some(p) = precision.filter(|&p| p < 13) {
        // To nearest, ties to even, carrying into the leading digit.
        let cut = 52 - 4 * p as u32;
        let whole = lead << 52 | fraction;
        let (kept, rest, half) = (whole >> cut, whole & ((1 << cut) - 1), 1u64 << (cut - 1));
        let kept = (kept + u64::from(rest > half || rest == half && kept & 1 == 1)) << cut;
        (lead, fraction) = (kept >> 52, kept & ((1 << 52) - 1));
        digits = p;
    }
    let mut s = format!("{fraction:013x}");
    match precision {
        Some(p) if p >= 13 => s.push_str(&"0".repeat(p - 13)),
        Some(_) => s.truncate(digits),
        None => s.truncate(s.trim_end_matches('0').len()),
    }
    let point = if !s.is_empty() || point { "." } else { "" };
    format!("{lead:x}{point}{s}p{exponent:+}")
}

#[cfg(test)]
mod tests {
    use super::render;

    fn print(format: &str, arguments: &[u64], sizes: &[usize]) -> String {
        let mut buffer = Vec::new();
        for (value, len) in arguments.iter().zip(sizes) {
            while buffer.len() % len != 0 {
                buffer.push(0);
            }
            buffer.extend_from_slice(&value.to_le_bytes()[..*len]);
        }
        let read = |at: usize, len: usize| {
            let mut raw = [0; 8];
            raw[..len].copy_from_slice(buffer.get(at..at + len)?);
            Some(u64::from_le_bytes(raw))
        };
        let (out, used) = render(format.as_bytes(), read, |address| {
            (address != 0).then(|| b"text".to_vec())
        });
        assert_eq!(used as usize, arguments.len());
        String::from_utf8(out).unwrap()
    }

    /// Expectations are what C prescribes for the same call.
    #[test]
    fn conversions_print_as_c_prints_them() {
        let f = |x: f64| x.to_bits();
        let minus_5 = u64::from(-5i32 as u32);
        for (format, arguments, sizes, expected) in [
            (
                "%d|%5d|%-5d|%05d",
                &[minus_5, 42, 42, minus_5][..],
                &[4, 4, 4, 4][..],
                "-5|   42|42   |-0005",
            ),
            (
                "%u %x %#X %o",
                &[minus_5, 255, 255, 8],
                &[4, 4, 4, 4],
                "4294967291 ff 0XFF 10",
            ),
            (
                "%lld %hhd %hu",
                &[u64::MAX, 0x1ff, 0x1_ffff],
                &[8, 4, 4],
                "-1 -1 65535",
            ),
            ("%d %f", &[1, f(2.5)], &[4, 8], "1 2.500000"),
            (
                "%.3f|%8.2f|%-8.2f|%+.0f",
                &[f(0.0005), f(-1.005), f(3.0), f(2.5)],
                &[8; 4],
                "0.001|   -1.00|3.00    |+2",
            ),
            (
                "%e %E %.0e",
                &[f(12345.678), f(1e-300), f(5.0)],
                &[8; 3],
                "1.234568e+04 1.000000E-300 5e+00",
            ),
            (
                "%g %g %g %g",
                &[f(0.0001), f(100000.0), f(1e6), f(0.00001234)],
                &[8; 4],
                "0.0001 100000 1e+06 1.234e-05",
            ),
            ("%a %.2a", &[f(1.0), f(3.999)], &[8; 2], "0x1p+0 0x2.00p+1"),
            (
                "%s|%6s|%-6s|%.2s|%s",
                &[1, 1, 1, 1, 0],
                &[8; 5],
                "text|  text|text  |te|(null)",
            ),
            ("%c%c %% %p", &[65, 66, 0x1000], &[4, 4, 8], "AB % 0x1000"),
            (
                "%*d|%-*d|%.*f",
                &[5, 7, 4, 7, 1, f(0.25)],
                &[4, 4, 4, 4, 4, 8],
                "    7|7   |0.2",
            ),
            (
                "%f %F",
                &[f(f64::INFINITY), f(f64::NAN)],
                &[8; 2],
                "inf NAN",
            ),
            ("100%", &[], &[], "100%"),
        ] {
            assert_eq!(print(format, arguments, sizes), expected, "{format}");
        }
    }
}
