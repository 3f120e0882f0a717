//! Reader of Python pickles that executes nothing.
//!
//! What a pickle would call or look up becomes an opaque value, and so does its result. Values
//! refer to their place in the file or to each other by number: nothing here recurses, so no
//! nesting, however deep or circular, can exhaust the stack. What a value contains is stored once,
//! however many other values refer to it.
//!
//! Invariant: each operation reads at least a byte and keeps at most two words of eight bytes, so
//! memory is at most 16 times the file, and time is linear in it; lengths are checked against the
//! remaining bytes before anything is allocated.

use std::collections::HashMap;

use anyhow::{Result, anyhow, bail};

/// Keys of a dictionary that are searched, the last ones; those of a snapshot have less than 30.
const LARGEST_DICTIONARY: usize = 64;

/// A value. What it contains is in the file or in its pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PickleValue {
    None,
    /// An integer, by the offset of its opcode.
    Integer(u32),
    /// A string, by the offset of its opcode.
    Text(u32),
    /// A list, a set or a long tuple, by the offset of the opcode that made it.
    Items(u32),
    /// A tuple of up to three values, by the place of the first.
    Tuple {
        first: u32,
        len: u8,
    },
    /// A dictionary, by the offset of the opcode that made it.
    Pairs(u32),
    /// The class of an ordered dictionary, which is read as a dictionary.
    DictionaryClass,
    /// Anything else: other numbers, bytes, Python objects.
    Opaque,
}

/// Consecutive contents of a container: what one operation added to it.
#[derive(Debug, Clone, Copy)]
struct ContentPiece {
    container: u32,
    /// Index of the first of its values.
    first: u32,
    len: u32,
}

/// All values of a file.
pub(super) struct Pickle<'a> {
    bytes: &'a [u8],
    /// The contents of all containers; keys and values of dictionaries alternate.
    contents: Vec<PickleValue>,
    /// Sorted by container, then in order of addition.
    pieces: Vec<ContentPiece>,
    root: PickleValue,
}

