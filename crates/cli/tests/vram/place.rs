//! Where it may be mounted, what it says of itself, and how it goes.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    Here, SOMEBODY, apart, copy_program, fercuda, is_mounted, needs_fuse, refused, somebody_may,
    vram,
};

const SIZE: &str = "--size=1MiB";
/// Far beyond what anything here takes: who waits so long waits for nothing.
pub(super) const DEADLINE: Duration = Duration::from_secs(120);

/// Waits for what has to come, and fails if it does not.
pub(super) fn comes(what: &str, is_there: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_there() {
        let waited = begin.elapsed();
        assert!(waited < DEADLINE, "not {what} after {waited:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_place_that_is_not_free_is_refused_with_what_to_try() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("entry"), "").unwrap();
    let told = refused(&["mount", SIZE, &at("")]);
    assert!(
        told.contains("it has entries, as entry") && told.contains("\ntry: "),
        "{told}"
    );
    let told = refused(&["mount", SIZE, &at("entry")]);
    assert!(told.contains("no directory"), "{told}");
    let told = refused(&["mount", SIZE, &at("nothing")]);
    assert!(
        told.contains("No such file") && told.contains("\ntry: mkdir "),
        "{told}"
    );
    assert!(fs::read(at("entry")).is_ok());
    let here = Here::plain();
    let told = refused(&["mount", SIZE, here.path().to_str().unwrap()]);
    assert!(
        told.contains("vramfs is mounted there already") && told.contains("\ntry: "),
        "{told}"
    );
    // What is there is as it was.
    fs::write(here.at("file"), "").unwrap();
    let told = refused(&["mount", "--size=64TiB", &at("")]);
    assert!(
        told.contains("are free") && told.contains("\ntry: "),
        "{told}"
    );
}

#[test]
fn what_others_have_mounted_somewhere_stays_there() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let line = "mount -t tmpfs none $AT
        ! $FERCUDA vram mount --size=1MiB --ecc=off $AT || exit 3
        echo fine > $AT/file
        grep -c \" $AT \" /proc/self/mounts";
    let done = apart(line, dir.path());
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(
        told.contains("none is mounted there already, of type tmpfs") && told.contains("\ntry: "),
        "{told}"
    );
    // One, and it takes files.
    assert_eq!(
        (done.status.code(), &done.stdout[..]),
        (Some(0), &b"1\n"[..])
    );
}

#[test]
fn a_kernel_without_fuse_is_named_before_anything_is_mounted() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let line = "mount -t tmpfs none /dev
        exec $FERCUDA vram mount --foreground --size=1MiB --ecc=off $AT";
    let done = apart(line, dir.path());
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(
        told.contains("the kernel has no FUSE: there is no /dev/fuse\ntry: modprobe fuse"),
        "{told}"
    );
    assert_eq!((done.status.code(), done.stdout.len()), (Some(1), 0));
}

#[test]
fn a_strangers_mount_is_named_and_not_asked_unless_somebody_says_so() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    // Of another user, who answers nothing, and at a place that a terminal would obey.
    let line = "name=$(printf '%s/a\\033[31mb' $AT)
        mkdir \"$name\"
        exec 3<>/dev/fuse
        how=fd=3,rootmode=40000,user_id=4321,group_id=4321,allow_other
        mount -i -t fuse.vramfs -o $how vramfs \"$name\"
        timeout -s KILL 60 $FERCUDA vram df || echo $?
        mkdir $AT/c
        exec 4<>/dev/fuse
        how=fd=4,rootmode=40000,user_id=4321,group_id=4321
        mount -i -t fuse.other -o $how \"$(printf 'o\\033[31m')\" $AT/c
        ! $FERCUDA vram umount $AT/c";
    let done = apart(line, dir.path());
    let (told, said) = (
        String::from_utf8(done.stderr).unwrap(),
        String::from_utf8(done.stdout).unwrap(),
    );
    assert!(done.status.success(), "{said}{told}");
    assert!(!said.contains("137"), "it was waited for: {said}{told}");
    let place = dir.path().display();
    let expected =
        format!("{place}/a\\u{{1b}}[31mb: user 4321 has mounted it, who need not answer");
    assert!(told.contains(&expected), "{told}");
    assert!(
        told.contains("it is o\\u{1b}[31m, of type fuse.other"),
        "{told}"
    );
    assert!(!told.contains('\x1b') && !said.contains('\x1b'));
}

