//! Device arrays (stripe and mirror), and the loss of devices in use.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{TestMount, expect_failure, fercuda, vram};

const TWO: (&str, &str) = ("FERCUDA_SOFT_DEVICES", "2");

/// Runs a command on the mount; returns its status and its output.
fn run_on(what: &str, mounted: &TestMount) -> (Option<i32>, String) {
    let done = vram(&[what, mounted.path().to_str().unwrap()]);
    (done.status.code(), String::from_utf8(done.stdout).unwrap())
}

fn text(mounted: &TestMount, name: &str) -> String {
    let done = vram(&["stat", "--json", mounted.path().to_str().unwrap()]);
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    all[0][name].as_str().unwrap().to_owned()
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..300_000)
        .map(|at| (at / 600 + seed * 31) as u8)
        .collect()
}

/// Writes files until a device is lost, and some more; returns the results.
fn write_until(is_lost: impl Fn() -> bool, mounted: &TestMount) -> Vec<std::io::Result<()>> {
    let mut written = Vec::new();
    let mut more = 4;
    while more > 0 {
        let it = written.len();
        assert!(it < 90, "no device was lost");
        written.push(fs::write(mounted.at(&it.to_string()), bytes(it)));
        more -= usize::from(is_lost());
    }
    written
}

fn is_eio(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

#[test]
fn mirror_survives_a_lost_device_and_reports_it() {
    // After the calls that mounting takes, and before all files are written.
    let lost = ("FERCUDA_SOFT_LOST", "1@200");
    let mounted = TestMount::with(&[TWO, lost], &["--size=64MiB", "--ecc=off", "--mirror=0,1"]);
    assert_eq!(text(&mounted, "array_state"), "whole");
    assert_eq!(
        (run_on("df", &mounted).0, run_on("stat", &mounted).0),
        (Some(0), Some(0))
    );
    assert_eq!(text(&mounted, "device_numbers"), "0,1");
    assert_eq!(mounted.counter("size_bytes"), 64 << 20);
    let written = write_until(|| text(&mounted, "array_state") == "degraded", &mounted);
    for (it, written) in written.iter().enumerate() {
        assert!(written.is_ok(), "{it}: {written:?}");
        assert!(
            fs::read(mounted.at(&it.to_string())).unwrap() == bytes(it),
            "{it}"
        );
    }
    let (status, shown) = run_on("df", &mounted);
    assert_eq!(status, Some(3));
    assert!(
        shown.contains(" (degraded: device 1 has failed)\n"),
        "{shown}"
    );
    assert_eq!(run_on("stat", &mounted).0, Some(3));
    let shown = run_on("top", &mounted).1;
    assert!(
        shown.contains("  DEGRADED: DEVICE 1 HAS FAILED\n"),
        "{shown}"
    );
    assert_eq!(mounted.counter("size_bytes"), 64 << 20);
}

#[test]
fn stripe_loses_only_the_data_of_the_lost_device() {
    let lost = ("FERCUDA_SOFT_LOST", "0@60");
    let words = ["--size=64MiB", "--ecc=off", "--stripe=0:1"];
    let mounted = TestMount::with(&[TWO, lost], &words);
    let written = write_until(|| text(&mounted, "array_state") == "degraded", &mounted);
    let mut lost = 0;
    for (it, written) in written.iter().enumerate() {
        // Data on that device are lost, and nothing else is wrong.
        match fs::read(mounted.at(&it.to_string())) {
            Ok(read) => assert!(written.is_err() || read == bytes(it), "{it}"),
            Err(error) => {
                assert!(is_eio(&error), "{error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0);
    assert!(
        run_on("df", &mounted)
            .1
            .contains("degraded: device 0 has failed")
    );
    // Names are in host memory, and the other device has space.
    fs::rename(mounted.at("0"), mounted.at("moved")).unwrap();
    assert!(mounted.counter("size_bytes") < 64 << 20);
    for entry in fs::read_dir(mounted.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    super::mounting::wait_until("only the other device's capacity", || {
        mounted.counter("size_bytes") == 32 << 20
    });
    fs::write(mounted.at("new"), vec![7; 20 << 20]).unwrap();
    assert!(fs::read(mounted.at("new")).unwrap() == vec![7; 20 << 20]);
}

#[test]
fn resize_compares_with_the_offered_size_after_device_loss() {
    let lost = ("FERCUDA_SOFT_LOST", "0@60");
    let words = ["--size=64MiB", "--ecc=off", "--stripe=0,1"];
    let mounted = TestMount::with(&[TWO, lost], &words);
    write_until(|| text(&mounted, "array_state") == "degraded", &mounted);
    for entry in fs::read_dir(mounted.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    super::mounting::wait_until("only the other device's capacity", || {
        mounted.counter("size_bytes") == 32 << 20
    });
    // 48 MiB is between the usable and the offered capacity: less than offered, so `grow` refuses
    // it.
    let place = mounted.path().to_str().unwrap();
    let message = expect_failure(&["grow", place, "--size=48MiB"]);
    let has = "has a capacity of 64.0 MiB already, of which 32.0 MiB are usable, as a device has failed or blocks are lost";
    assert!(message.contains(has), "{message}");
    assert_eq!(mounted.counter("size_bytes"), 32 << 20);
    assert_eq!(mounted.counter("offered_bytes"), 64 << 20);
    let done = vram(&["shrink", place, "--size=40MiB"]);
    assert!(done.status.success(), "{done:?}");
    let message = String::from_utf8(done.stdout).unwrap();
    assert!(
        message.contains("has a capacity of 20.0 MiB, "),
        "{message}"
    );
    assert_eq!(mounted.counter("size_bytes"), 20 << 20);
}

#[test]
fn loss_of_the_only_device_fails_data_calls_only() {
    let lost = ("FERCUDA_SOFT_LOST", "0@100");
    let mounted = TestMount::with(&[lost], &["--size=64MiB", "--ecc=off"]);
    let mut it = 0;
    let error = loop {
        assert!(it < 90, "no device was lost");
        if let Err(error) = fs::write(mounted.at(&it.to_string()), bytes(it)) {
            break error;
        }
        it += 1;
    };
    assert!(is_eio(&error), "{error}");
    assert!(is_eio(&fs::read(mounted.at("0")).unwrap_err()));
    // The daemon keeps running: names, links and attributes are in host memory, and statistics are
    // available.
    fs::create_dir(mounted.at("d")).unwrap();
    fs::rename(mounted.at("0"), mounted.at("d/moved")).unwrap();
    assert_eq!(mounted.at("d/moved").metadata().unwrap().len(), 300_000);
    fs::remove_file(mounted.at("d/moved")).unwrap();
    assert_eq!(run_on("df", &mounted).0, Some(0));
    let done = vram(&["umount", mounted.path().to_str().unwrap()]);
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn mirror_faults_are_corrected_and_counted_per_device() {
    let mounted = TestMount::with(&[TWO], &["--size=1MiB", "--mirror=1,0", "--scrub-rate=off"]);
    let name = mounted.at("file");
    fs::write(&name, &bytes(3)[..100_000]).unwrap();
    let place = mounted.path().to_str().unwrap();
    let done = vram(&["inject", name.to_str().unwrap(), "--kind=row", "--count=1"]);
    assert!(done.status.success(), "{done:?}");
    let done = vram(&["scrub", "--now", place]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(mounted.counter("corrected_blocks"), 1);
    let of = |device| mounted.counter(&format!("device_{device}_corrected_blocks"));
    assert_eq!(of(0) + of(1), 1);
    assert!(fs::read(&name).unwrap() == bytes(3)[..100_000]);
    // Growing and shrinking resize both devices.
    for (what, size) in [("grow", "4MiB"), ("shrink", "2MiB")] {
        let done = vram(&[what, place, "--size", size]);
        assert!(done.status.success(), "{done:?}");
    }
    assert!(fs::read(&name).unwrap() == bytes(3)[..100_000]);
    assert_eq!(mounted.counter("size_bytes"), 2 << 20);
}

#[test]
fn invalid_device_lists_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    for (words, expected) in [
        (vec!["--mirror=0"], "try: --number"),
        (vec!["--mirror=0,0"], "named twice"),
        (vec!["--stripe=0,one"], "not device ordinals"),
        (vec!["--stripe=0,1", "--mirror=0,1"], "cannot be used with"),
        (vec!["--number=1", "--mirror=0,1"], "cannot be used with"),
    ] {
        let mut all = vec!["mount", place, "--size=1MiB"];
        all.extend(words);
        let done = vram(&all);
        let message = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let message = expect_failure(&["mount", place, "--size=1MiB", "--mirror=0,1"]);
    assert!(message.contains("there is no device 1"), "{message}");
    // Each device needs its share, and the error names the one that lacks memory.
    let mut mount = fercuda();
    mount.envs([TWO, ("FERCUDA_SOFT_MEMORY", "64MiB")]);
    mount.args(["vram", "mount", place, "--ecc=off", "--size=100MiB"]);
    let done = mount.arg("--mirror=0,1").output().unwrap();
    let message = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{message}");
    assert!(message.contains(" of device 0"), "{message}");
    assert!(!super::is_mounted(Path::new(place)));
}