impl<'a> Pickle<'a> {
    /// Reads protocols 2 to 5.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Pickle<'a>> {
        if u32::try_from(bytes.len()).is_err() {
            bail!(
                "the pickle has {} bytes, more than {}",
                bytes.len(),
                u32::MAX
            );
        }
        let mut reading = PickleReader {
            pickle: Pickle {
                bytes,
                contents: Vec::new(),
                pieces: Vec::new(),
                root: PickleValue::None,
            },
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
        };
        loop {
            let begun = reading.at;
            match reading.step() {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) => return Err(error.context(format!("byte {begun} of the pickle"))),
            }
        }
        let mut pickle = reading.pickle;
        let pieces = &mut pickle.pieces;
        pieces.sort_unstable_by_key(|piece| (piece.container, piece.first));
        Ok(pickle)
    }

    pub(super) fn root(&self) -> PickleValue {
        self.root
    }

    pub(super) fn text(&self, value: PickleValue) -> Option<&'a str> {
        std::str::from_utf8(self.text_bytes(value)?).ok()
    }

    fn text_bytes(&self, value: PickleValue) -> Option<&'a [u8]> {
        let PickleValue::Text(at) = value else {
            return None;
        };
        let (operation, rest) = self.bytes.get(at as usize..)?.split_first()?;
        let (len, rest) = rest.split_at_checked(text_prefix_len(*operation)? as usize)?;
        rest.get(..usize::try_from(little_endian(len)).ok()?)
    }

    /// An integer from 0 to 2^64 - 1.
    pub(super) fn number(&self, value: PickleValue) -> Option<u64> {
        u64::try_from(self.integer(value)?).ok()
    }

    /// The 64 bits of an integer, of which negative ones are the upper half.
    pub(super) fn identifier(&self, value: PickleValue) -> Option<u64> {
        let integer = self.integer(value)?;
        let bits = u64::try_from(integer).ok();
        bits.or_else(|| i64::try_from(integer).ok().map(|it| it as u64))
    }

    /// An integer of at most eight bytes with or without a sign.
    fn integer(&self, value: PickleValue) -> Option<i128> {
        let PickleValue::Integer(at) = value else {
            return None;
        };
        let (operation, rest) = self.bytes.get(at as usize..)?.split_first()?;
        let digits = |len: usize| rest.get(..len);
        match operation {
            b'K' => Some(little_endian(digits(1)?).into()),
            b'M' => Some(little_endian(digits(2)?).into()),
            b'J' => Some((little_endian(digits(4)?) as u32 as i32).into()),
            // LONG1, LONG4
            _ => {
                let prefix = if *operation == 0x8a { 1 } else { 4 };
                let (len, rest) = rest.split_at_checked(prefix)?;
                long(rest.get(..usize::try_from(little_endian(len)).ok()?)?)
            }
        }
    }

    /// What operations added to a container, in their order.
    fn pieces(&self, container: u32) -> &[ContentPiece] {
        let from = self.pieces.partition_point(|it| it.container < container);
        let rest = &self.pieces[from..];
        &rest[..rest.partition_point(|it| it.container == container)]
    }

    fn piece(&self, piece: ContentPiece) -> &[PickleValue] {
        let first = piece.first as usize;
        &self.contents[first..first + piece.len as usize]
    }

    /// The items of a list, tuple or set; empty for other values.
    pub(super) fn items(&self, value: PickleValue) -> impl Iterator<Item = PickleValue> {
        let (pieces, tuple) = match value {
            PickleValue::Items(container) => (self.pieces(container), None),
            PickleValue::Tuple { first, len } => (
                &[][..],
                Some(ContentPiece {
                    container: 0,
                    first,
                    len: len.into(),
                }),
            ),
            _ => (&[][..], None),
        };
        let pieces = pieces.iter().copied().chain(tuple);
        pieces.flat_map(|piece| self.piece(piece).iter().copied())
    }

    /// A dictionary's values under these keys, found in one pass. The last assignment wins, as in
    /// Python. Many events may refer to one dictionary, so not all of a large one is searched.
    pub(super) fn fields<const N: usize>(
        &self,
        value: PickleValue,
        names: [&str; N],
    ) -> [Option<PickleValue>; N] {
        let mut found = [None; N];
        let PickleValue::Pairs(container) = value else {
            return found;
        };
        let pieces = self.pieces(container).iter().rev();
        let pairs = pieces.flat_map(|piece| self.piece(*piece).rchunks_exact(2));
        for pair in pairs.take(LARGEST_DICTIONARY) {
            let Some(key) = self.text_bytes(pair[0]) else {
                continue;
            };
            if let Some(at) = names.iter().position(|name| name.as_bytes() == key) {
                found[at].get_or_insert(pair[1]);
            }
        }
        found
    }

    /// A dictionary's value under a key.
    #[cfg(test)]
    pub(super) fn get(&self, value: PickleValue, name: &str) -> Option<PickleValue> {
        let [found] = self.fields(value, [name]);
        found
    }
}

/// The bytes of the length that follows the opcode of a string.
fn text_prefix_len(operation: u8) -> Option<u64> {
    // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
    match operation {
        0x8c => Some(1),
        b'X' => Some(4),
        0x8d => Some(8),
        _ => None,
    }
}

