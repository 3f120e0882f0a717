//! Access lists as their extended attributes have them, and what they and a mode say of each other.
//!
//! The kernel checks permissions by them. What is left is what it leaves to whoever stores them: a list decides the bits of the
//! mode, a new mode changes the list, a directory's default list becomes the list of what is made in it.
//!
//! Invariant: a list here has one entry for the owner, one for the group, one for others, and a mask if it names anybody.
//! Elsewhere: whose list it is (`tree`).

/// The attribute that has who may do what.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that has what things made in it begin with.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Permissions of a mode.
pub(crate) const PERMISSIONS: u32 = 0o777;

const VERSION: u32 = 2;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const OTHER_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    may: u16,
    id: u32,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List(Vec<Entry>);

impl List {
    /// What an attribute's value says; `None` if it is no list.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (version, entries) = value.split_first_chunk()?;
        let (entries, rest) = entries.as_chunks::<8>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        let list: Vec<Entry> = entries
            .iter()
            .map(|it| Entry {
                tag: u16::from_le_bytes([it[0], it[1]]),
                may: u16::from_le_bytes([it[2], it[3]]),
                id: u32::from_le_bytes([it[4], it[5], it[6], it[7]]),
            })
            .collect();
        let count = |tag: u16| list.iter().filter(|it| it.tag == tag).count();
        let names = count(USER) + count(OTHER_GROUP);
        let is_known = |it: &Entry| it.may <= 7 && it.tag.is_power_of_two() && it.tag <= OTHERS;
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

    /// Whether a mode says all of it.
    pub(crate) fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// The permissions that a mode has with it.
    pub(crate) fn mode(&self) -> u32 {
        let of = |tag: u16| self.0.iter().find(|it| it.tag == tag);
        let may = |it: Option<&Entry>| it.map_or(0, |it| u32::from(it.may));
        may(of(OWNER)) << 6 | may(of(MASK).or(of(GROUP))) << 3 | may(of(OTHERS))
    }

    /// The mode was changed.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        self.each(mode, |may, of_mode| *may = of_mode);
    }

    /// What is made with a mode begins with this list, and may do no more than the mode says.
    pub(crate) fn limit(&mut self, mode: u32) {
        self.each(mode, |may, of_mode| *may &= of_mode);
    }

    /// The entries that are bits of the mode, with those.
    fn each(&mut self, mode: u32, change: impl Fn(&mut u16, u16)) {
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

    fn list(entries: &[(u16, u16, u32)]) -> Option<List> {
        let entries = entries.iter().map(|&(tag, may, id)| Entry { tag, may, id });
        List::parse(&List(entries.collect()).value())
    }

    #[test]
    fn a_mode_and_a_list_say_the_same_of_each_other() {
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
        // Not of who is named, nor of the group: the mask holds for them.
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
    fn what_is_no_list_is_refused() {
        let good = [(OWNER, 7, 0), (GROUP, 5, 0), (OTHERS, 5, 0)];
        assert!(list(&good).is_some());
        assert_eq!(list(&good[..2]), None);
        assert_eq!(list(&[good[0], good[1], good[2], good[2]]), None);
        assert_eq!(list(&[good[0], (USER, 7, 1), good[1], good[2]]), None);
        assert_eq!(list(&[good[0], good[1], (OTHERS, 8, 0)]), None);
        let mut bytes = list(&good).unwrap().value().into_vec();
        bytes.push(0);
        assert_eq!(List::parse(&bytes), None);
        assert_eq!(List::parse(&[1, 0, 0, 0]), None);
    }
}
