//! Reader of pickles by the rules of PyTorch's memory viewer, which shares nothing with the
//! program's own reader and writer.
//!
//! The viewer knows the opcodes below and no others, and refuses an integer of more than eight
//! bytes. Beyond its rules, an integer must be as short as it can be.

/// A value as the viewer has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ViewerValue {
    False,
    Number(i64),
    Text(String),
    List(Vec<ViewerValue>),
    Dictionary(Vec<(String, ViewerValue)>),
}

impl ViewerValue {
    /// The value of a dictionary under a key.
    pub(crate) fn at(&self, name: &str) -> &ViewerValue {
        let ViewerValue::Dictionary(entries) = self else {
            panic!("no dictionary: {self:?}");
        };
        let mut found = entries.iter().filter(|(key, _)| key == name);
        let (_, value) = found
            .next()
            .unwrap_or_else(|| panic!("no {name} in {self:?}"));
        assert_eq!(found.next(), None, "{name} is there twice");
        value
    }

    pub(crate) fn list(&self) -> &[ViewerValue] {
        match self {
            ViewerValue::List(items) => items,
            other => panic!("no list: {other:?}"),
        }
    }

    pub(crate) fn number(&self) -> i64 {
        match self {
            ViewerValue::Number(number) => *number,
            other => panic!("no number: {other:?}"),
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            ViewerValue::Text(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }
}

struct ViewerReader<'b> {
    left: &'b [u8],
    stack: Vec<ViewerValue>,
    marks: Vec<usize>,
    memo: Vec<(u8, ViewerValue)>,
}

/// Reads a pickle to its end.
pub(crate) fn unpickled(bytes: &[u8]) -> ViewerValue {
    let mut reader = ViewerReader {
        left: bytes,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
    };
    while !reader.step() {}
    assert!(reader.left.is_empty(), "bytes behind the end");
    let [value] = reader.stack.try_into().expect("one value");
    value
}

impl ViewerReader<'_> {
    fn take(&mut self, len: usize) -> Vec<u8> {
        let (taken, left) = self.left.split_at(len);
        self.left = left;
        taken.to_vec()
    }

    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn above_mark(&mut self) -> Vec<ViewerValue> {
        let mark = self.marks.pop().expect("a mark");
        self.stack.split_off(mark)
    }

    /// Pushes an integer of up to eight bytes in two's complement, which is not one of fewer.
    fn integer(&mut self, len: usize, is_signed: bool, smaller: std::ops::RangeInclusive<i64>) {
        assert!((1..=8).contains(&len), "an integer of {len} bytes");
        let digits = self.take(len);
        let fill = match is_signed && digits[len - 1] >= 0x80 {
            true => 0xff,
            false => 0,
        };
        let mut all = [fill; 8];
        all[..len].copy_from_slice(&digits);
        let number = i64::from_le_bytes(all);
        assert!(!smaller.contains(&number), "{number} in {len} bytes");
        self.stack.push(ViewerValue::Number(number));
    }

    /// True at the end.
    fn step(&mut self) -> bool {
        match self.byte() {
            0x80 => assert!((2..=5).contains(&self.byte())),
            b'.' => return true,
            0x89 => self.stack.push(ViewerValue::False),
            b'K' => self.integer(1, false, -1..=-1),
            b'M' => self.integer(2, false, 0..=0xff),
            b'J' => self.integer(4, true, 0..=0xffff),
            0x8a => {
                let len = usize::from(self.byte());
                // What one byte less could hold, or an opcode without a length.
                let shorter = 1_i64 << (8 * len.min(8)).saturating_sub(9).max(31);
                self.integer(len, true, -shorter..=shorter - 1);
            }
            0x8c => {
                let len = usize::from(self.byte());
                let text = String::from_utf8(self.take(len)).expect("UTF-8");
                self.stack.push(ViewerValue::Text(text));
            }
            b'q' => {
                let number = self.byte();
                let top = self.stack.last().expect("a value").clone();
                self.memo.retain(|(known, _)| *known != number);
                self.memo.push((number, top));
            }
            b'h' => {
                let number = self.byte();
                let known = self.memo.iter().find(|(known, _)| *known == number);
                self.stack.push(known.expect("it is defined").1.clone());
            }
            b'(' => self.marks.push(self.stack.len()),
            b']' => self.stack.push(ViewerValue::List(Vec::new())),
            b'}' => self.stack.push(ViewerValue::Dictionary(Vec::new())),
            b'e' => {
                let items = self.above_mark();
                match self.stack.last_mut() {
                    Some(ViewerValue::List(list)) => list.extend(items),
                    other => panic!("items of {other:?}"),
                }
            }
            b'u' => {
                let items = self.above_mark();
                assert_eq!(items.len() % 2, 0);
                let Some(ViewerValue::Dictionary(entries)) = self.stack.last_mut() else {
                    panic!("entries of no dictionary");
                };
                for pair in items.chunks_exact(2) {
                    entries.push((pair[0].text().to_owned(), pair[1].clone()));
                }
            }
            0x86 => {
                let items = self.stack.split_off(self.stack.len() - 2);
                self.stack.push(ViewerValue::List(items));
            }
            other => panic!("the viewer does not know the opcode {other:#04x}"),
        }
        false
    }
}

#[test]
#[should_panic(expected = "an integer of 9 bytes")]
fn an_integer_of_nine_bytes_is_refused() {
    unpickled(b"\x80\x04\x8a\x09\0\0\0\0\0\0\0\x80\0.");
}

#[test]
#[should_panic(expected = "300 in 2 bytes")]
fn a_long_integer_that_could_be_shorter_is_refused() {
    unpickled(b"\x80\x04\x8a\x02\x2c\x01.");
}