/// A number of at most eight bytes.
fn little_endian(digits: &[u8]) -> u64 {
    let digits = digits.iter().rev();
    digits.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A number in two's complement; `None` if it has more than 64 bits.
fn long(digits: &[u8]) -> Option<i128> {
    // A ninth byte only keeps the number non-negative.
    let low = match digits {
        [low @ .., 0] if low.len() == 8 => low,
        _ if digits.len() > 8 => return None,
        _ => digits,
    };
    let number = i128::from(little_endian(low));
    let is_negative = digits.last().is_some_and(|byte| byte & 0x80 != 0);
    Some(match is_negative {
        true => number - (1 << (8 * low.len())),
        false => number,
    })
}

/// Values by the numbers that a pickle gives them, which count up from 0 in all but odd files.
#[derive(Default)]
struct Memo {
    dense: Vec<PickleValue>,
    others: HashMap<u32, PickleValue>,
}

impl Memo {
    fn len(&self) -> usize {
        self.dense.len() + self.others.len()
    }

    fn get(&self, number: u32) -> Option<PickleValue> {
        let dense = self.dense.get(number as usize);
        dense.or_else(|| self.others.get(&number)).copied()
    }

    fn set(&mut self, number: u32, value: PickleValue) {
        let next = self.dense.len();
        match self.dense.get_mut(number as usize) {
            Some(known) => *known = value,
            None if number as usize == next => {
                self.others.remove(&number);
                self.dense.push(value);
            }
            None => {
                self.others.insert(number, value);
            }
        }
    }
}

/// State of the reader.
struct PickleReader<'a> {
    pickle: Pickle<'a>,
    at: usize,
    stack: Vec<PickleValue>,
    /// Stack heights of the marks.
    marks: Vec<u32>,
    memo: Memo,
}

