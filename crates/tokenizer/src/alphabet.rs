//! Spellings of bytes in the texts of tokens: GPT-2's alphabet and SentencePiece's `<0xAB>`.

/// A printable character for each byte.
#[derive(Debug)]
pub(crate) struct ByteAlphabet {
    /// Of characters below 512: the byte, from 1.
    bytes: [u16; 512],
}

impl ByteAlphabet {
    pub(crate) fn new() -> ByteAlphabet {
        let mut bytes = [0; 512];
        let mut next = 256;
        for byte in 0..256_u16 {
            let is_itself = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let spelled = match is_itself {
                true => byte,
                false => {
                    next += 1;
                    next - 1
                }
            };
            bytes[usize::from(spelled)] = byte + 1;
        }
        ByteAlphabet { bytes }
    }

    /// The bytes of a text in this alphabet; `None` if a character is not of it.
    pub(crate) fn bytes(&self, text: &[u8]) -> Option<Vec<u8>> {
        let text = str::from_utf8(text).ok()?;
        let byte = |it: char| {
            let byte = self.bytes.get(it as usize).copied()?;
            byte.checked_sub(1).map(|it| it as u8)
        };
        text.chars().map(byte).collect()
    }
}

/// The byte of a token that is spelled `<0xAB>`.
pub(crate) fn byte_of(piece: &[u8]) -> Option<u8> {
    let digits = piece.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let is_hex = digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = str::from_utf8(digits).ok().filter(|_| is_hex)?;
    u8::from_str_radix(digits, 16).ok()
}
