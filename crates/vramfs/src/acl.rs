//! POSIX access lists, as stored in extended attributes, and their relation to a mode.
//!
//! The kernel checks permissions by them and leaves this to the filesystem: an access list
//! determines permission bits of the mode, a new mode changes the list, a directory's default list
//! becomes the access list of what is created in it.
//!
//! Invariant: a list has exactly one entry each for the owner, the group and others, and a mask if
//! it names users or groups.
//! Elsewhere: the inodes that have the lists (`tree`).

/// The attribute with an inode's access list.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with a directory's default list, inherited by what is created in it.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The permission bits of a mode.
pub(crate) const PERMISSIONS: u32 = 0o777;

const VERSION: u32 = 2;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const OTHER_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    may: u16,
    id: u32,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessList(Vec<AclEntry>);

impl AccessList {
    /// Parses an attribute's value; `None` if it is malformed.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (version, entries) = value.split_first_chunk()?;
        let (entries, rest) = entries.as_chunks::<8>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        let list: Vec<AclEntry> = entries
            .iter()
            .map(|it| AclEntry {
                tag: u16::from_le_bytes([it[0], it[1]]),
                may: u16::from_le_bytes([it[2], it[3]]),
                id: u32::from_le_bytes([it[4], it[5], it[6], it[7]]),
            })
            .collect();
        let count = |tag: u16| list.iter().filter(|it| it.tag == tag).count();
        let names = count(USER) + count(OTHER_GROUP);
        let is_known = |it: &AclEntry| it.may <= 7 && it.tag.is_power_of_two() && it.tag <= OTHERS;
        let has_each = [OWNER, GROUP, OTHERS].iter().all(|tag| count(*tag) == 1);
        let has_mask = count(MASK) == 1 || count(MASK) == 0 && names == 0;
        (list.iter().all(is_known) && has_each && has_mask).then_some(Self(list))
    }

    /// The attribute's value.
    pub(crate) fn value(&self) -> Box<[u8]> {
        let entries = self.0.iter().flat_map(|it| {
            let head = it.tag.to_le_bytes().into_iter().chain(it.may.to_le_bytes());
            head.chain(it.id.to_le_bytes())
        });
        VERSION.to_le_bytes().into_iter().chain(entries).collect()
    }

    /// Whether the list is equivalent to a mode.
    pub(crate) fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// The permission bits that the list implies.
    pub(crate) fn mode(&self) -> u32 {
        let of = |tag: u16| self.0.iter().find(|it| it.tag == tag);
        let may = |it: Option<&AclEntry>| it.map_or(0, |it| u32::from(it.may));
        may(of(OWNER)) << 6 | may(of(MASK).or(of(GROUP))) << 3 | may(of(OTHERS))
    }

    /// Updates the list after a change of the mode.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        self.for_each_of_mode(mode, |may, of_mode| *may = of_mode);
    }

    /// Limits an inherited list to the mode of a new inode.
    pub(crate) fn limit(&mut self, mode: u32) {
        self.for_each_of_mode(mode, |may, of_mode| *may &= of_mode);
    }

    /// Applies `change` to the entries that correspond to mode bits, each with those bits.
    fn for_each_of_mode(&mut self, mode: u32, change: impl Fn(&mut u16, u16)) {
        let has_mask = self.0.iter().any(|it| it.tag == MASK);
        for it in &mut self.0 {
            let shift = match it.tag {
                OWNER => 6,
                MASK => 3,
                GROUP if !has_mask => 3,
                OTHERS => 0,
                _ => continue,
            };
            change(&mut it.may, (mode >> shift & 7) as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Option<AccessList> {
        let entries = entries
            .iter()
            .map(|&(tag, may, id)| AclEntry { tag, may, id });
        AccessList::parse(&AccessList(entries.collect()).value())
    }

    #[test]
    fn a_mode_and_an_access_list_stay_consistent() {
        let mut it = list(&[
            (OWNER, 6, !0),
            (USER, 7, 1000),
            (GROUP, 4, !0),
            (MASK, 6, !0),
            (OTHERS, 0, !0),
        ])
        .unwrap();
        assert_eq!((it.mode(), it.is_mode()), (0o660, false));
        it.limit(0o741);
        // Neither the named user nor the group: the mask limits both.
        let expected = list(&[
            (OWNER, 6, !0),
            (USER, 7, 1000),
            (GROUP, 4, !0),
            (MASK, 4, !0),
            (OTHERS, 0, !0),
        ]);
        assert_eq!(Some(&it), expected.as_ref());
        it.set_mode(0o751);
        assert_eq!(it.mode(), 0o751);
        let mut plain = list(&[(OWNER, 7, !0), (GROUP, 7, !0), (OTHERS, 7, !0)]).unwrap();
        plain.limit(0o640);
        assert_eq!((plain.mode(), plain.is_mode()), (0o640, true));
    }

    #[test]
    fn malformed_lists_are_rejected() {
        let good = [(OWNER, 7, 0), (GROUP, 5, 0), (OTHERS, 5, 0)];
        assert!(list(&good).is_some());
        assert_eq!(list(&good[..2]), None);
        assert_eq!(list(&[good[0], good[1], good[2], good[2]]), None);
        assert_eq!(list(&[good[0], (USER, 7, 1), good[1], good[2]]), None);
        assert_eq!(list(&[good[0], good[1], (OTHERS, 8, 0)]), None);
        let mut bytes = list(&good).unwrap().value().into_vec();
        bytes.push(0);
        assert_eq!(AccessList::parse(&bytes), None);
        assert_eq!(AccessList::parse(&[1, 0, 0, 0]), None);
    }
}
