//! Several devices, and devices that are lost while they are used.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Here, fercuda, refused, vram};

const TWO: (&str, &str) = ("FERCUDA_SOFT_DEVICES", "2");

/// What a command says, and its status.
fn said(what: &str, here: &Here) -> (Option<i32>, String) {
    let done = vram(&[what, here.path().to_str().unwrap()]);
    (done.status.code(), String::from_utf8(done.stdout).unwrap())
}

fn text(here: &Here, name: &str) -> String {
    let done = vram(&["stat", "--json", here.path().to_str().unwrap()]);
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    all[0][name].as_str().unwrap().to_owned()
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..300_000)
        .map(|at| (at / 600 + seed * 31) as u8)
        .collect()
}

/// Writes files until a device was lost, and some more; what came of each.
fn write_until(is_lost: impl Fn() -> bool, here: &Here) -> Vec<std::io::Result<()>> {
    let mut written = Vec::new();
    let mut more = 4;
    while more > 0 {
        let it = written.len();
        assert!(it < 90, "no device was lost");
        written.push(fs::write(here.at(&it.to_string()), bytes(it)));
        more -= usize::from(is_lost());
    }
    written
}

fn is_eio(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

#[test]
fn a_mirror_goes_on_when_a_device_is_lost_and_who_looks_sees_it() {
    // Behind what making it takes, and before the files are all written.
    let lost = ("FERCUDA_SOFT_LOST", "1@200");
    let here = Here::with(&[TWO, lost], &["--size=64MiB", "--ecc=off", "--mirror=0,1"]);
    assert_eq!(text(&here, "array_state"), "whole");
    assert_eq!(
        (said("df", &here).0, said("stat", &here).0),
        (Some(0), Some(0))
    );
    assert_eq!(text(&here, "device_numbers"), "0,1");
    assert_eq!(here.figure("size_bytes"), 64 << 20);
    let written = write_until(|| text(&here, "array_state") == "degraded", &here);
    for (it, written) in written.iter().enumerate() {
        assert!(written.is_ok(), "{it}: {written:?}");
        assert!(
            fs::read(here.at(&it.to_string())).unwrap() == bytes(it),
            "{it}"
        );
    }
    let (status, shown) = said("df", &here);
    assert_eq!(status, Some(3));
    assert!(
        shown.contains(" (degraded: device 1 has failed)\n"),
        "{shown}"
    );
    assert_eq!(said("stat", &here).0, Some(3));
    let shown = said("top", &here).1;
    assert!(
        shown.contains("  DEGRADED: DEVICE 1 HAS FAILED\n"),
        "{shown}"
    );
    assert_eq!(here.figure("size_bytes"), 64 << 20);
}

#[test]
fn a_stripe_has_the_room_of_both_and_loses_what_one_had() {
    let lost = ("FERCUDA_SOFT_LOST", "0@60");
    let words = ["--size=64MiB", "--ecc=off", "--stripe=0:1"];
    let here = Here::with(&[TWO, lost], &words);
    let written = write_until(|| text(&here, "array_state") == "degraded", &here);
    let mut lost = 0;
    for (it, written) in written.iter().enumerate() {
        // What lay there is lost, and nothing else is wrong.
        match fs::read(here.at(&it.to_string())) {
            Ok(read) => assert!(written.is_err() || read == bytes(it), "{it}"),
            Err(error) => {
                assert!(is_eio(&error), "{error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0);
    assert!(
        said("df", &here)
            .1
            .contains("degraded: device 0 has failed")
    );
    // Names are the host's, and there is room where the other device has some.
    fs::rename(here.at("0"), here.at("moved")).unwrap();
    assert!(here.figure("size_bytes") < 64 << 20);
    for entry in fs::read_dir(here.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    super::place::comes("the other device's room", || {
        here.figure("size_bytes") == 32 << 20
    });
    fs::write(here.at("new"), vec![7; 20 << 20]).unwrap();
    assert!(fs::read(here.at("new")).unwrap() == vec![7; 20 << 20]);
}

#[test]
fn sizes_are_compared_with_what_was_offered_also_where_a_device_was_lost() {
    let lost = ("FERCUDA_SOFT_LOST", "0@60");
    let words = ["--size=64MiB", "--ecc=off", "--stripe=0,1"];
    let here = Here::with(&[TWO, lost], &words);
    write_until(|| text(&here, "array_state") == "degraded", &here);
    for entry in fs::read_dir(here.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    super::place::comes("the other device's room", || {
        here.figure("size_bytes") == 32 << 20
    });
    // Between what there is and what was offered: less, whatever it is called.
    let place = here.path().to_str().unwrap();
    let told = refused(&["grow", place, "--size=48MiB"]);
    let has =
        "has 64.0 MiB already, and room for 32.0 MiB, as a device has failed or blocks are lost";
    assert!(told.contains(has), "{told}");
    assert_eq!(here.figure("size_bytes"), 32 << 20);
    assert_eq!(here.figure("offered_bytes"), 64 << 20);
    let done = vram(&["shrink", place, "--size=40MiB"]);
    assert!(done.status.success(), "{done:?}");
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(told.contains("has room for 20.0 MiB, "), "{told}");
    assert_eq!(here.figure("size_bytes"), 20 << 20);
}

#[test]
fn a_device_alone_that_is_lost_is_an_error_of_who_reads_and_of_nobody_else() {
    let lost = ("FERCUDA_SOFT_LOST", "0@100");
    let here = Here::with(&[lost], &["--size=64MiB", "--ecc=off"]);
    let mut it = 0;
    let error = loop {
        assert!(it < 90, "no device was lost");
        if let Err(error) = fs::write(here.at(&it.to_string()), bytes(it)) {
            break error;
        }
        it += 1;
    };
    assert!(is_eio(&error), "{error}");
    assert!(is_eio(&fs::read(here.at("0")).unwrap_err()));
    // The daemon lives: names, links and attributes are the host's, and it says what there is.
    fs::create_dir(here.at("d")).unwrap();
    fs::rename(here.at("0"), here.at("d/moved")).unwrap();
    assert_eq!(here.at("d/moved").metadata().unwrap().len(), 300_000);
    fs::remove_file(here.at("d/moved")).unwrap();
    assert_eq!(said("df", &here).0, Some(0));
    let done = vram(&["umount", here.path().to_str().unwrap()]);
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn faults_on_one_device_of_a_mirror_are_corrected_and_counted_there() {
    let here = Here::with(&[TWO], &["--size=1MiB", "--mirror=1,0", "--scrub-rate=off"]);
    let name = here.at("file");
    fs::write(&name, &bytes(3)[..100_000]).unwrap();
    let place = here.path().to_str().unwrap();
    let done = vram(&["inject", name.to_str().unwrap(), "--kind=row", "--count=1"]);
    assert!(done.status.success(), "{done:?}");
    let done = vram(&["scrub", "--now", place]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(here.figure("corrected_blocks"), 1);
    let of = |device| here.figure(&format!("device_{device}_corrected_blocks"));
    assert_eq!(of(0) + of(1), 1);
    assert!(fs::read(&name).unwrap() == bytes(3)[..100_000]);
    // More of the device, and less, is more and less of both.
    for (what, size) in [("grow", "4MiB"), ("shrink", "2MiB")] {
        let done = vram(&[what, place, "--size", size]);
        assert!(done.status.success(), "{done:?}");
    }
    assert!(fs::read(&name).unwrap() == bytes(3)[..100_000]);
    assert_eq!(here.figure("size_bytes"), 2 << 20);
}

#[test]
fn devices_that_are_not_several_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    for (words, expected) in [
        (vec!["--mirror=0"], "try: --number"),
        (vec!["--mirror=0,0"], "named twice"),
        (vec!["--stripe=0,one"], "not numbers of devices"),
        (vec!["--stripe=0,1", "--mirror=0,1"], "cannot be used with"),
        (vec!["--number=1", "--mirror=0,1"], "cannot be used with"),
    ] {
        let mut all = vec!["mount", place, "--size=1MiB"];
        all.extend(words);
        let done = vram(&all);
        let told = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{told}");
        assert!(told.contains(expected), "{told}");
    }
    let told = refused(&["mount", place, "--size=1MiB", "--mirror=0,1"]);
    assert!(told.contains("there is no device 1"), "{told}");
    // Each needs its share, and who has not as much is named.
    let mut mount = fercuda();
    mount.envs([TWO, ("FERCUDA_SOFT_MEMORY", "64MiB")]);
    mount.args(["vram", "mount", place, "--ecc=off", "--size=100MiB"]);
    let done = mount.arg("--mirror=0,1").output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{told}");
    assert!(told.contains(" of device 0"), "{told}");
    assert!(!super::is_mounted(Path::new(place)));
}