impl PickleReader<'_> {
    /// Executes one opcode; true if it was the last.
    fn step(&mut self) -> Result<bool> {
        // Less than 2^32, as all offsets in the file.
        let begun = self.at as u32;
        let operation = self.number(1)? as u8;
        match operation {
            // PROTO
            0x80 => {
                let protocol = self.number(1)?;
                if !(2..=5).contains(&protocol) {
                    bail!("its protocol is {protocol}; only 2 to 5 are supported");
                }
            }
            // FRAME: its contents are read as a stream.
            0x95 => {
                self.skip(8)?;
            }
            b'.' => {
                self.pickle.root = self.pop()?;
                return Ok(true);
            }
            // None; true, false and floats are not needed for a trace.
            b'N' => self.stack.push(PickleValue::None),
            0x88 | 0x89 => self.stack.push(PickleValue::Opaque),
            b'G' => {
                self.skip(8)?;
                self.stack.push(PickleValue::Opaque);
            }
            b'K' => self.integer(begun, 1)?,
            b'M' => self.integer(begun, 2)?,
            b'J' => self.integer(begun, 4)?,
            // LONG1, LONG4
            0x8a | 0x8b => {
                let len = self.number(if operation == 0x8a { 1 } else { 4 })?;
                self.integer(begun, len)?;
            }
            0x8c | b'X' | 0x8d => {
                let len = self.number(text_prefix_len(operation).unwrap_or(8))?;
                self.skip(len)?;
                self.stack.push(PickleValue::Text(begun));
            }
            // SHORT_BINBYTES, BINBYTES, BINBYTES8, BYTEARRAY8
            b'C' | b'B' | 0x8e | 0x96 => {
                let len = self.number(match operation {
                    b'C' => 1,
                    b'B' => 4,
                    _ => 8,
                })?;
                self.skip(len)?;
                self.stack.push(PickleValue::Opaque);
            }
            // Empty list, tuple, set.
            b']' | b')' | 0x8f => self.stack.push(PickleValue::Items(begun)),
            b'(' => self.marks.push(self.stack.len() as u32),
            // List, tuple, frozenset of the items above the mark.
            b'l' | b't' | 0x91 => {
                let mark = self.take_mark()?;
                self.add_above(mark, begun);
                self.stack.push(PickleValue::Items(begun));
            }
            0x85..=0x87 => {
                let len = operation - 0x84;
                let first = self.height_below(len.into())?;
                let at = self.pickle.contents.len() as u32;
                self.pickle.contents.extend(self.stack.drain(first..));
                self.stack.push(PickleValue::Tuple { first: at, len });
            }
            b'}' => self.stack.push(PickleValue::Pairs(begun)),
            b'd' => {
                let mark = self.take_mark_of_pairs()?;
                self.add_above(mark, begun);
                self.stack.push(PickleValue::Pairs(begun));
            }
            b'a' => {
                let first = self.height_below(1)?;
                self.extend(first)?;
            }
            // APPENDS, ADDITEMS
            b'e' | 0x90 => {
                let mark = self.take_mark()?;
                self.extend(mark)?;
            }
            b's' => {
                let first = self.height_below(2)?;
                self.set(first)?;
            }
            b'u' => {
                let mark = self.take_mark_of_pairs()?;
                self.set(mark)?;
            }
            // BINPUT, LONG_BINPUT, MEMOIZE; BINGET, LONG_BINGET
            b'q' | b'r' => {
                let name = self.number(if operation == b'q' { 1 } else { 4 })?;
                self.memo.set(name as u32, self.top()?);
            }
            0x94 => {
                let name = self.memo.len() as u32;
                self.memo.set(name, self.top()?);
            }
            b'h' | b'j' => {
                let name = self.number(if operation == b'h' { 1 } else { 4 })?;
                let value = self.memo.get(name as u32);
                self.stack.push(
                    value.ok_or_else(|| anyhow!("it refers to {name}, which is not defined"))?,
                );
            }
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                let mark = self.take_mark()?;
                self.stack.truncate(mark);
            }
            b'2' => self.stack.push(self.top()?),
            // GLOBAL: two lines. Nothing is looked up.
            b'c' => {
                let from = self.at;
                self.skip_line()?;
                self.skip_line()?;
                let name = &self.pickle.bytes[from..self.at];
                self.stack
                    .push(class(name == b"collections\nOrderedDict\n"));
            }
            // STACK_GLOBAL
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let names = [module, name].map(|it| self.pickle.text(it));
                let is_dictionary = names == [Some("collections"), Some("OrderedDict")];
                self.stack.push(class(is_dictionary));
            }
            // REDUCE: nothing is called. The items of a dictionary follow.
            b'R' => {
                let (_arguments, callee) = (self.pop()?, self.pop()?);
                match callee {
                    PickleValue::DictionaryClass => self.stack.push(PickleValue::Pairs(begun)),
                    _ => self.stack.push(PickleValue::Opaque),
                }
            }
            // NEWOBJ
            0x81 => self.opaque(2)?,
            0x92 => self.opaque(3)?,
            // BUILD: the object stays unchanged.
            b'b' => {
                self.pop()?;
                self.top()?;
            }
            other => bail!("unsupported opcode {other:#04x}"),
        }
        Ok(false)
    }

    fn skip(&mut self, len: u64) -> Result<()> {
        let left = (self.pickle.bytes.len() - self.at) as u64;
        if len > left {
            bail!("it needs {len} more bytes, {left} are left: the file is truncated");
        }
        self.at += len as usize;
        Ok(())
    }

    /// A little-endian number of at most eight bytes.
    fn number(&mut self, len: u64) -> Result<u64> {
        let from = self.at;
        self.skip(len)?;
        Ok(little_endian(&self.pickle.bytes[from..self.at]))
    }

    /// An integer whose opcode is at `begun` and whose digits, of which there are `len`, follow.
    fn integer(&mut self, begun: u32, len: u64) -> Result<()> {
        self.skip(len)?;
        self.stack.push(PickleValue::Integer(begun));
        Ok(())
    }

    fn skip_line(&mut self) -> Result<()> {
        let left = &self.pickle.bytes[self.at..];
        let end = left.iter().position(|byte| *byte == b'\n');
        self.at += end.ok_or_else(|| anyhow!("a name is not terminated"))? + 1;
        Ok(())
    }

    /// An operation may only pop what was pushed since the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0) as usize
    }

    fn pop(&mut self) -> Result<PickleValue> {
        if self.stack.len() <= self.floor() {
            bail!("the stack is empty");
        }
        self.stack
            .pop()
            .ok_or_else(|| anyhow!("the stack is empty"))
    }

    fn top(&self) -> Result<PickleValue> {
        let top = self.stack.last().copied();
        top.ok_or_else(|| anyhow!("the stack is empty"))
    }

    /// The height of the stack below its last `count` values.
    fn height_below(&self, count: usize) -> Result<usize> {
        let height = self.stack.len().checked_sub(count);
        let height = height.filter(|height| *height >= self.floor());
        height.ok_or_else(|| anyhow!("the stack is empty"))
    }

    /// The height of the stack at the last mark, which ends.
    fn take_mark(&mut self) -> Result<usize> {
        let mark = self.marks.pop();
        let mark = mark.ok_or_else(|| anyhow!("there is no mark"))? as usize;
        if mark > self.stack.len() {
            bail!("the stack was popped below its mark");
        }
        Ok(mark)
    }

    /// As [`Self::take_mark`]; above it are keys with values.
    fn take_mark_of_pairs(&mut self) -> Result<usize> {
        let mark = self.take_mark()?;
        if !(self.stack.len() - mark).is_multiple_of(2) {
            bail!("a key has no value");
        }
        Ok(mark)
    }

    /// Moves the values above a height of the stack into a container.
    fn add_above(&mut self, height: usize, container: u32) {
        // There are no more values than bytes in the file.
        let first = self.pickle.contents.len() as u32;
        let len = (self.stack.len() - height) as u32;
        if len == 0 {
            return;
        }
        self.pickle.contents.extend(self.stack.drain(height..));
        match self.pickle.pieces.last_mut() {
            Some(last) if last.container == container && last.first + last.len == first => {
                last.len += len;
            }
            _ => self.pickle.pieces.push(ContentPiece {
                container,
                first,
                len,
            }),
        }
    }

    /// Moves the values above a height of the stack into the list below them.
    fn extend(&mut self, height: usize) -> Result<()> {
        match self.below(height)? {
            PickleValue::Items(container) => self.add_above(height, container),
            PickleValue::Opaque => self.stack.truncate(height),
            _ => bail!("it appends to a value that is not a list"),
        }
        Ok(())
    }

    /// As [`Self::extend`], for keys and values of a dictionary.
    fn set(&mut self, height: usize) -> Result<()> {
        match self.below(height)? {
            PickleValue::Pairs(container) => self.add_above(height, container),
            PickleValue::Opaque => self.stack.truncate(height),
            _ => bail!("it sets an item of a value that is not a dictionary"),
        }
        Ok(())
    }

    fn below(&self, height: usize) -> Result<PickleValue> {
        let below = height.checked_sub(1).map(|at| self.stack[at]);
        below.ok_or_else(|| anyhow!("the stack is empty"))
    }

    /// Replaces `count` values by one opaque value.
    fn opaque(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.pop()?;
        }
        self.stack.push(PickleValue::Opaque);
        Ok(())
    }
}

