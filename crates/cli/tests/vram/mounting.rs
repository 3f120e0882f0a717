//! Mounting and unmounting: mount points, privileges, the daemon's life and its statistics.

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
    OTHER_USER, TestMount, copy_program, expect_failure, expect_usage_error, fercuda, is_mounted,
    needs_fuse, other_user_can, run_in_mount_namespace, vram,
};

const SIZE: &str = "--size=1MiB";
/// Far beyond the duration of any step here.
pub(super) const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until a condition holds; fails after [`DEADLINE`].
pub(super) fn wait_until(what: &str, is_there: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_there() {
        let waited = begin.elapsed();
        assert!(waited < DEADLINE, "not {what} after {waited:?}");
        std::thread::yield_now();
    }
}

#[test]
fn unusable_mount_points_are_refused_with_a_hint() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("entry"), "").unwrap();
    let message = expect_failure(&["mount", SIZE, &at("")]);
    assert!(
        message.contains("it has entries, as entry") && message.contains("\ntry: "),
        "{message}"
    );
    let message = expect_failure(&["mount", SIZE, &at("entry")]);
    assert!(message.contains("no directory"), "{message}");
    let message = expect_failure(&["mount", SIZE, &at("nothing")]);
    assert!(
        message.contains("No such file") && message.contains("\ntry: mkdir "),
        "{message}"
    );
    assert!(fs::read(at("entry")).is_ok());
    let mounted = TestMount::plain();
    let message = expect_failure(&["mount", SIZE, mounted.path().to_str().unwrap()]);
    assert!(
        message.contains("vramfs is mounted there already") && message.contains("\ntry: "),
        "{message}"
    );
    // The existing mount is unchanged.
    fs::write(mounted.at("file"), "").unwrap();
    let message = expect_failure(&["mount", "--size=64TiB", &at("")]);
    assert!(
        message.contains("are free") && message.contains("\ntry: "),
        "{message}"
    );
}

#[test]
fn existing_foreign_mount_is_left_alone() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let line = "mount -t tmpfs none $AT
        ! $FERCUDA vram mount --size=1MiB --ecc=off $AT || exit 3
        echo fine > $AT/file
        grep -c \" $AT \" /proc/self/mounts";
    let done = run_in_mount_namespace(line, dir.path());
    let message = String::from_utf8(done.stderr).unwrap();
    assert!(
        message.contains("none is mounted there already, of type tmpfs")
            && message.contains("\ntry: "),
        "{message}"
    );
    // One mount, and it is writable.
    assert_eq!(
        (done.status.code(), &done.stdout[..]),
        (Some(0), &b"1\n"[..])
    );
}

#[test]
fn missing_fuse_is_reported_before_mounting() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let line = "mount -t tmpfs none /dev
        exec $FERCUDA vram mount --foreground --size=1MiB --ecc=off $AT";
    let done = run_in_mount_namespace(line, dir.path());
    let message = String::from_utf8(done.stderr).unwrap();
    assert!(
        message.contains("the kernel has no FUSE: there is no /dev/fuse\ntry: modprobe fuse"),
        "{message}"
    );
    assert_eq!((done.status.code(), done.stdout.len()), (Some(1), 0));
}

#[test]
fn another_users_mount_is_listed_but_not_queried() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    // Another user's mount without a daemon, at a path with terminal control characters.
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
    let done = run_in_mount_namespace(line, dir.path());
    let (message, output) = (
        String::from_utf8(done.stderr).unwrap(),
        String::from_utf8(done.stdout).unwrap(),
    );
    assert!(done.status.success(), "{output}{message}");
    assert!(!output.contains("137"), "it was queried: {output}{message}");
    let place = dir.path().display();
    let expected =
        format!("{place}/a\\u{{1b}}[31mb: mounted by user 4321, and its daemon may not answer");
    assert!(message.contains(&expected), "{message}");
    assert!(
        message.contains("it is o\\u{1b}[31m, of type fuse.other"),
        "{message}"
    );
    assert!(!message.contains('\x1b') && !output.contains('\x1b'));
}

#[test]
fn bind_mounts_are_listed_once() {
    let mounted = TestMount::plain();
    fs::create_dir(mounted.at("part")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("all")).unwrap();
    fs::create_dir(dir.path().join("part")).unwrap();
    let line = format!(
        "from={}
        mount --bind $from $AT/all
        mount --bind $from/part $AT/part
        $FERCUDA vram df",
        mounted.path().display()
    );
    let done = run_in_mount_namespace(&line, dir.path());
    let output = String::from_utf8(done.stdout).unwrap();
    // Other tests mount too, and unmount meanwhile.
    let count = |dir: &Path| {
        output
            .lines()
            .filter(|it| it.ends_with(dir.to_str().unwrap()))
            .count()
    };
    assert_eq!(count(mounted.path()), 1, "{output}");
    assert_eq!(count(&dir.path().join("all")), 0, "{output}");
    let errors = String::from_utf8(done.stderr).unwrap();
    assert!(!errors.contains(dir.path().to_str().unwrap()), "{errors}");
}

