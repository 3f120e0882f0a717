//! Tests of the page as a whole: what it contains for a given trace.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::super::{log, random};
use super::{Timeline, write};

const HEAD: &str = "Thread,Time,Action,Pointer,Size,Stream\n";
const OURS: &str = "Thread,Time,Action,Pointer,Size,Stream,Device,Tenant\n";

/// The page of a log, and the figures in it.
fn page(text: &str, name: &str) -> (String, Value) {
    let mut timeline = Timeline::default();
    let reading = log::read(text.as_bytes(), &mut |row| {
        timeline.add(row);
        Ok(())
    });
    let mut out = Vec::new();
    write(timeline, &reading.unwrap(), name, &mut out).unwrap();
    let page = String::from_utf8(out).unwrap();
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    let data = serde_json::from_str(json).unwrap();
    (page, data)
}

/// The exact bytes in a row of the table: peak and live at end.
fn exact(page: &str, tenant: &str, device: u32) -> (u64, u64) {
    let head = format!("<bdi>{tenant}</bdi></th><td>{device}</td>");
    let (_, row) = page.split_once(&head).unwrap();
    let (row, _) = row.split_once("</tr>").unwrap();
    let titles = row.split("title=\"").skip(1);
    let numbers: Vec<u64> = titles
        .map(|it| it.split_once(" bytes\"").unwrap().0.parse().unwrap())
        .collect();
    (numbers[0], numbers[1])
}

#[test]
fn names_of_a_trace_are_text_and_never_markup() {
    let tenant = "</script><img src=x onerror=alert(1)>";
    let rows = format!(
        "{OURS}1,0,allocate,0x10,512,0,0,{tenant}\n\
         1,0,allocate,0x20,64,0,0,<!--<script>&amp;\n\
         1,0,allocate,0x30,32,0,0,'\"\u{202e}\u{7}{{{{data}}}}\n"
    );
    let (page, data) = page(&rows, "<b>\"&'{{data}}.csv");
    for (part, times) in [
        ("<img", 0),
        ("<b>", 0),
        ("<!--", 0),
        ("<script", 2),
        ("</script", 2),
        ("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;", 1),
        ("&lt;!--&lt;script&gt;&amp;amp;", 1),
        // In the title and the heading.
        ("&lt;b&gt;&quot;&amp;&#39;{{data}}.csv", 2),
        ("id=\"data\">{\"devices\"", 1),
        ("\u{7}", 0),
    ] {
        assert_eq!(page.matches(part).count(), times, "{part}");
    }
    assert_eq!(data["devices"][0]["bands"][0]["name"], tenant);
}

#[test]
fn a_page_loads_nothing_and_is_the_same_for_the_same_trace() {
    let mut random = random();
    let mut rows = OURS.to_owned();
    for number in 0..5000 {
        let (address, device) = (random.u64(1..400) * 512, random.u8(..3));
        let action = ["allocate", "free", "allocate failure"][random.usize(..3)];
        let tenant = random.u8(..20);
        let bytes = random.u64(1..5) * 512;
        writeln!(
            rows,
            "1,10:00:{:02}.5,{action},{address:#x},{bytes},0,{device},tenant {tenant}",
            number / 100
        )
        .unwrap();
    }
    let (first, _) = page(&rows, "trace.csv");
    for _ in 0..3 {
        assert!(first == page(&rows, "trace.csv").0);
    }
    for part in ["src=", "href=", "url(", "@import", "fetch(", "https:"] {
        assert!(!first.contains(part), "{part}");
    }
    // The name of SVG's elements.
    assert_eq!(first.matches("http:").count(), 1);
    assert!(first.contains("default-src 'none'"));
}

