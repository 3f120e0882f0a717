//! Permissions, ownership, timestamps and extended attributes.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

use rustix::fs::{
    AtFlags, CWD, StatxFlags, Timespec, Timestamps, XattrFlags, getxattr, listxattr, removexattr,
    setxattr, statx, utimensat,
};
use rustix::io::Errno;

use crate::{OTHER_USER, TestMount, other_user_can};

fn set_mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Requests only the mode, so the kernel may answer from its cache after other changes.
fn mode(path: &std::path::Path) -> u32 {
    let known = statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(known.stx_mode) & 0o7777
}

#[test]
fn modes_and_owners_control_access() {
    let mounted = TestMount::plain();
    let file = mounted.at("file");
    let path = file.display();
    fs::write(&file, "text").unwrap();
    set_mode(&file, 0o600);
    assert!(!other_user_can(&format!("cat '{path}'")));
    set_mode(&file, 0o604);
    assert!(other_user_can(&format!("cat '{path}'")));
    assert!(!other_user_can(&format!("echo x >> '{path}'")));
    chown(&file, Some(OTHER_USER), Some(99)).unwrap();
    let known = fs::metadata(&file).unwrap();
    assert_eq!((known.uid(), known.gid()), (OTHER_USER, 99));
    assert!(other_user_can(&format!(
        "echo x >> '{path}' && chmod 640 '{path}'"
    )));
    assert_eq!(mode(&file), 0o640);
    assert!(!other_user_can(&format!("chown 0 '{path}'")));
    // The root directory is not writable for the other user; a sticky one is, but not other users'
    // files in it.
    assert!(!other_user_can(&format!(
        "touch '{}'",
        mounted.at("new").display()
    )));
    fs::create_dir(mounted.at("all")).unwrap();
    set_mode(&mounted.at("all"), 0o1777);
    fs::write(mounted.at("all/mine"), "").unwrap();
    assert!(!other_user_can(&format!(
        "rm -f '{}'",
        mounted.at("all/mine").display()
    )));
    assert!(other_user_can(&format!(
        "umask 027; mkdir '{0}' && touch '{0}/f'",
        mounted.at("all/d").display()
    )));
    assert_eq!(
        (mode(&mounted.at("all/d")), mode(&mounted.at("all/d/f"))),
        (0o750, 0o640)
    );
    assert_eq!(
        fs::metadata(mounted.at("all/d/f")).unwrap().uid(),
        OTHER_USER
    );
}

#[test]
fn writing_another_users_program_clears_setuid_and_setgid() {
    let mounted = TestMount::plain();
    let file = mounted.at("file");
    fs::write(&file, "text").unwrap();
    for (before, after) in [
        (0o6777, 0o777),
        (0o4777, 0o777),
        (0o2767, 0o767),
        (0o6767, 0o767),
    ] {
        set_mode(&file, before);
        assert_eq!(mode(&file), before);
        assert!(other_user_can(&format!("echo x >> '{}'", file.display())));
        assert_eq!(mode(&file), after, "{before:o}");
    }
    set_mode(&file, 0o4755);
    fs::write(&file, "root may").unwrap();
    assert_eq!(mode(&file), 0o4755);
    chown(&file, Some(1), Some(1)).unwrap();
    assert_eq!(mode(&file), 0o755);
}

#[test]
fn setgid_directory_passes_its_group_on() {
    let mounted = TestMount::plain();
    fs::create_dir(mounted.at("d")).unwrap();
    chown(mounted.at("d"), None, Some(77)).unwrap();
    set_mode(&mounted.at("d"), 0o2775);
    fs::write(mounted.at("d/file"), "").unwrap();
    fs::create_dir(mounted.at("d/inner")).unwrap();
    assert_eq!(fs::metadata(mounted.at("d/file")).unwrap().gid(), 77);
    assert_eq!(fs::metadata(mounted.at("d/inner")).unwrap().gid(), 77);
    assert_eq!(mode(&mounted.at("d/inner")) & 0o2000, 0o2000);
}

#[test]
fn times_are_kept_to_the_nanosecond() {
    let mounted = TestMount::plain();
    let file = mounted.at("file");
    fs::write(&file, "text").unwrap();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    for (sec, nsec) in [
        (1_234_567_890, 123_456_789),
        (-5, 999_999_999),
        (1 << 33, 1),
    ] {
        let times = Timestamps {
            last_access: time(sec, nsec),
            last_modification: time(sec + 1, nsec),
        };
        utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
        let it = fs::metadata(&file).unwrap();
        assert_eq!((it.atime(), it.atime_nsec()), (sec, nsec));
        assert_eq!((it.mtime(), it.mtime_nsec()), (sec + 1, nsec));
    }
    let known = |path: &std::path::Path| {
        let it = fs::metadata(path).unwrap();
        let stamp = |sec, nsec| i128::from(sec) * 1_000_000_000 + i128::from(nsec);
        let (read, written) = (
            stamp(it.atime(), it.atime_nsec()),
            stamp(it.mtime(), it.mtime_nsec()),
        );
        (read, written, stamp(it.ctime(), it.ctime_nsec()))
    };
    let before = known(&file);
    fs::read(&file).unwrap();
    let read = known(&file);
    assert!(read.0 > before.2 && read.1 == before.1 && read.2 == before.2);
    fs::write(&file, "more").unwrap();
    let written = known(&file);
    assert!(written.1 > read.0 && written.2 == written.1);
    let directory = known(&mounted.at("."));
    fs::hard_link(&file, mounted.at("other")).unwrap();
    assert!(known(&mounted.at(".")).1 > directory.1);
    assert!(known(&file).2 > written.2);
}