#[test]
fn daemon_inherits_no_descriptors() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut shell = Command::new("sh");
    // The shell has the pipe's write end as its own descriptor, and passes it on.
    let line = "exec 7>&1 >/dev/null; $FERCUDA vram mount --size=1MiB --ecc=off $AT; echo $? >&7";
    shell.args(["-c", line]).env("AT", dir.path());
    shell.env("FERCUDA", fercuda().get_program());
    let status = shell.env("FERCUDA_DEVICE", "soft").stdout(writer).status();
    // Closes this process's copy of the write end.
    drop(shell);
    assert!(status.unwrap().success());
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut output = String::new();
        reader.read_to_string(&mut output).unwrap();
        sender.send(output).unwrap();
    });
    let output = receiver.recv_timeout(DEADLINE);
    // If the daemon holds the pipe, unmounting closes it, so the reader thread ends in any case.
    assert!(vram(&["umount", place]).status.success());
    assert_eq!(output.as_deref(), Ok("0\n"));
    reader.join().unwrap();
}

#[test]
fn signal_that_kills_the_starting_daemon_is_reported() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    // Opening the compiler blocks until a process opens the pipe for writing.
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
    wait_until("started", || !children(mount.id()).is_empty());
    let daemon = Pid::from_raw(children(mount.id())[0] as i32).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    let done = mount.wait_with_output();
    // Unblocks a process that is still compiling.
    drop(
        File::options()
            .read(true)
            .write(true)
            .open(&compiler)
            .unwrap(),
    );
    let done = done.unwrap();
    let output = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{output}");
    assert!(
        output.contains("killed by signal 9") && output.contains("\ntry: "),
        "{output}"
    );
    assert!(!is_mounted(&place));
}

#[test]
fn daemon_has_exited_when_umount_returns() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    for round in 0..10 {
        let done = vram(&["mount", "--size=64MiB", "--ecc=off", place]);
        let output = String::from_utf8(done.stdout).unwrap();
        let (_, pid) = output.trim_end().rsplit_once(' ').expect(&output);
        fs::write(dir.path().join("file"), vec![7; 32 << 20]).unwrap();
        let done = vram(&["umount", place]);
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        // Its new parent may not have reaped it yet.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map_or("Z", |it| it.1);
        assert!(state.starts_with('Z'), "{round}: {stat}");
    }
}

/// In a mount namespace, where no other test queries the unresponsive mount.
#[test]
fn unresponsive_daemon_can_be_unmounted() {
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
    let done = run_in_mount_namespace(line, dir.path());
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
}

#[test]
fn umount_of_a_bind_mount_does_not_wait_for_the_daemon() {
    let mounted = TestMount::plain();
    let dir = tempfile::tempdir().unwrap();
    let line = format!(
        "mount --bind {} $AT; $FERCUDA vram umount $AT",
        mounted.path().display()
    );
    let begin = Instant::now();
    let done = run_in_mount_namespace(&line, dir.path());
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "it was waited for"
    );
    fs::write(mounted.at("file"), "text").unwrap();
}

#[test]
fn daemon_does_not_map_the_kernel_compiler() {
    let mounted = TestMount::new(&["--size=1MiB", "--ecc=rs"]);
    let mapped = format!("/proc/{}/maps", mounted.daemon.id());
    let mapped = fs::read_to_string(mapped).unwrap();
    assert!(
        mapped.contains("libc") && !mapped.contains("nvrtc"),
        "{mapped}"
    );
    // The kernels work: blocks are encoded and verified.
    fs::write(mounted.at("file"), [7; 5000]).unwrap();
    assert_eq!(fs::read(mounted.at("file")).unwrap(), [7; 5000]);
}

#[test]
fn missing_compiler_refuses_ecc_but_not_a_plain_mount() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    let mount = |ecc: &str| {
        let mut command = fercuda();
        // No libnvrtc of a checkout, a user or a toolkit; one in the loader's search path would be
        // found.
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
    let message = String::from_utf8(done.stderr).unwrap();
    assert!(
        message.contains("libnvrtc.so") && message.contains("\ntry: --ecc off"),
        "{message}"
    );
    assert_eq!(done.status.code(), Some(1));
    assert!(!is_mounted(&place));
    let plain = mount("--ecc=off");
    assert!(plain.status.success(), "{plain:?}");
    fs::write(place.join("file"), "text").unwrap();
    assert!(vram(&["umount", place.to_str().unwrap()]).status.success());
}

