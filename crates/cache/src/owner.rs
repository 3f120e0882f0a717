//! Owners as a user namespace shows them.

use std::fs;

/// Whether a user's number stands for one user here. In a user namespace all users without a
/// number in it are shown as one, by default 65534; a process of such a user would take the files
/// of all of them for its own.
pub fn is_uid_mapped(uid: u32) -> bool {
    match fs::read_to_string("/proc/self/uid_map") {
        Ok(map) => is_in_map(&map, uid),
        // Without /proc there is no namespace that could be known of.
        Err(_) => true,
    }
}

/// Lines of the first number here, the first outside and how many there are.
fn is_in_map(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(here)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (here..here.saturating_add(count)).contains(&u64::from(uid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_without_a_number_in_the_namespace_are_not_told_apart() {
        let all = "         0          0 4294967295\n";
        let one = "         0       1000          1\n";
        let many = "         0       1000          1\n         1     100000      65534\n";
        for (map, mapped, not) in [
            (all, &[0, 1000, 65534][..], &[][..]),
            (one, &[0], &[1, 1000, 65534]),
            (many, &[0, 1, 65533, 65534], &[65535]),
            ("", &[], &[0, 65534]),
            ("no numbers\n", &[], &[0]),
        ] {
            assert!(mapped.iter().all(|uid| is_in_map(map, *uid)), "{map}");
            assert!(not.iter().all(|uid| !is_in_map(map, *uid)), "{map}");
        }
        assert!(is_uid_mapped(rustix::process::geteuid().as_raw()));
    }
}
