//! Reader of Python pickles that executes nothing.
//!
//! What a pickle would call or look up becomes an opaque value, and so does its result. Values
//! are stored in tables and refer to each other by index: nothing here recurses, so no nesting,
//! however deep or circular, can exhaust the stack.
//!
//! Invariant: each operation reads at least a byte and keeps at most a few values, so memory is
//! proportional to the file; lengths are checked against the remaining bytes before anything is
//! allocated.

use std::collections::HashMap;

use anyhow::{Result, anyhow, bail};

/// Keys of a dictionary that are searched; those of a snapshot have less than 30.
const LARGEST_DICTIONARY: usize = 256;

/// A value. Its contents are stored in its pickle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum PickleValue {
    None,
    /// An integer from 0 to 2^64 - 1.
    Number(u64),
    /// A negative integer of at most eight bytes.
    Negative(i64),
    /// A string, by its range in the file.
    Text(usize, usize),
    /// A list, tuple or set, by its index.
    Items(usize),
    /// A dictionary, by its index.
    Pairs(usize),
    /// The class of an ordered dictionary, which is read as a dictionary.
    DictionaryClass,
    /// Anything else: other numbers, bytes, Python objects.
    Opaque,
}

impl PickleValue {
    pub(super) fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// The 64 bits of an integer, of which negative ones are the upper half.
    pub(super) fn identifier(self) -> Option<u64> {
        match self {
            Self::Negative(number) => Some(number as u64),
            other => other.number(),
        }
    }
}

/// All values of a file.
pub(super) struct Pickle<'a> {
    bytes: &'a [u8],
    items: Vec<Vec<PickleValue>>,
    pairs: Vec<Vec<(PickleValue, PickleValue)>>,
    root: PickleValue,
}

impl<'a> Pickle<'a> {
    /// Reads protocols 2 to 5.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Pickle<'a>> {
        let mut reading = PickleReader {
            pickle: Pickle {
                bytes,
                items: Vec::new(),
                pairs: Vec::new(),
                root: PickleValue::None,
            },
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        loop {
            let begun = reading.at;
            match reading.step() {
                Ok(false) => {}
                Ok(true) => return Ok(reading.pickle),
                Err(error) => return Err(error.context(format!("byte {begun} of the pickle"))),
            }
        }
    }

    pub(super) fn root(&self) -> PickleValue {
        self.root
    }

    pub(super) fn text(&self, value: PickleValue) -> Option<&'a str> {
        match value {
            PickleValue::Text(from, to) => std::str::from_utf8(self.bytes.get(from..to)?).ok(),
            _ => None,
        }
    }

    /// The items of a list, tuple or set; empty for other values.
    pub(super) fn items(&self, value: PickleValue) -> &[PickleValue] {
        match value {
            PickleValue::Items(number) => self.items.get(number).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// A dictionary's value under a key.
    pub(super) fn get(&self, value: PickleValue, name: &str) -> Option<PickleValue> {
        let PickleValue::Pairs(number) = value else {
            return None;
        };
        // The last assignment wins, as in Python. A dictionary that many events refer to is
        // searched for each of them, so not all of a large one is.
        let mut pairs = self
            .pairs
            .get(number)?
            .iter()
            .rev()
            .take(LARGEST_DICTIONARY);
        let found = pairs.find(|(key, _)| self.text(*key) == Some(name));
        found.map(|(_, value)| *value)
    }
}

/// State of the reader.
struct PickleReader<'a> {
    pickle: Pickle<'a>,
    at: usize,
    stack: Vec<PickleValue>,
    /// Stack heights of the marks.
    marks: Vec<usize>,
    memo: HashMap<u64, PickleValue>,
}