#[test]
fn a_filesystem_that_is_bound_elsewhere_too_is_shown_once() {
    let here = Here::plain();
    fs::create_dir(here.at("part")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("all")).unwrap();
    fs::create_dir(dir.path().join("part")).unwrap();
    let line = format!(
        "from={}
        mount --bind $from $AT/all
        mount --bind $from/part $AT/part
        $FERCUDA vram df",
        here.path().display()
    );
    let done = apart(&line, dir.path());
    let said = String::from_utf8(done.stdout).unwrap();
    // Others' tests mount, too, and end while they are asked.
    let count = |dir: &Path| {
        said.lines()
            .filter(|it| it.ends_with(dir.to_str().unwrap()))
            .count()
    };
    assert_eq!(count(here.path()), 1, "{said}");
    assert_eq!(count(&dir.path().join("all")), 0, "{said}");
    let errors = String::from_utf8(done.stderr).unwrap();
    assert!(!errors.contains(dir.path().to_str().unwrap()), "{errors}");
}

#[test]
fn the_process_that_stays_keeps_nothing_that_who_mounts_had_open() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut shell = Command::new("sh");
    // The shell has the pipe's end as its own descriptor, and passes it on.
    let line = "exec 7>&1 >/dev/null; $FERCUDA vram mount --size=1MiB --ecc=off $AT; echo $? >&7";
    shell.args(["-c", line]).env("AT", dir.path());
    shell.env("FERCUDA", fercuda().get_program());
    let status = shell.env("FERCUDA_DEVICE", "soft").stdout(writer).status();
    // So that nobody here has it open.
    drop(shell);
    assert!(status.unwrap().success());
    let (tell, told) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        tell.send(said).unwrap();
    });
    let said = told.recv_timeout(DEADLINE);
    // Then whoever has it open has it no more.
    assert!(vram(&["umount", place]).status.success());
    assert_eq!(said.as_deref(), Ok("0\n"));
    reader.join().unwrap();
}

#[test]
fn a_signal_that_ends_the_process_that_stays_as_it_starts_is_named() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    // Whoever opens the compiler waits for somebody to write it.
    let compiler = dir.path().join("compiler");
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, &compiler, FileType::Fifo, mode, 0).unwrap();
    let mut mount = fercuda();
    mount
        .env("FERCUDA_NVRTC", &compiler)
        .env("FERCUDA_CACHE", "");
    mount.args(["vram", "mount", SIZE]).arg(&place);
    let mount = mount.stderr(Stdio::piped()).spawn().unwrap();
    let children = |of: u32| -> Vec<u32> {
        let all = fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
        let all = all.unwrap_or_default();
        all.split_whitespace()
            .map(|it| it.parse().unwrap())
            .collect()
    };
    comes("started", || !children(mount.id()).is_empty());
    let stays = Pid::from_raw(children(mount.id())[0] as i32).unwrap();
    kill_process(stays, Signal::KILL).unwrap();
    let done = mount.wait_with_output();
    // For who was compiling, if somebody was.
    drop(
        File::options()
            .read(true)
            .write(true)
            .open(&compiler)
            .unwrap(),
    );
    let done = done.unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("ended by signal 9") && said.contains("\ntry: "),
        "{said}"
    );
    assert!(!is_mounted(&place));
}

#[test]
fn its_process_has_ended_when_umount_returns() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    for round in 0..10 {
        let done = vram(&["mount", "--size=64MiB", "--ecc=off", place]);
        let said = String::from_utf8(done.stdout).unwrap();
        let (_, pid) = said.trim_end().rsplit_once(' ').expect(&said);
        fs::write(dir.path().join("file"), vec![7; 32 << 20]).unwrap();
        let done = vram(&["umount", place]);
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        // Who is to be told of it may not have been yet.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map_or("Z", |it| it.1);
        assert!(state.starts_with('Z'), "{round}: {stat}");
    }
}

/// Where no other test meets what does not answer.
#[test]
fn what_answers_no_more_can_be_unmounted() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let line = "
        said=$($FERCUDA vram mount --size=32MiB --ecc=off $AT)
        pid=${said##* }
        kill -STOP $pid
        status=0
        $FERCUDA vram umount $AT || status=$?
        kill -CONT $pid
        exit $status
    ";
    let done = apart(line, dir.path());
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
}