#[test]
fn earliest_timestamp_is_clamped() {
    let mounted = TestMount::plain();
    let file = mounted.at("file");
    fs::write(&file, "text").unwrap();
    // The earliest representable time is clamped to what nanoseconds in 64 bits can express;
    // repeated for every worker thread. A request without a reply would hang forever.
    for _ in 0..16 {
        let mut touch = std::process::Command::new("timeout");
        let words = ["--signal=KILL", "60", "touch", "-m", "-d"];
        touch.args(words).arg(format!("@{}", i64::MIN)).arg(&file);
        assert!(touch.status().unwrap().success());
    }
    assert_eq!(fs::metadata(&file).unwrap().mtime(), -9_223_372_037);
}

#[test]
fn extended_attributes_round_trip_and_unknown_namespaces_are_refused() {
    let mounted = TestMount::plain();
    let file = mounted.at("file");
    fs::write(&file, "").unwrap();
    let get = |name: &str| {
        let mut value = [0; 100];
        getxattr(&file, name, &mut value[..]).map(|len| value[..len].to_vec())
    };
    let set = |name: &str, value: &[u8], how| setxattr(&file, name, value, how);
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    assert_eq!(set("user.a", b"1", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.a", b"one", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    set("trusted.b", b"", XattrFlags::empty()).unwrap();
    assert_eq!(
        (get("user.a"), get("trusted.b")),
        (Ok(b"one".to_vec()), Ok(vec![]))
    );
    assert_eq!(
        getxattr(&file, "user.a", &mut [0; 1][..]),
        Err(Errno::RANGE)
    );
    let mut names = [0; 100];
    let len = listxattr(&file, &mut names[..]).unwrap();
    assert_eq!(names[..len], *b"trusted.b\0user.a\0");
    removexattr(&file, "user.a").unwrap();
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    assert_eq!(
        set("system.x", b"", XattrFlags::empty()),
        Err(Errno::OPNOTSUPP)
    );
    let much = vec![0; 65_537];
    assert!(matches!(
        set("user.c", &much, XattrFlags::empty()),
        Err(Errno::TOOBIG | Errno::NOSPC)
    ));
}

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, may, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(may.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

#[test]
fn acls_control_access_and_are_inherited() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let mounted = TestMount::plain();
    let file = mounted.at("file");
    fs::write(&file, "text").unwrap();
    set_mode(&file, 0o600);
    let reads = |path: &std::path::Path| other_user_can(&format!("cat '{}'", path.display()));
    let writes = |path: &std::path::Path| other_user_can(&format!("echo >> '{}'", path.display()));
    assert!(!reads(&file));
    let none = u32::MAX;
    let with_other_user = [
        (1, 6, none),
        (2, 6, OTHER_USER),
        (4, 0, none),
        (16, 6, none),
        (32, 0, none),
    ];
    setxattr(&file, ACCESS, &list(&with_other_user), XattrFlags::empty()).unwrap();
    assert!(reads(&file) && writes(&file));
    assert_eq!(mode(&file), 0o660);
    // The group's bits are the mask.
    set_mode(&file, 0o640);
    assert!(reads(&file) && !writes(&file));
    let mut value = [0; 100];
    let len = getxattr(&file, ACCESS, &mut value[..]).unwrap();
    let masked = [
        (1, 6, none),
        (2, 6, OTHER_USER),
        (4, 0, none),
        (16, 4, none),
        (32, 0, none),
    ];
    assert_eq!(value[..len], list(&masked));
    removexattr(&file, ACCESS).unwrap();
    assert!(!reads(&file));
    fs::create_dir(mounted.at("d")).unwrap();
    let default = list(&[
        (1, 7, none),
        (2, 7, OTHER_USER),
        (4, 5, none),
        (16, 7, none),
        (32, 0, none),
    ]);
    setxattr(mounted.at("d"), DEFAULT, &default, XattrFlags::empty()).unwrap();
    fs::write(mounted.at("d/file"), "text").unwrap();
    assert!(reads(&mounted.at("d/file")) && writes(&mounted.at("d/file")));
    assert_eq!(mode(&mounted.at("d/file")), 0o660);
    fs::create_dir(mounted.at("d/inner")).unwrap();
    let len = getxattr(mounted.at("d/inner"), DEFAULT, &mut value[..]).unwrap();
    assert_eq!(value[..len], default);
    assert!(other_user_can(&format!(
        "touch '{}'",
        mounted.at("d/inner/new").display()
    )));
}
