//! Dates as `strftime` writes them, of UTC.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Year, month from 1, day from 1 of a number of days since 1970.
fn civil(days: i64) -> (i64, u32, u32) {
    // Years of 365.2425 days that begin in March, in eras of 400 of them.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month as u32, day as u32)
}

/// A time by a format of `strftime`. What is not known of it stays as it is.
pub(crate) fn strftime(time: SystemTime, format: &str) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs()) as i64;
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, day) = civil(days);
    let weekday = (days + 4).rem_euclid(7) as usize;
    let hour12 = (hour + 11) % 12 + 1;
    let (day_name, month_name) = (DAYS[weekday], MONTHS[month as usize - 1]);
    let first = (1..month).map(|it| match it {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    });
    let of_year = first.sum::<u32>() + day;
    let half = if hour < 12 { "AM" } else { "PM" };
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(it) = rest.next() {
        if it != '%' {
            out.push(it);
            continue;
        }
        let mut code = rest.next();
        let is_short = code == Some('-');
        if is_short {
            code = rest.next();
        }
        let mut number = |value: i64, width: usize| {
            let width = if is_short { 0 } else { width };
            let _ = write!(out, "{value:0width$}");
        };
        match code {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month.into(), 2),
            Some('d') => number(day.into(), 2),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(of_year.into(), 3),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('p') => out.push_str(half),
            Some('e') => {
                let _ = write!(out, "{day:2}");
            }
            Some('F') => {
                let _ = write!(out, "{year:04}-{month:02}-{day:02}");
            }
            Some('T') => {
                let _ = write!(out, "{hour:02}:{minute:02}:{second:02}");
            }
            Some('w') => number(weekday as i64, 1),
            Some('Z') => {}
            Some('z') => {}
            Some('%') => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}