#[test]
fn what_is_unmounted_in_one_of_two_places_is_not_waited_for() {
    let here = Here::plain();
    let dir = tempfile::tempdir().unwrap();
    let line = format!(
        "mount --bind {} $AT; $FERCUDA vram umount $AT",
        here.path().display()
    );
    let begin = Instant::now();
    let done = apart(&line, dir.path());
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "it was waited for"
    );
    fs::write(here.at("file"), "text").unwrap();
}

#[test]
fn the_compiler_of_the_kernels_leaves_nothing_in_what_stays_in_memory() {
    let here = Here::new(&["--size=1MiB", "--ecc=rs"]);
    let mapped = format!("/proc/{}/maps", here.daemon.id());
    let mapped = fs::read_to_string(mapped).unwrap();
    assert!(
        mapped.contains("libc") && !mapped.contains("nvrtc"),
        "{mapped}"
    );
    // The kernels are there: what they have made is right, and looked at.
    fs::write(here.at("file"), [7; 5000]).unwrap();
    assert_eq!(fs::read(here.at("file")).unwrap(), [7; 5000]);
}

#[test]
fn without_a_compiler_the_code_is_refused_and_what_has_none_is_mounted() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    let mount = |ecc: &str| {
        let mut command = fercuda();
        // None of a checkout, of a user or of a toolkit that is named; one of the system's would be found.
        for name in [
            "FERCUDA_WHEELS",
            "CUDA_HOME",
            "CUDA_PATH",
            "VIRTUAL_ENV",
            "XDG_DATA_HOME",
        ] {
            command.env_remove(name);
        }
        command
            .env("FERCUDA_NVRTC", dir.path().join("none"))
            .env("FERCUDA_CACHE", "")
            .env("HOME", dir.path())
            .current_dir(dir.path())
            .args(["vram", "mount", SIZE, ecc])
            .arg(&place);
        command.output().unwrap()
    };
    let done = mount("--ecc=rs");
    if done.status.success() {
        vram(&["umount", place.to_str().unwrap()]);
        panic!("this machine has a libnvrtc where the loader looks for it");
    }
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(
        told.contains("libnvrtc.so") && told.contains("\ntry: --ecc off"),
        "{told}"
    );
    assert_eq!(done.status.code(), Some(1));
    assert!(!is_mounted(&place));
    let plain = mount("--ecc=off");
    assert!(plain.status.success(), "{plain:?}");
    fs::write(place.join("file"), "text").unwrap();
    assert!(vram(&["umount", place.to_str().unwrap()]).status.success());
}

#[test]
fn others_get_in_only_where_they_are_let_in() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    let at = place.to_str().unwrap();
    for words in [&["--mode=777"][..], &["--mode=777", "--allow-other"]] {
        let mut all = vec!["mount", SIZE, "--ecc=off", at];
        all.extend(words);
        assert!(vram(&all).status.success());
        fs::write(place.join("file"), "text").unwrap();
        let are_let_in = words.len() == 2;
        for line in ["ls", "cat file", "touch new"] {
            let line = format!("cd {at} && {line}");
            assert_eq!(somebody_may(&line), are_let_in, "{words:?}: {line}");
        }
        // Root is one of the others, but for who has mounted it.
        assert_eq!(place.join("new").exists(), are_let_in);
        assert!(vram(&["umount", at]).status.success());
    }
}

#[test]
fn who_may_not_mount_is_told_so() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // Not even with what mounts for others, which is looked for by name.
    let program = dir.path().join("fercuda");
    copy_program(Path::new(fercuda().get_program()), &program);
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(&program);
    command
        .env("FERCUDA_DEVICE", "soft")
        .env("PATH", dir.path())
        .args(["vram", "mount", "--ecc=off", SIZE])
        .arg(&place)
        .uid(SOMEBODY)
        .gid(SOMEBODY);
    let done = command.output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{told}");
    assert!(told.contains("try: as root, or with fusermount3"), "{told}");
}