#[test]
fn other_users_have_access_only_with_allow_other() {
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
        let have_access = words.len() == 2;
        for line in ["ls", "cat file", "touch new"] {
            let line = format!("cd {at} && {line}");
            assert_eq!(other_user_can(&line), have_access, "{words:?}: {line}");
        }
        // Without --allow-other even root is refused, unless it mounted the filesystem.
        assert_eq!(place.join("new").exists(), have_access);
        assert!(vram(&["umount", at]).status.success());
    }
}

#[test]
fn unprivileged_mount_is_refused_with_a_hint() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // Without fusermount3 too, which is found through PATH.
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
        .uid(OTHER_USER)
        .gid(OTHER_USER);
    let done = command.output().unwrap();
    let message = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{message}");
    assert!(
        message.contains("try: as root, or with fusermount3"),
        "{message}"
    );
}

#[test]
fn busy_mount_is_unmounted_only_lazily() {
    let mut mounted = TestMount::plain();
    let place = mounted.path().to_str().unwrap().to_owned();
    let file = File::create(mounted.at("file")).unwrap();
    let message = expect_failure(&["umount", &place]);
    assert!(
        message.contains("in use") && message.contains("--lazy"),
        "{message}"
    );
    assert!(is_mounted(mounted.path()));
    assert!(vram(&["umount", "--lazy", &place]).status.success());
    assert!(!is_mounted(mounted.path()));
    // Open files stay usable.
    (&file).write_all(b"still").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
    drop(file);
    // The daemon exits with its last user, without a signal.
    mounted.wait_for_exit();
    let message = expect_failure(&["umount", &place]);
    assert!(message.contains("nothing is mounted"), "{message}");
    let message = expect_failure(&["umount", "/proc"]);
    assert!(
        message.contains("of type proc") && message.contains("try: umount"),
        "{message}"
    );
}

#[test]
fn signal_unmounts_and_open_files_live_on() {
    let mut mounted = TestMount::plain();
    let file = mounted.file("file");
    kill_process(mounted.pid(), Signal::TERM).unwrap();
    wait_until("unmounted", || !is_mounted(mounted.path()));
    (&file).write_all(b"still").unwrap();
    assert_eq!(mounted.daemon.try_wait().unwrap(), None);
    drop(file);
    mounted.wait_for_exit();
}

#[test]
fn mount_with_closed_stdout_is_unmounted() {
    needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    for words in [&["--foreground"][..], &["--foreground", "--detached"]] {
        // Its output has no reader, as when Ctrl-C has ended the waiting parent.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = fercuda();
        command
            .args(["vram", "mount", SIZE, "--ecc=off"])
            .args(words)
            .arg(dir.path())
            .stdout(writer);
        let done = command.output().unwrap();
        let message = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{message}");
        assert!(message.contains("cannot report the mount"), "{message}");
        assert!(!is_mounted(dir.path()));
    }
}

#[test]
fn signal_to_an_unmounted_daemon_leaves_a_newer_mount() {
    let mut old = TestMount::plain();
    let place = old.path().to_str().unwrap().to_owned();
    let file = old.file("file");
    assert!(vram(&["umount", "--lazy", &place]).status.success());
    let done = vram(&["mount", SIZE, "--ecc=off", &place]);
    assert!(done.status.success());
    fs::write(old.at("new"), "text").unwrap();
    kill_process(old.pid(), Signal::TERM).unwrap();
    // The message shows that the signal was handled.
    let mut errors = BufReader::new(old.daemon.stderr.take().unwrap());
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut output = String::new();
        errors.read_line(&mut output).unwrap();
        sender.send(output).unwrap();
        errors
    });
    let output = receiver.recv_timeout(DEADLINE).unwrap();
    assert!(output.contains("not the topmost mount"), "{output}");
    (&file).write_all(b"still").unwrap();
    drop(file);
    old.wait_for_exit();
    // Kept open until the exit, so that the daemon can write to it.
    drop(reader.join().unwrap());
    assert_eq!(fs::read(old.at("new")).unwrap(), b"text");
    assert!(vram(&["umount", &place]).status.success());
}

#[test]
fn killed_daemon_blocks_no_caller_and_can_be_unmounted() {
    let mut mounted = TestMount::plain();
    let place = mounted.path().to_str().unwrap().to_owned();
    let file = mounted.file("file");
    mounted.kill();
    let error = (&file).write_all(b"gone").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    drop(file);
    let message = expect_failure(&["mount", SIZE, &place]);
    assert!(
        message.contains("mounted there has ended") && message.contains("try: "),
        "{message}"
    );
    let message = expect_failure(&["stat", &place]);
    assert!(message.contains("its daemon has ended"), "{message}");
    assert!(vram(&["umount", &place]).status.success());
    assert!(!is_mounted(mounted.path()));
}