#[test]
fn the_table_has_the_exact_peaks_of_a_plain_sum() {
    let mut random = random();
    for _ in 0..20 {
        let mut rows = OURS.to_owned();
        let mut blocks: Vec<(u64, usize, u64)> = Vec::new();
        let (mut live, mut peak) = ([0_u64; 4], [0_u64; 4]);
        // More steps than columns.
        for number in 1..6000_u64 {
            if random.u8(..5) < 2 && !blocks.is_empty() {
                let (address, tenant, bytes) = blocks.swap_remove(random.usize(..blocks.len()));
                writeln!(rows, "1,0,free,{address:#x},{bytes},0,0,").unwrap();
                [tenant, 3].iter().for_each(|it| live[*it] -= bytes);
                continue;
            }
            let (tenant, bytes) = (random.usize(..3), random.u64(1..1 << 40));
            let address = number * 4096;
            writeln!(rows, "1,0,allocate,{address:#x},{bytes},0,0,t{tenant}").unwrap();
            blocks.push((address, tenant, bytes));
            [tenant, 3].iter().for_each(|it| live[*it] += bytes);
            (0..4).for_each(|it| peak[it] = peak[it].max(live[it]));
        }
        let (page, data) = page(&rows, "trace.csv");
        for (at, name) in ["t0", "t1", "t2", "all"].iter().enumerate() {
            assert_eq!(exact(&page, name, 0), (peak[at], live[at]), "{name}");
        }
        let device = &data["devices"][0];
        assert_eq!(device["peak"]["bytes"], peak[3]);
        // A column has the peak, as the sum of its bands.
        let bands = device["bands"].as_array().unwrap();
        let column = |at: usize| -> u64 {
            let parts = bands.iter().map(|it| it["bytes"][at].as_u64().unwrap());
            parts.sum()
        };
        let columns = device["times_us"].as_array().unwrap().len();
        assert_eq!((0..columns).map(column).max(), Some(peak[3]));
    }
}

#[test]
fn the_size_of_a_page_is_bounded_whatever_the_trace() {
    for devices in [1, 64] {
        let mut rows = OURS.to_owned();
        for number in 1..=200_000_u64 {
            let (address, device) = (number << 32, number % devices);
            // Names of the largest size that is kept, and more than are kept.
            let tenant = format!("{:<<120}", number % 1000);
            let bytes = number << 24;
            writeln!(
                rows,
                "1,23:59:59.999999,allocate,{address:#x},{bytes},{address:#x},{device},{tenant}"
            )
            .unwrap();
            if number % 3 != 0 {
                writeln!(rows, "1,0,free,{address:#x},0,0,{device},").unwrap();
            }
        }
        let (page, data) = page(&rows, "trace.csv");
        assert!(page.len() < 8 << 20, "{devices}: {}", page.len());
        let all = data["devices"].as_array().unwrap();
        assert_eq!(all.len(), devices as usize);
        let sum = |part: &str| -> usize {
            let lists = all.iter().map(|it| it[part].as_array().unwrap().len());
            lists.sum()
        };
        assert!(sum("times_us") <= 64 * 64 && sum("blocks") <= 6000);
        assert!(page.contains("others are in the totals only"));
    }
}

#[test]
fn unusual_rows_are_shown_and_what_is_left_out_is_noted() {
    // A cut last line, refused allocations without an address, and a free from before.
    let (page, data) = page(
        &format!(
            "{HEAD}1,10:00:00.1,allocate,0x10,1048576,0\n1,10:00:00.2,allocate failure,,99,0\n\
             1,10:00:00.3,allocate failure,(nil),7,(nil)\n1,10:00:00.4,free,0x99,4096,0\n\
             1,10:00:00.5,free,0x99,4096,0\n1,10:00:00.6,free,0x10,104"
        ),
        "trace.csv",
    );
    for note in [
        "<li>the last line is incomplete and was left out</li>",
        "<li>1 block of 4.0 KiB live before the trace began</li>",
        "<li>1 free of memory that was not allocated left out</li>",
    ] {
        assert!(page.contains(note), "{note}\n{page}");
    }
    assert_eq!(exact(&page, "all", 0), ((1 << 20) + 4096, 1 << 20));
    let device = &data["devices"][0];
    let failures: HashMap<u64, u64> = device["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it[0].as_u64().unwrap(), it[2].as_u64().unwrap()))
        .collect();
    assert_eq!(failures, HashMap::from([(1, 99), (2, 7)]));
    assert_eq!(device["span_us"], 400_000);
    // Sizes whose sum exceeds 64 bits.
    let most = u64::MAX;
    let rows = format!("{HEAD}1,0,allocate,0x10,{most},0\n1,0,allocate,0x20,{most},0\n");
    let (page, data) = self::page(&rows, "trace.csv");
    assert_eq!(exact(&page, "all", 0), (most, most));
    assert_eq!(data["devices"][0]["peak"]["bytes"], most);
}