fn class(is_dictionary: bool) -> PickleValue {
    match is_dictionary {
        true => PickleValue::DictionaryClass,
        false => PickleValue::Opaque,
    }
}

#[cfg(test)]
mod tests {
    use super::super::random;
    use super::*;

    #[test]
    fn an_ordered_dictionary_is_a_dictionary() {
        // OrderedDict(a=7), as protocol 2 and as protocol 4 write it.
        for bytes in [
            &b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01X\x01\x00\x00\x00aK\x07s."[..],
            b"\x80\x04\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94\x8c\x01aK\x07s.",
        ] {
            let pickle = Pickle::read(bytes).unwrap();
            let value = pickle.get(pickle.root(), "a").unwrap();
            assert_eq!(pickle.number(value), Some(7));
        }
    }

    #[test]
    fn code_in_a_pickle_is_opaque() {
        // os.system("echo"), as protocol 2 and as protocol 4 write it.
        for bytes in [
            &b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00echo\x85R."[..],
            b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R.",
        ] {
            let pickle = Pickle::read(bytes).unwrap();
            assert_eq!(pickle.root(), PickleValue::Opaque);
        }
    }

    #[test]
    fn containers_keep_their_items() {
        // {'a': [1, 300, 70000, 2**40], 'a': (2**63,)}
        let bytes = b"\x80\x04}(\x8c\x01a](K\x01M\x2c\x01J\x70\x11\x01\x00\
            \x8a\x06\x00\x00\x00\x00\x00\x01e\x8c\x01b\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00\x85u.";
        let pickle = Pickle::read(bytes).unwrap();
        let numbers = |name| -> Vec<u64> {
            let items = pickle.items(pickle.get(pickle.root(), name).unwrap());
            items.filter_map(|item| pickle.number(item)).collect()
        };
        assert_eq!(numbers("a"), [1, 300, 70_000, 1 << 40]);
        assert_eq!(numbers("b"), [1 << 63]);
        assert_eq!(pickle.get(pickle.root(), "c"), None);
    }