impl PickleReader<'_> {
    /// Executes one opcode; true if it was the last.
    fn step(&mut self) -> Result<bool> {
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
            b'K' => self.push_number(1)?,
            b'M' => self.push_number(2)?,
            b'J' => {
                let number = self.number(4)? as u32 as i32;
                self.stack.push(match u64::try_from(number) {
                    Ok(number) => PickleValue::Number(number),
                    Err(_) => PickleValue::Negative(number.into()),
                });
            }
            // LONG1, LONG4
            0x8a | 0x8b => {
                let len = self.number(if operation == 0x8a { 1 } else { 4 })?;
                self.long(len)?;
            }
            // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
            0x8c | b'X' | 0x8d => {
                let len = self.number(match operation {
                    0x8c => 1,
                    b'X' => 4,
                    _ => 8,
                })?;
                let from = self.at;
                self.skip(len)?;
                self.stack.push(PickleValue::Text(from, self.at));
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
            b']' | b')' | 0x8f => self.push_items(Vec::new()),
            b'(' => self.marks.push(self.stack.len()),
            // List, tuple, frozenset of the items above the mark.
            b'l' | b't' | 0x91 => {
                let items = self.above_mark()?;
                self.push_items(items);
            }
            0x85..=0x87 => {
                let count = usize::from(operation - 0x84);
                let items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
                self.push_items(items.into_iter().rev().collect());
            }
            b'}' => self.push_pairs(Vec::new()),
            b'd' => {
                let pairs = self.pairs_above_mark()?;
                self.push_pairs(pairs);
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(vec![item])?;
            }
            // APPENDS, ADDITEMS
            b'e' | 0x90 => {
                let items = self.above_mark()?;
                self.extend(items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![(key, value)])?;
            }
            b'u' => {
                let pairs = self.pairs_above_mark()?;
                self.set(pairs)?;
            }
            // BINPUT, LONG_BINPUT, MEMOIZE; BINGET, LONG_BINGET
            b'q' | b'r' => {
                let name = self.number(if operation == b'q' { 1 } else { 4 })?;
                self.memo.insert(name, self.top()?);
            }
            0x94 => {
                let name = self.memo.len() as u64;
                self.memo.insert(name, self.top()?);
            }
            b'h' | b'j' => {
                let name = self.number(if operation == b'h' { 1 } else { 4 })?;
                let value = self.memo.get(&name).copied();
                self.stack.push(
                    value.ok_or_else(|| anyhow!("it refers to {name}, which is not defined"))?,
                );
            }
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.above_mark()?;
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
                    PickleValue::DictionaryClass => self.push_pairs(Vec::new()),
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
        let digits = self.pickle.bytes[from..self.at].iter().rev();
        Ok(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn push_number(&mut self, len: u64) -> Result<()> {
        let number = self.number(len)?;
        self.stack.push(PickleValue::Number(number));
        Ok(())
    }

    /// An integer of `len` bytes in two's complement.
    fn long(&mut self, len: u64) -> Result<()> {
        let from = self.at;
        self.skip(len)?;
        let bytes = &self.pickle.bytes[from..self.at];
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        // A ninth byte only keeps the number non-negative.
        let fits = bytes.len() <= 8 || bytes.len() == 9 && bytes[8] == 0;
        let digits = bytes.iter().take(8).rev();
        let number = digits.fold(0, |number, byte| number << 8 | u64::from(*byte));
        // The sign's bits fill the bytes that are not there.
        let unused = 64 - 8 * bytes.len().min(8) as u32;
        self.stack.push(match (fits, negative) {
            (true, false) => PickleValue::Number(number),
            (true, true) => PickleValue::Negative((number << unused) as i64 >> unused),
            (false, _) => PickleValue::Opaque,
        });
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
        self.marks.last().copied().unwrap_or(0)
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

    fn above_mark(&mut self) -> Result<Vec<PickleValue>> {
        let mark = self
            .marks
            .pop()
            .ok_or_else(|| anyhow!("there is no mark"))?;
        if mark > self.stack.len() {
            bail!("the stack was popped below its mark");
        }
        Ok(self.stack.split_off(mark))
    }

    fn pairs_above_mark(&mut self) -> Result<Vec<(PickleValue, PickleValue)>> {
        let values = self.above_mark()?;
        if values.len() % 2 != 0 {
            bail!("a key has no value");
        }
        Ok(values
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect())
    }

    fn push_items(&mut self, items: Vec<PickleValue>) {
        self.stack.push(PickleValue::Items(self.pickle.items.len()));
        self.pickle.items.push(items);
    }

    fn push_pairs(&mut self, pairs: Vec<(PickleValue, PickleValue)>) {
        self.stack.push(PickleValue::Pairs(self.pickle.pairs.len()));
        self.pickle.pairs.push(pairs);
    }

    fn extend(&mut self, items: Vec<PickleValue>) -> Result<()> {
        match self.top()? {
            PickleValue::Items(number) => self.pickle.items[number].extend(items),
            PickleValue::Opaque => {}
            _ => bail!("it appends to a value that is not a list"),
        }
        Ok(())
    }

    fn set(&mut self, pairs: Vec<(PickleValue, PickleValue)>) -> Result<()> {
        match self.top()? {
            PickleValue::Pairs(number) => self.pickle.pairs[number].extend(pairs),
            PickleValue::Opaque => {}
            _ => bail!("it sets an item of a value that is not a dictionary"),
        }
        Ok(())
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
            assert_eq!(value.number(), Some(7));
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
            items.iter().filter_map(|item| item.number()).collect()
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
        let read = pickle.items(pickle.root());
        let expected = [-2, i64::from(i32::MIN), -1 << 40, i64::MIN];
        assert_eq!(read, expected.map(PickleValue::Negative));
        assert_eq!(read[0].identifier(), Some(u64::MAX - 1));
        assert_eq!(read[0].number(), None);
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

    #[test]
    fn deep_and_circular_values_are_read_and_dropped() {
        let mut deep = b"\x80\x04)".to_vec();
        deep.extend(std::iter::repeat_n(0x85, 2_000_000));
        deep.push(b'.');
        assert!(Pickle::read(&deep).is_ok());
        // A list that contains itself.
        let circular = b"\x80\x04]q\x00h\x00a.";
        let pickle = Pickle::read(circular).unwrap();
        assert_eq!(pickle.items(pickle.root()), [pickle.root()]);
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
            pickle.items(pickle.root());
            pickle.get(pickle.root(), "a");
        }
    }
}