#[test]
fn what_is_in_use_is_unmounted_only_lazily() {
    let mut here = Here::plain();
    let place = here.path().to_str().unwrap().to_owned();
    let file = File::create(here.at("file")).unwrap();
    let told = refused(&["umount", &place]);
    assert!(told.contains("in use") && told.contains("--lazy"), "{told}");
    assert!(is_mounted(here.path()));
    assert!(vram(&["umount", "--lazy", &place]).status.success());
    assert!(!is_mounted(here.path()));
    // Who has a file goes on with it.
    (&file).write_all(b"still").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
    drop(file);
    // The last user has gone, and so does the daemon: no signal is needed.
    here.ends();
    let told = refused(&["umount", &place]);
    assert!(told.contains("nothing is mounted"), "{told}");
    let told = refused(&["umount", "/proc"]);
    assert!(
        told.contains("of type proc") && told.contains("try: umount"),
        "{told}"
    );
}

#[test]
fn a_signal_unmounts_and_a_file_that_is_open_lives_on() {
    let mut here = Here::plain();
    let file = here.file("file");
    kill_process(here.pid(), Signal::TERM).unwrap();
    comes("unmounted", || !is_mounted(here.path()));
    (&file).write_all(b"still").unwrap();
    assert_eq!(here.daemon.try_wait().unwrap(), None);
    drop(file);
    here.ends();
}

#[test]
fn a_mount_that_can_tell_nobody_is_unmounted() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    for words in [&["--foreground"][..], &["--foreground", "--detached"]] {
        // Nobody reads what it says, as when Ctrl-C has ended who waits for it.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = fercuda();
        command
            .args(["vram", "mount", SIZE, "--ecc=off"])
            .args(words)
            .arg(dir.path())
            .stdout(writer);
        let done = command.output().unwrap();
        let told = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{told}");
        assert!(told.contains("cannot tell that it is mounted"), "{told}");
        assert!(!is_mounted(dir.path()));
    }
}

#[test]
fn a_signal_to_who_was_unmounted_leaves_what_is_mounted_there_since() {
    let mut old = Here::plain();
    let place = old.path().to_str().unwrap().to_owned();
    let file = old.file("file");
    assert!(vram(&["umount", "--lazy", &place]).status.success());
    let done = vram(&["mount", SIZE, "--ecc=off", &place]);
    assert!(done.status.success());
    fs::write(old.at("new"), "text").unwrap();
    kill_process(old.pid(), Signal::TERM).unwrap();
    // It has heard of it when it says so.
    let mut errors = BufReader::new(old.daemon.stderr.take().unwrap());
    let (tell, told) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        errors.read_line(&mut said).unwrap();
        tell.send(said).unwrap();
        errors
    });
    let said = told.recv_timeout(DEADLINE).unwrap();
    assert!(said.contains("not on top"), "{said}");
    (&file).write_all(b"still").unwrap();
    drop(file);
    old.ends();
    // Until then it had somebody to tell.
    drop(reader.join().unwrap());
    assert_eq!(fs::read(old.at("new")).unwrap(), b"text");
    assert!(vram(&["umount", &place]).status.success());
}

#[test]
fn a_daemon_that_is_killed_leaves_nobody_waiting_and_can_be_cleared_away() {
    let mut here = Here::plain();
    let place = here.path().to_str().unwrap().to_owned();
    let file = here.file("file");
    here.killed();
    let error = (&file).write_all(b"gone").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    drop(file);
    let told = refused(&["mount", SIZE, &place]);
    assert!(
        told.contains("no daemon any more") && told.contains("try: "),
        "{told}"
    );
    let told = refused(&["stat", &place]);
    assert!(told.contains("its daemon has ended"), "{told}");
    assert!(vram(&["umount", &place]).status.success());
    assert!(!is_mounted(here.path()));
}