    #[test]
    fn negative_integers_keep_their_64_bits() {
        // (-2, -2**31, -2**40, -2**63)
        let bytes = b"\x80\x04(\x8a\x01\xfeJ\x00\x00\x00\x80\
            \x8a\x06\x00\x00\x00\x00\x00\xff\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80t.";
        let pickle = Pickle::read(bytes).unwrap();
        let read: Vec<PickleValue> = pickle.items(pickle.root()).collect();
        let expected = [-2, i64::from(i32::MIN), -1 << 40, i64::MIN];
        for (value, expected) in read.iter().zip(expected) {
            assert_eq!(pickle.integer(*value), Some(expected.into()));
            assert_eq!(pickle.identifier(*value), Some(expected as u64));
            assert_eq!(pickle.number(*value), None);
        }
        assert_eq!(read.len(), 4);
    }

    #[test]
    fn many_lookups_in_a_large_dictionary_end() {
        // 100,000 keys, and a lookup as for each of 100,000 events.
        let mut bytes = b"\x80\x04}(".to_vec();
        for _ in 0..100_000 {
            bytes.extend(b"\x8c\x01aK\x01");
        }
        bytes.extend(b"u.");
        let pickle = Pickle::read(&bytes).unwrap();
        for _ in 0..100_000 {
            assert_eq!(pickle.get(pickle.root(), "b"), None);
        }
    }

    /// The values and pieces that a reader of these bytes holds at its end.
    fn kept(bytes: &[u8]) -> usize {
        let pickle = Pickle::read(bytes).unwrap();
        pickle.contents.len() + pickle.pieces.len()
    }

    #[test]
    fn what_is_kept_is_proportional_to_the_file_and_not_to_what_refers_to_it() {
        assert_eq!(size_of::<PickleValue>(), 8);
        // A list of 1000 numbers, and 1000 references to it in another.
        let mut shared = b"\x80\x04](](".to_vec();
        shared.extend([b'K', 7].repeat(1000));
        shared.extend(b"eq\x00");
        shared.extend([b'h', 0].repeat(1000));
        shared.extend(b"e.");
        // The list itself is the first item.
        assert_eq!(kept(&shared), 2001 + 2);
        let pickle = Pickle::read(&shared).unwrap();
        let items: Vec<PickleValue> = pickle.items(pickle.root()).collect();
        assert_eq!(items.len(), 1001);
        assert!(items.iter().all(|it| pickle.items(*it).count() == 1000));
        // Nothing but containers, items one by one, and nested tuples.
        for part in [
            &b"]"[..],
            b"}",
            b")",
            b"N",
            b"K\x01a",
            b"\x85",
            b"\x94",
            b"]h\x00a0",
        ] {
            let mut bytes = b"\x80\x04]q\x00".to_vec();
            bytes.extend(part.repeat(100_000));
            bytes.push(b'.');
            assert!(kept(&bytes) <= bytes.len(), "{part:?}");
        }
    }