#[test]
fn background_daemon_is_ready_when_mount_returns() {
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
    let output = String::from_utf8(done.stdout).unwrap();
    assert!(
        done.status.success() && output.starts_with("mounted at "),
        "{output}"
    );
    fs::write(dir.path().join("file"), "text").unwrap();
    let root = fs::metadata(dir.path()).unwrap();
    assert_eq!(
        (root.mode() & 0o7777, root.uid(), root.gid()),
        (0o1770, 7, 8)
    );
    let json = vram(&["stat", "--json", place]).stdout;
    let stats: Value = serde_json::from_slice(&json).unwrap();
    let expected = [
        ("ecc", "off"),
        ("verify", "never"),
        ("cache", "none"),
        ("dir", place),
    ];
    assert!(
        expected
            .iter()
            .all(|(name, value)| stats[0][name] == *value),
        "{stats}"
    );
    assert_eq!(stats[0]["size_bytes"], 2 << 20);
    assert_eq!(
        (&stats[0]["used_bytes"], &stats[0]["used_inodes"]),
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
    let message = expect_failure(&["df", place]);
    assert!(
        message.contains("not where such a filesystem is mounted"),
        "{message}"
    );
}

#[test]
fn unread_blocks_are_scrubbed_in_the_background() {
    let mounted = TestMount::new(&["--size=1MiB", "--verify=scrub"]);
    let bytes: Vec<u8> = (0..300_000u32).map(|it| it as u8).collect();
    fs::write(mounted.at("file"), &bytes).unwrap();
    // The file has three blocks, which are scrubbed repeatedly.
    wait_until("scrubbed", || mounted.counter("scrubbed_blocks") >= 7);
    assert_eq!(
        (
            mounted.counter("corrected_blocks"),
            mounted.counter("lost_blocks")
        ),
        (0, 0)
    );
    assert!(fs::read(mounted.at("file")).unwrap() == bytes);
    let message = expect_usage_error(&["mount", SIZE, "--ecc=off", "--verify=scrub", "/nowhere"]);
    assert!(message.contains("try: without --ecc off"), "{message}");
}

#[test]
fn reads_are_verified_by_default_without_hardware_ecc() {
    let mounted = TestMount::new(&[SIZE]);
    let json = vram(&["stat", "--json", mounted.path().to_str().unwrap()]).stdout;
    let stats: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(
        (&stats[0]["ecc"], &stats[0]["verify"]),
        (&"rs".into(), &"read".into())
    );
}

#[test]
fn readahead_is_a_full_request_with_cache_keep() {
    for (cache, is_set) in [("--cache=none", false), ("--cache=keep", true)] {
        let mounted = TestMount::new(&[SIZE, "--ecc=off", cache]);
        let device = mounted.path().metadata().unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let at = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let set = fs::read_to_string(at).unwrap();
        assert_eq!(set.trim() == "1024", is_set, "{cache}: {set}");
    }
}

#[test]
fn unread_faults_are_corrected_in_the_background() {
    let mounted = TestMount::new(&[SIZE, "--verify=scrub"]);
    let bytes: Vec<u8> = (0..300_000u32).map(|it| (it / 5) as u8).collect();
    fs::write(mounted.at("file"), &bytes).unwrap();
    for (kind, corrected) in [("row", 1), ("metadata", 2)] {
        let name = mounted.at("file");
        let done = vram(&["inject", name.to_str().unwrap(), "--kind", kind]);
        assert!(done.status.success(), "{done:?}");
        wait_until("corrected", || {
            mounted.counter("corrected_blocks") >= corrected
        });
    }
    // The file has not been read until now.
    assert!(fs::read(mounted.at("file")).unwrap() == bytes);
    assert_eq!(
        (
            mounted.counter("corrected_blocks"),
            mounted.counter("lost_blocks")
        ),
        (2, 0)
    );
}

#[test]
fn scrubber_respects_its_rate() {
    let never = TestMount::new(&[SIZE, "--scrub-rate=off"]);
    fs::write(never.at("file"), vec![1; 1 << 20]).unwrap();
    let mounted = TestMount::new(&[SIZE, "--scrub-rate=128KiB"]);
    // No block is in use yet, so none is scrubbed.
    let begin = Instant::now();
    fs::write(mounted.at("file"), vec![1; 1 << 20]).unwrap();
    // Of eight blocks, one at once and one each second.
    wait_until("scrubbed", || {
        let looked = mounted.counter("scrubbed_blocks");
        let most = begin.elapsed().as_secs() + 2;
        assert!(looked <= most, "{looked} blocks, and not {most}");
        looked >= 3
    });
    assert_eq!(never.counter("scrubbed_blocks"), 0);
}