#[test]
fn a_daemon_in_the_background_is_there_when_mount_returns() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let words = [
        "mount",
        "--size=2MiB",
        "--ecc=off",
        "--mode=1770",
        "--uid=7",
        "--gid=8",
        place,
    ];
    let done = vram(&words);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(
        done.status.success() && said.starts_with("mounted at "),
        "{said}"
    );
    fs::write(dir.path().join("file"), "text").unwrap();
    let root = fs::metadata(dir.path()).unwrap();
    assert_eq!(
        (root.mode() & 0o7777, root.uid(), root.gid()),
        (0o1770, 7, 8)
    );
    let told = vram(&["stat", "--json", place]).stdout;
    let told: Value = serde_json::from_slice(&told).unwrap();
    let expected = [
        ("ecc", "off"),
        ("verify", "never"),
        ("cache", "none"),
        ("dir", place),
    ];
    assert!(
        expected.iter().all(|(name, value)| told[0][name] == *value),
        "{told}"
    );
    assert_eq!(told[0]["size_bytes"], 2 << 20);
    assert_eq!(
        (&told[0]["used_bytes"], &told[0]["used_inodes"]),
        (&4096.into(), &2.into())
    );
    let all = String::from_utf8(vram(&["df"]).stdout).unwrap();
    let line = all.lines().find(|line| line.ends_with(place)).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(
        words[..6],
        ["2.0", "MiB", "4.0", "KiB", "2.0", "MiB"],
        "{line}"
    );
    assert!(vram(&["umount", place]).status.success());
    assert!(!is_mounted(dir.path()));
    let told = refused(&["df", place]);
    assert!(
        told.contains("not where such a filesystem is mounted"),
        "{told}"
    );
}

#[test]
fn blocks_that_nobody_reads_are_looked_at_in_the_background() {
    let here = Here::new(&["--size=1MiB", "--verify=scrub"]);
    let bytes: Vec<u8> = (0..300_000u32).map(|it| it as u8).collect();
    fs::write(here.at("file"), &bytes).unwrap();
    // The file has three blocks, which come round again and again.
    comes("scrubbed", || here.figure("scrubbed_blocks") >= 7);
    assert_eq!(
        (here.figure("corrected_blocks"), here.figure("lost_blocks")),
        (0, 0)
    );
    assert!(fs::read(here.at("file")).unwrap() == bytes);
    let told = refused(&["mount", SIZE, "--ecc=off", "--verify=scrub", "/nowhere"]);
    assert!(told.contains("try: without --ecc off"), "{told}");
}

#[test]
fn what_is_read_is_looked_at_by_default_where_the_memory_has_no_code_of_its_own() {
    let here = Here::new(&[SIZE]);
    let told = vram(&["stat", "--json", here.path().to_str().unwrap()]).stdout;
    let told: Value = serde_json::from_slice(&told).unwrap();
    assert_eq!(
        (&told[0]["ecc"], &told[0]["verify"]),
        (&"rs".into(), &"read".into())
    );
}

#[test]
fn the_kernel_reads_ahead_as_far_as_a_request_goes_where_pages_are_kept() {
    for (cache, is_set) in [("--cache=none", false), ("--cache=keep", true)] {
        let here = Here::new(&[SIZE, "--ecc=off", cache]);
        let device = here.path().metadata().unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let at = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let set = fs::read_to_string(at).unwrap();
        assert_eq!(set.trim() == "1024", is_set, "{cache}: {set}");
    }
}

#[test]
fn a_fault_that_nobody_meets_is_corrected_in_the_background() {
    let here = Here::new(&[SIZE, "--verify=scrub"]);
    let bytes: Vec<u8> = (0..300_000u32).map(|it| (it / 5) as u8).collect();
    fs::write(here.at("file"), &bytes).unwrap();
    for (kind, corrected) in [("row", 1), ("metadata", 2)] {
        let name = here.at("file");
        let done = vram(&["inject", name.to_str().unwrap(), "--kind", kind]);
        assert!(done.status.success(), "{done:?}");
        comes("corrected", || here.figure("corrected_blocks") >= corrected);
    }
    // Nobody has read until now.
    assert!(fs::read(here.at("file")).unwrap() == bytes);
    assert_eq!(
        (here.figure("corrected_blocks"), here.figure("lost_blocks")),
        (2, 0)
    );
}

#[test]
fn the_scrubber_looks_at_no_more_than_it_may() {
    let never = Here::new(&[SIZE, "--scrub-rate=off"]);
    fs::write(never.at("file"), vec![1; 1 << 20]).unwrap();
    let here = Here::new(&[SIZE, "--scrub-rate=128KiB"]);
    // Nothing is in use yet, so nothing is looked at.
    let begin = Instant::now();
    fs::write(here.at("file"), vec![1; 1 << 20]).unwrap();
    // Of eight blocks one a second, and one at once.
    comes("scrubbed", || {
        let looked = here.figure("scrubbed_blocks");
        let most = begin.elapsed().as_secs() + 2;
        assert!(looked <= most, "{looked} blocks, and not {most}");
        looked >= 3
    });
    assert_eq!(never.figure("scrubbed_blocks"), 0);
}