    #[test]
    fn items_added_in_turns_stay_in_their_lists() {
        // Two lists, to which numbers are added in turns; and a dictionary filled in two parts.
        let bytes = b"\x80\x04(]q\x00]q\x01h\x00K\x01ah\x01K\x02ah\x00K\x03ah\x01K\x04a\
            }\x8c\x01aK\x05s(\x8c\x01bK\x06\x8c\x01aK\x07ut.";
        let pickle = Pickle::read(bytes).unwrap();
        let all: Vec<PickleValue> = pickle.items(pickle.root()).collect();
        let numbers = |of: PickleValue| -> Vec<u64> {
            pickle
                .items(of)
                .filter_map(|it| pickle.number(it))
                .collect()
        };
        assert_eq!(numbers(all[0]), [1, 3]);
        assert_eq!(numbers(all[1]), [2, 4]);
        let dictionary = all[all.len() - 1];
        let [a, b, c] = pickle.fields(dictionary, ["a", "b", "c"]);
        let number = |it: Option<PickleValue>| pickle.number(it.unwrap());
        assert_eq!((number(a), number(b), c), (Some(7), Some(6), None));
    }

    #[test]
    fn deep_and_circular_values_are_read_and_dropped() {
        let mut deep = b"\x80\x04)".to_vec();
        deep.extend(std::iter::repeat_n(0x85, 2_000_000));
        deep.push(b'.');
        assert!(Pickle::read(&deep).is_ok());
        // A list that contains itself.
        let circular = b"\x80\x04]q\x00h\x00a.";
        let pickle = Pickle::read(circular).unwrap();
        assert!(pickle.items(pickle.root()).eq([pickle.root()]));
    }

    #[test]
    fn a_damaged_pickle_is_reported_with_its_offset() {
        for (bytes, said) in [
            (&b"\x80\x04"[..], "truncated"),
            (
                b"\x80\x04X\xff\xff\xff\xff",
                "it needs 4294967295 more bytes, 0 are left",
            ),
            (b"\x80\x01.", "its protocol is 1"),
            (b"\x80\x04.", "the stack is empty"),
            (b"\x80\x04K\x01(a", "the stack is empty"),
            (b"\x80\x04h\x07.", "refers to 7"),
            (b"\x80\x04e", "there is no mark"),
            (b"\x80\x04}(K\x01u.", "a key has no value"),
            (b"\x80\x04K\x01K\x02a.", "not a list"),
            (b"\x80\x04P", "opcode 0x50"),
            (b"\x80\x04cos", "a name is not terminated"),
        ] {
            let error = format!("{:#}", Pickle::read(bytes).err().unwrap());
            assert!(
                error.contains(said) && error.starts_with("byte "),
                "{error}"
            );
        }
    }

    #[test]
    fn no_input_makes_it_panic() {
        let mut random = random();
        let known = b"\x80\x95.N\x88\x89GKMJ\x8a\x8b\x8cX\x8dCB\x8e\x96])\x8f(lt\x91\x85\x86\x87}daesuqr\x94hj012c\x93R\x81\x92b\x90";
        for _ in 0..20_000 {
            let len = random.usize(..64);
            let bytes: Vec<u8> = (0..len)
                .map(|_| match random.u8(..4) {
                    0 => random.u8(..),
                    1 => random.u8(..4),
                    _ => known[random.usize(..known.len())],
                })
                .collect();
            let Ok(pickle) = Pickle::read(&bytes) else {
                continue;
            };
            pickle.items(pickle.root()).count();
            pickle.get(pickle.root(), "a");
            pickle.identifier(pickle.root());
        }
    }
}
